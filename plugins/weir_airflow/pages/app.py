"""Weir's app on Airflow's API server: the endpoint and the pages."""

from weir_airflow.api.endpoint import app
from weir_airflow.pages import dag_pages, routes

app.include_router(routes.router)
app.include_router(dag_pages.router)

__all__ = ["app"]

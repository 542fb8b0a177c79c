"""Weir's app on Airflow's API server: the endpoint and the pages."""

from weir_airflow.api.endpoint import app
from weir_airflow.pages import dag_pages, requests, routes, state_page

app.include_router(routes.router)
app.include_router(dag_pages.router)
app.include_router(state_page.router)
app.include_router(requests.router)

__all__ = ["app"]

"""Weir's app on Airflow's API server: the endpoint, the pages, and rows of state."""

from weir_airflow.api import state_rows
from weir_airflow.api.endpoint import app
from weir_airflow.pages import dag_pages, requests, routes, state_page

app.include_router(routes.router)
app.include_router(dag_pages.router)
app.include_router(state_page.router)
app.include_router(requests.router)
app.include_router(state_rows.router)

__all__ = ["app"]

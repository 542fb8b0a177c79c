"""Weir's app on Airflow's API server: the endpoint and the pages."""

from weir_airflow.api.endpoint import app
from weir_airflow.pages.routes import router

app.include_router(router)

__all__ = ["app"]

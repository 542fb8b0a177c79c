"""Weir's plugin for Airflow.

Invariant: every process of Airflow imports it, so only the api-server pays for the app.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from weir_airflow.api.quality_link import URL_PREFIX


class WeirPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's classes are not followed
    """Mounts the endpoint that compares and clears at `/weir`."""

    name = "weir"

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """The app, imported when the API server reads this: FastAPI and Airflow's API layer cost seconds."""
        from weir_airflow.api.endpoint import app  # noqa: PLC0415  task processes import plugins too, and never serve

        return [{"app": app, "url_prefix": URL_PREFIX, "name": "weir"}]

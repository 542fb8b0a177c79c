"""Weir's plugin for Airflow.

Invariant: every process of Airflow imports it, so only the api-server pays for the app.
"""

from __future__ import annotations

from typing import Any, Final

from airflow.plugins_manager import AirflowPlugin

from weir_airflow.api.quality_link import URL_PREFIX


def _view(name: str, href: str, destination: str, route: str) -> dict[str, str]:
    return {"name": name, "href": f"{URL_PREFIX.strip('/')}/{href}", "destination": destination, "url_route": route}


EXTERNAL_VIEWS: Final = [
    _view("Dataflows", "dataflows", "nav", "weir"),
    _view("Dataflow", "dags/{DAG_ID}/dataflow", "dag", "weir-dataflow"),
    _view("Recovery", "dags/{DAG_ID}/run?run_id={RUN_ID}", "dag_run", "weir-run"),
    _view(
        "Story",
        "dags/{DAG_ID}/task?run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}",
        "task_instance",
        "weir-task",
    ),
]
"""The tabs and the entry in the navigation; relative, so that they obey a base path of Airflow's."""


class WeirPlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's classes are not followed
    """Mounts the endpoint that compares and clears, and the pages, at `/weir`, and has Airflow's UI show the pages."""

    name = "weir"
    external_views = EXTERNAL_VIEWS

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """The app, imported when the API server reads this: FastAPI and Airflow's API layer cost seconds."""
        from weir_airflow.pages.app import app  # noqa: PLC0415  task processes import plugins too, and never serve

        return [{"app": app, "url_prefix": URL_PREFIX, "name": "weir"}]

"""The button "Data quality" of a task whose rows are checked.

Invariant: it needs neither ledger nor store, since DAG files import it and any process of Airflow may build it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

from weir.dataflow.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from weir.dataflow import Stage


URL_PREFIX: Final = "/weir"
"""The path below which Airflow's API serves the plugin."""


class QualityLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow's classes are not followed
    """Leads to the page about the checks of a task instance."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Data quality"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  # Airflow's
        """Return the address for one task instance."""
        return quality_address(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)


def quality_address(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> str:
    """Return the address at which the API server lists a task instance's checks."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
    index = -1 if map_index is None else map_index
    asked = urlencode({"run_id": run_id, "task_id": task_id, "map_index": index})
    return f"{base}{URL_PREFIX}/dags/{quote(dag_id, safe='')}/quality?{asked}"


def links_of(stages: Iterable[Stage]) -> tuple[QualityLink, ...]:
    """Return the buttons of a task: one where rows or a state of its region are checked, else none."""
    return (QualityLink(),) if any(_has_checks(stage) for stage in stages) else ()


def _has_checks(stage: Stage) -> bool:
    return bool(stage.gates) or any(isinstance(state, State) and state.grows for state in stage.states)

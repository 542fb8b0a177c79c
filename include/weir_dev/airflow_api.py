"""Calls of Airflow's public REST API by a person's account, for the demo, chaos and tests."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir.coordination.airflow_client import AirflowClient, path_of
from weir.errors import Retryable
from weir.intervals import start_of_partition

_ATTEMPTS = 20
"""How often an idempotent request is sent."""
_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskInstance:
    """A task instance as the API describes it."""

    task_id: str
    map_index: int
    run_id: str
    state: str | None
    try_number: int
    note: str

    def __str__(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


@dataclass(frozen=True, slots=True)
class DagRun:
    """A DagRun; `start` is that of its data interval or of its partition, ISO 8601."""

    run_id: str
    state: str
    start: str


class AirflowApi(AirflowClient):
    """A session of one account, which has logged in. Raises Misconfigured or Retryable as `AirflowClient`."""

    def __init__(self, url: str, username: str, password: str) -> None:
        super().__init__(url, username, password, source="the local stack")
        self.log_in()

    def has_dag(self, dag_id: str) -> bool:
        """Report whether the DAG processor has published this DAG."""
        found = self.ask("GET", _dags(), dag_id_pattern=dag_id)
        return any(dag["dag_id"] == dag_id for dag in found["dags"])

    def import_errors(self) -> list[str]:
        """Return the import errors of DAG files."""
        found = self.ask("GET", path_of("api", "v2", "importErrors"))["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in found]

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG; the request is repeated while Airflow's SQLite database is locked."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(Retryable):
                self.set_paused(dag_id, is_paused=False)
                return
            time.sleep(1)
        self.set_paused(dag_id, is_paused=False)

    def set_paused(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause or unpause the DAG."""
        self.ask("PATCH", _dags(dag_id), {"is_paused": is_paused})

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return all runs of the DAG (at most 100), by data interval."""
        found = self.ask("GET", _dags(dag_id, "dagRuns"), limit=_PAGE)["dag_runs"]
        runs = [DagRun(run["dag_run_id"], run["state"], _start(run)) for run in found]
        return sorted(runs, key=lambda run: run.start)

    def task_instances(self, dag_id: str, run_id: str = "~") -> list[TaskInstance]:
        """Return all task instances of a run, or of all runs, page by page."""
        path = _dags(dag_id, "dagRuns", run_id, "taskInstances")
        found: list[TaskInstance] = []
        while True:
            page = self.ask("GET", path, limit=_PAGE, offset=len(found))
            found += [_task_instance(one) for one in page["task_instances"]]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return sorted(found, key=lambda one: (one.run_id, one.task_id, one.map_index))

    def asset_events(self, asset: str, partition: str | None = None) -> list[dict[str, Any]]:
        """Return the extra of an asset's events (at most 100) of a partition, or of none, oldest first."""
        path = path_of("api", "v2", "assets", "events")
        found = self.ask("GET", path, name_pattern=asset, order_by="timestamp", limit=_PAGE)
        of_asset = (event for event in found["asset_events"] if event["name"] == asset)
        return [event["extra"] for event in of_asset if event["partition_key"] == partition]

    def clear(
        self, dag_id: str, run_id: str, task_id: str, map_index: int, note: str, *, even_if_running: bool = False
    ) -> list[TaskInstance]:
        """Clear one task instance and nothing downstream, as the UI's dialog does; return the cleared ones."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [[task_id, map_index]],
            "only_failed": False,
            "include_downstream": False,
            "reset_dag_runs": True,
            "prevent_running_task": not even_if_running,
            "note": note,
        }
        answer = self.ask("POST", _dags(dag_id, "clearTaskInstances"), body)
        return [_task_instance(one) for one in answer["task_instances"]]


def _start(run: dict[str, Any]) -> str:
    start = run["data_interval_start"] or start_of_partition(run["partition_key"], None, "UTC")
    return start.isoformat() if isinstance(start, datetime) else start or ""


def _dags(*segments: str) -> str:
    return path_of("api", "v2", "dags", *segments)


def _task_instance(one: dict[str, Any]) -> TaskInstance:
    return TaskInstance(
        task_id=one["task_id"],
        map_index=one["map_index"],
        run_id=one["dag_run_id"],
        state=one["state"],
        try_number=one["try_number"],
        note=one.get("note") or "",
    )

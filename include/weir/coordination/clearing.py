"""Airflow over HTTP: the plugin's endpoint clears and starts, Airflow's public REST tells of states and notes.

Invariant: a task instance is cleared only by the endpoint, which compares its try in the transaction that clears it.
"""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from weir.coordination.airflow import (
    MOST_RUNS,
    ClearAnswer,
    ClearItem,
    EarlierRun,
    OpenRun,
    SeenDag,
    SeenRun,
    UserRights,
    by_dag,
)
from weir.coordination.airflow_client import AirflowClient, path_of
from weir.errors import Misconfigured
from weir.execution.airflow_words import UNSUCCESSFUL
from weir.execution.failure_words import NOTE_LENGTH
from weir.intervals import start_of_partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weir.coordination.values import TaskKey
    from weir.execution.cadence import Cadence


NO_ROUTE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
_DATE: Final = "partition_date"
HEALTHY: Final = "healthy"
"""The status of a part of Airflow that works."""


class EndpointClearer:
    """Airflow's api-server, with Weir's plugin."""

    def __init__(self, api: AirflowClient) -> None:
        self._api = api

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Clear what matches, in one transaction a DAG and request."""
        return self._compare(wanted, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._compare(wanted, is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running that a run waits for, and answer the state that it had."""
        return str(self._ask(dag_id, "start", {"run_id": run_id})["state"])

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Ask whether Airflow has this DagRun; None where it does not know the DAG, or the answer is no success."""
        if self.seen_run(dag_id, run_id) is not None:
            return True
        return False if self._api.call("GET", path_of("api", "v2", "dags", dag_id)).is_success else None

    def note(self, key: TaskKey) -> str:
        """Read the task instance's note."""
        response = self._api.call("GET", _ti_path(key.dag_id, key.run_id, key.task_id, key.map_index))
        return "" if response.is_error else response.json()["note"] or ""

    def annotate(self, key: TaskKey, note: str) -> None:
        """Set the task instance's note."""
        path = _ti_path(key.dag_id, key.run_id, key.task_id, key.map_index)
        self._api.call("PATCH", path, {"note": note[:NOTE_LENGTH]}, update_mask="note")

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:
        """Look at a DagRun."""
        response = self._api.call("GET", _run_path(dag_id, run_id))
        if response.status_code == HTTPStatus.NOT_FOUND:
            return None
        found = response.json()
        return SeenRun(str(found["state"]), found["note"] or "")

    def seen_dag(self, dag_id: str) -> SeenDag | None:
        """Look at a DAG and at the scheduler."""
        response = self._api.call("GET", path_of("api", "v2", "dags", dag_id))
        if response.is_error:
            return None
        health = self._api.ask("GET", path_of("api", "v2", "monitor", "health"))
        dag = response.json()
        is_healthy = health["scheduler"]["status"] == HEALTHY
        return SeenDag(bool(dag["is_paused"]), is_healthy, bool(dag["has_import_errors"]))

    def pause(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause or unpause a DAG, in one request."""
        self._api.ask("PATCH", path_of("api", "v2", "dags", dag_id), {"is_paused": is_paused}, update_mask="is_paused")

    def clear_run(self, dag_id: str, run_id: str) -> int:
        """Clear all of a DagRun, in one request."""
        whole = {"dag_run_id": run_id, "only_failed": False, "prevent_running_task": True}
        body = {**whole, "run_on_latest_version": True, "dry_run": False}
        path = path_of("api", "v2", "dags", dag_id, "clearTaskInstances")
        return int(self._api.ask("POST", path, body)["total_entries"])

    def open_runs(self, dag_id: str, zone: str = "UTC") -> list[OpenRun]:
        """Return the newest DagRuns that are no success, one request a state."""
        path = path_of("api", "v2", "dags", dag_id, "dagRuns")
        found: list[dict[str, Any]] = []
        for state in UNSUCCESSFUL:
            response = self._api.call("GET", path, state=state, limit=MOST_RUNS, order_by="-run_after")
            found += [] if response.is_error else response.json()["dag_runs"]
        return [run for each in found if (run := _open_run(each, zone)) is not None]

    def run_before(self, dag_id: str, start: datetime, key: str, cadence: Cadence) -> EarlierRun | None:
        """Ask for the newest DagRun of an earlier epoch, in any state."""
        body = {"start": start.isoformat(), "key": key, "every": cadence.every, "zone": cadence.zone}
        found = self._ask(dag_id, "before", body)
        if found["run_id"] is None:
            return None
        interval = (datetime.fromisoformat(found["start"]), datetime.fromisoformat(found["end"]))
        return EarlierRun(str(found["run_id"]), interval)

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a DagRun's note."""
        self._api.call("PATCH", _run_path(dag_id, run_id), {"note": note[:NOTE_LENGTH]}, update_mask="note")

    def rights(self, dag_id: str, user: str) -> UserRights:
        """Ask what a user may do with the task instances of a DAG."""
        found = self._ask(dag_id, "rights", {"user": user})
        return UserRights(bool(found["reads"]), bool(found["edits"]), str(found["unknown"]))

    def enter_assets(self, dag_id: str, dataflow: str, sinks: Sequence[str]) -> None:
        """Have the endpoint enter the assets of sinks."""
        self._ask(dag_id, "assets", {"dataflow": dataflow, "sinks": [*sinks]})

    def announce(self, key: TaskKey, dataflow: str, events: Mapping[str, Mapping[str, Any]]) -> None:
        """Have the endpoint emit an event without a partition of each sink's asset."""
        body = {"run_id": key.run_id, "task_id": key.task_id, "dataflow": dataflow, "events": dict(events)}
        self._ask(key.dag_id, "events", body)

    def can_defer(self, pool: str) -> bool:
        """Ask whether a triggerer runs, and whether the pool counts deferred tasks."""
        health = self._api.ask("GET", path_of("api", "v2", "monitor", "health"))
        if health["triggerer"]["status"] != HEALTHY:
            return False
        return not self._api.ask("GET", path_of("api", "v2", "pools", pool))["include_deferred"]

    def _compare(self, wanted: Sequence[ClearItem], *, is_dry_run: bool) -> list[ClearAnswer]:
        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, items in by_dag(wanted):
            body = {"items": [_to_json(item) for item in items], "dry_run": is_dry_run}
            rows = self._ask(dag_id, "clear", body)["items"]
            answers.update((item, _from_json(item, row)) for item, row in zip(items, rows, strict=True))
        return [answers[item] for item in wanted]

    def _ask(self, dag_id: str, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the plugin's endpoint. Raises Misconfigured where the api-server does not serve it."""
        response = self._api.call("POST", path_of("weir", "dags", dag_id, verb), body)
        if response.status_code in NO_ROUTE:
            raise Misconfigured.of("coordination.plugin_missing", base_url=self._api.base_url)
        found: dict[str, Any] = response.json()
        return found


def _to_json(item: ClearItem) -> dict[str, Any]:
    return {
        "run_id": item.run_id,
        "task_id": item.task_id,
        "map_index": item.map_index,
        "expected_try": item.expected_try,
        **({"is_skipped": True} if item.is_skipped else {}),
        **({"note": item.note[:NOTE_LENGTH]} if item.note else {}),
    }


def _from_json(item: ClearItem, row: dict[str, Any]) -> ClearAnswer:
    return ClearAnswer(item, row["state"], row["try_number"], row["cleared"], row["ti_id"])


def _open_run(found: dict[str, Any], zone: str) -> OpenRun | None:
    start, end, date = (_time(found.get(name)) for name in ("data_interval_start", "data_interval_end", _DATE))
    if start is None or end is None:
        start = end = start_of_partition(found.get("partition_key"), date, zone)
    if start is None or end is None:
        return None
    return OpenRun(str(found["dag_run_id"]), str(found["state"]), (start, end))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _run_path(dag_id: str, run_id: str) -> str:
    return path_of("api", "v2", "dags", dag_id, "dagRuns", run_id)


def _ti_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = _run_path(dag_id, run_id) + path_of("taskInstances", task_id)
    return path if map_index < 0 else f"{path}/{map_index}"

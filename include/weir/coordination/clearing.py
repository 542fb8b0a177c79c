"""Clearing task instances over HTTP: by the plugin's endpoint, and by public REST without the plugin.

Invariant: neither clears a task instance that is running or has another try than the expected one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from weir.coordination.airflow import MOST_RUNS, ClearAnswer, ClearItem, OpenRun, SeenDag, SeenRun, by_dag
from weir.coordination.airflow_client import AirflowClient, path_of
from weir.execution.airflow_words import CLEARABLE, MISSING, UNSUCCESSFUL
from weir.execution.failure_words import NOTE_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weir.coordination.values import TaskKey


NO_ROUTE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
HEALTHY: Final = "healthy"
"""The status of a part of Airflow that works."""

_UNFINISHED_RUNS: Final = frozenset({"queued", "running"})


class EndpointClearer:
    """Clears by the plugin's endpoint, and by public REST where the endpoint is missing."""

    def __init__(self, api: AirflowClient) -> None:
        self._api = api
        self._rest = RestClearer(api)

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Clear what matches, in one transaction a DAG and request."""
        return self._ask(wanted, note, self._rest.clear, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._ask(wanted, "", lambda items, _: self._rest.inspect(items), is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running that a run waits for. Without the plugin this only answers the state."""
        response = self._api.call("POST", path_of("weir", "dags", dag_id, "start"), {"run_id": run_id})
        if response.status_code in NO_ROUTE:
            return self._rest.start(dag_id, run_id)
        return str(response.json()["state"])

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Ask by public REST whether Airflow has this DagRun."""
        return self._rest.exists(dag_id, run_id)

    def note(self, key: TaskKey) -> str:
        """Read the task instance's note, by public REST."""
        return self._rest.note(key)

    def annotate(self, key: TaskKey, note: str) -> None:
        """Set the task instance's note, by public REST."""
        self._rest.annotate(key, note)

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:
        """Look at a DagRun, by public REST."""
        return self._rest.seen_run(dag_id, run_id)

    def seen_dag(self, dag_id: str) -> SeenDag | None:
        """Look at a DAG and at the scheduler, by public REST."""
        return self._rest.seen_dag(dag_id)

    def open_runs(self, dag_id: str) -> list[OpenRun]:
        """Return the newest DagRuns that are no success, by public REST."""
        return self._rest.open_runs(dag_id)

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a DagRun's note, by public REST."""
        self._rest.annotate_run(dag_id, run_id, note)

    def can_defer(self, pool: str) -> bool:
        """Ask by public REST."""
        health = self._api.ask("GET", path_of("api", "v2", "monitor", "health"))
        if health["triggerer"]["status"] != HEALTHY:
            return False
        return not self._api.ask("GET", path_of("api", "v2", "pools", pool))["include_deferred"]

    def _ask(
        self,
        wanted: Sequence[ClearItem],
        note: str,
        instead: Callable[[Sequence[ClearItem], str], list[ClearAnswer]],
        *,
        is_dry_run: bool,
    ) -> list[ClearAnswer]:
        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, items in by_dag(wanted):
            body = {"items": [_to_json(item) for item in items], "note": note[:NOTE_LENGTH], "dry_run": is_dry_run}
            response = self._api.call("POST", path_of("weir", "dags", dag_id, "clear"), body)
            if response.status_code in NO_ROUTE:
                found = instead(items, note)
            else:
                rows = response.json()["items"]
                found = [_from_json(item, row) for item, row in zip(items, rows, strict=True)]
            answers.update((answer.item, answer) for answer in found)
        return [answers[item] for item in wanted]


class RestClearer:
    """Clears by Airflow's public REST: only in active runs, and never a running task instance.

    REST knows no expected try: between the look and the clear another caller may clear, and then the task instance is
    cleared twice. A finished run is not cleared, since REST could only queue it, and then `max_active_runs` may hold it
    back; its clears remain pending.
    """

    def __init__(self, api: AirflowClient) -> None:
        self._api = api

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Look at each item, then clear those that match, one request an item: a conflict refuses a whole request."""
        return [self._clear(answer, note) for answer in self.inspect(wanted)]

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        active = {(item.dag_id, item.run_id) for item in wanted}
        active = {run for run in active if self._run_state(*run) in _UNFINISHED_RUNS}
        return [self._look(item, is_active=(item.dag_id, item.run_id) in active) for item in wanted]

    def start(self, dag_id: str, run_id: str) -> str:
        """Answer the run's state: public REST cannot start a queued run."""
        return self._run_state(dag_id, run_id)

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Ask whether Airflow has this DagRun; None where it does not know the DAG, or the answer is no success."""
        if self._run_state(dag_id, run_id) != MISSING:
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
        return SeenDag(bool(response.json()["is_paused"]), health["scheduler"]["status"] == HEALTHY)

    def open_runs(self, dag_id: str) -> list[OpenRun]:
        """Return the newest DagRuns that are no success, one request a state."""
        path = path_of("api", "v2", "dags", dag_id, "dagRuns")
        found: list[dict[str, Any]] = []
        for state in UNSUCCESSFUL:
            response = self._api.call("GET", path, state=state, limit=MOST_RUNS, order_by="-run_after")
            found += [] if response.is_error else response.json()["dag_runs"]
        return [_open_run(each) for each in found if each["data_interval_start"] and each["data_interval_end"]]

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a DagRun's note."""
        self._api.call("PATCH", _run_path(dag_id, run_id), {"note": note[:NOTE_LENGTH]}, update_mask="note")

    def _run_state(self, dag_id: str, run_id: str) -> str:
        seen = self.seen_run(dag_id, run_id)
        return MISSING if seen is None else seen.state

    def _look(self, item: ClearItem, *, is_active: bool) -> ClearAnswer:
        response = self._api.call("GET", _ti_path(item.dag_id, item.run_id, item.task_id, item.map_index))
        if response.status_code == HTTPStatus.NOT_FOUND:
            return ClearAnswer(item, MISSING, 0, cleared=False)
        found = response.json()
        state, try_number = found["state"], int(found["try_number"])
        has_expected_try = item.expected_try in {None, try_number}
        is_clearable = state in CLEARABLE or (item.is_skipped and state == "skipped")
        is_cleared = is_active and has_expected_try and is_clearable
        return ClearAnswer(item, state, try_number, cleared=is_cleared, ti_id=str(found.get("id", "")))

    def _clear(self, seen: ClearAnswer, note: str) -> ClearAnswer:
        if not seen.cleared:
            return seen
        item = seen.item
        body = {
            "dag_run_id": item.run_id,
            "task_ids": [item.task_id if item.map_index < 0 else [item.task_id, item.map_index]],
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": False,
            "prevent_running_task": True,
            "note": note[:NOTE_LENGTH],
        }
        response = self._api.call("POST", path_of("api", "v2", "dags", item.dag_id, "clearTaskInstances"), body)
        if response.status_code == HTTPStatus.CONFLICT:
            return replace(seen, state="running", cleared=False)
        # A task instance that Airflow does not know is cleared with 200 and an empty list.
        was_cleared = response.status_code == HTTPStatus.OK and bool(response.json()["task_instances"])
        return replace(seen, cleared=was_cleared)


def _to_json(item: ClearItem) -> dict[str, Any]:
    return {
        "run_id": item.run_id,
        "task_id": item.task_id,
        "map_index": item.map_index,
        "expected_try": item.expected_try,
        **({"is_skipped": True} if item.is_skipped else {}),
    }


def _from_json(item: ClearItem, row: dict[str, Any]) -> ClearAnswer:
    return ClearAnswer(item, row["state"], row["try_number"], row["cleared"], row.get("ti_id", ""))


def _open_run(found: dict[str, Any]) -> OpenRun:
    start, end = (datetime.fromisoformat(found[f"data_interval_{each}"]) for each in ("start", "end"))
    return OpenRun(str(found["dag_run_id"]), str(found["state"]), (start, end))


def _run_path(dag_id: str, run_id: str) -> str:
    return path_of("api", "v2", "dags", dag_id, "dagRuns", run_id)


def _ti_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = _run_path(dag_id, run_id) + path_of("taskInstances", task_id)
    return path if map_index < 0 else f"{path}/{map_index}"

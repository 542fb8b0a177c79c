"""Airflow's public REST API, as a person's browser uses it.

Invariant: an answer that is not a success is an error that shows what Airflow said.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from weir.errors import Misconfigured, Retryable

_ASKED = 20
"""How often something is asked that can be asked twice."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskInstance:
    """One task instance as the API describes it."""

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
    """One DagRun; `start` is that of its data interval, ISO 8601."""

    run_id: str
    state: str
    start: str


class AirflowApi:
    """A session of one account."""

    def __init__(self, url: str, username: str, password: str) -> None:
        # The environment's proxy is none of the loopback's.
        self._client = httpx.Client(base_url=url, timeout=30.0, trust_env=False)
        answer = self._send("POST", "/auth/token", {"username": username, "password": password})
        self._client.headers["Authorization"] = f"Bearer {answer['access_token']}"

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG processor has published this DAG."""
        found = self._send("GET", "/api/v2/dags", dag_id_pattern=dag_id)
        return any(dag["dag_id"] == dag_id for dag in found["dags"])

    def import_errors(self) -> list[str]:
        """What is wrong with DAG files."""
        found = self._send("GET", "/api/v2/importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in found]

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG; asked again where Airflow's database, if it is SQLite, is locked."""
        for _ in range(_ASKED - 1):
            with suppress(Retryable):
                self._unpause(dag_id)
                return
            time.sleep(1)
        self._unpause(dag_id)

    def _unpause(self, dag_id: str) -> None:
        self._send("PATCH", f"/api/v2/dags/{quote(dag_id)}", {"is_paused": False})

    def runs(self, dag_id: str) -> list[DagRun]:
        """All runs of the DAG (at most 100), by data interval."""
        found = self._send("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns", limit=100)["dag_runs"]
        runs = [DagRun(run["dag_run_id"], run["state"], run["data_interval_start"] or "") for run in found]
        return sorted(runs, key=lambda run: run.start)

    def has_run(self, dag_id: str, run_id: str) -> bool | None:
        """Whether there is such a run; None where the DAG is not known, either."""
        dag = f"/api/v2/dags/{quote(dag_id, safe='')}"
        if self._is_there(f"{dag}/dagRuns/{quote(run_id, safe='')}"):
            return True
        return False if self._is_there(dag) else None

    def task_instances(self, dag_id: str, run_id: str = "~") -> list[TaskInstance]:
        """All task instances of a run, or of all runs, whatever their number."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances"
        found: list[TaskInstance] = []
        while True:
            page = self._send("GET", path, limit=100, offset=len(found))
            found += [_task_instance(one) for one in page["task_instances"]]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return sorted(found, key=lambda one: (one.run_id, one.task_id, one.map_index))

    def asset_events(self, asset: str) -> list[dict[str, Any]]:
        """What the events of an asset say besides (at most 100), oldest first."""
        found = self._send("GET", "/api/v2/assets/events", name_pattern=asset, order_by="timestamp", limit=100)
        return [event["extra"] for event in found["asset_events"] if event["name"] == asset]

    def clear(
        self, dag_id: str, run_id: str, task_id: str, map_index: int, note: str, *, even_if_running: bool = False
    ) -> list[TaskInstance]:
        """Clear one task instance and nothing downstream, as the UI's dialog does; what was cleared."""
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
        answer = self._send("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", body)
        return [_task_instance(one) for one in answer["task_instances"]]

    def compare_and_clear(
        self, dag_id: str, items: list[dict[str, Any]], note: str, *, is_dry_run: bool
    ) -> list[dict[str, Any]]:
        """Ask Weir's endpoint to clear what has finished and has the expected try; one answer for each item."""
        body = {"items": items, "note": note, "dry_run": is_dry_run}
        found: list[dict[str, Any]] = self._send("POST", f"/weir/dags/{quote(dag_id)}/clear", body)["items"]
        return found

    def start_run(self, dag_id: str, run_id: str) -> str:
        """Ask Weir's endpoint to set a queued run running; the state that it was found in."""
        return str(self._send("POST", f"/weir/dags/{quote(dag_id)}/start", {"run_id": run_id})["state"])

    def _is_there(self, path: str) -> bool:
        """Whether the path is not answered with a plain "not found"."""
        try:
            answer = self._client.get(path)
        except httpx.HTTPError as error:
            raise Retryable(f"Airflow did not answer GET {path}: {error!r}") from error
        if answer.is_success or answer.status_code == httpx.codes.NOT_FOUND:
            return answer.is_success
        kind = Retryable if answer.is_server_error else Misconfigured
        raise kind(f"Airflow answered GET {path} with {answer.status_code}: {answer.text[:500]}")

    def _send(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, json=body, params=query or None)
        except httpx.HTTPError as error:
            raise Retryable(f"Airflow did not answer {method} {path}: {error!r}") from error
        if not answer.is_success:
            kind = Retryable if answer.is_server_error else Misconfigured
            raise kind(f"Airflow answered {method} {path} with {answer.status_code}: {answer.text[:500]}")
        found: dict[str, Any] = answer.json()
        return found


def _task_instance(one: dict[str, Any]) -> TaskInstance:
    return TaskInstance(
        task_id=one["task_id"],
        map_index=one["map_index"],
        run_id=one["dag_run_id"],
        state=one["state"],
        try_number=one["try_number"],
        note=one.get("note") or "",
    )

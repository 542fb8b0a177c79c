"""Dataflows of several shapes on a real stack, and the alignment that `weir checkpoints` shows of each epoch.

Invariant: one DagRun runs at a time, and all subtasks of a stage may run at once, so that none waits for a slot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from weir_dev.airflow_api import AirflowApi
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Database, StackRequest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.5

Shape = tuple[int, int]
"""A parallelism and a number of shuffles."""


class AlignmentStack:
    """Airflow, one Connect server, and a DAG for each shape."""

    def __init__(self, folder: Path, shapes: list[Shape]) -> None:
        self._shapes, self._days = shapes, 0
        self.stack = Stack(
            StackRequest.owned_by_this_process(
                folder=folder,
                dags=(HERE / "dags",),
                plugins=ROOT / "plugins",
                cache=ROOT / ".weir" / "cache",
                environment={
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
                    "WEIR_BENCHMARK_SHAPES": json.dumps(shapes),
                },
                parallelism=max(parallelism for parallelism, _ in shapes),
                database=Database.SQLITE,
            )
        )

    def __enter__(self) -> AlignmentStack:
        self.stack.start()
        self.api = AirflowApi(self.stack.url, PERSON, self.stack.credentials.person_password)
        for name in map(name_of, self._shapes):
            self._wait(partial(self._has_dag, name), f"the DAG {name}")
            self.api.unpause(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.stop()

    def epoch(self, shape: Shape) -> list[dict[str, Any]]:
        """Run the next epoch of a dataflow; answers the alignment of each of its tasks that keep state."""
        dag, start = name_of(shape), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=self._days)
        self._days += 1
        body = {
            "logical_date": start.isoformat(),
            "data_interval_start": start.isoformat(),
            "data_interval_end": (start + timedelta(days=1)).isoformat(),
        }
        run_id = self.api.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"]
        self._wait(lambda: self._state(dag, run_id) in {"success", "failed"}, f"{dag} {run_id} to end")
        assert self._state(dag, run_id) == "success", f"{dag} {run_id} failed"
        newest = self._weir("checkpoints", dag)["checkpoints"][-1]
        assert newest["epoch"] == f"{start:%Y%m%dT%H%M%SZ}"
        found: list[dict[str, Any]] = self._weir("checkpoints", dag, "--id", str(newest["number"]))["alignment"]
        return found

    def _weir(self, *words: str) -> dict[str, Any]:
        """What the command says at this stack."""
        places = {"WEIR_LEDGER": self.stack.ledger_url, "WEIR_STORE": self.stack.store_url}
        command = [sys.executable, "-m", "weir.cli.main", *words, "--json"]
        done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _state(self, dag: str, run_id: str) -> str:
        return str(self.api.ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")["state"])

    def _has_dag(self, name: str) -> bool:
        errors = self.api.import_errors()
        assert not errors, errors[0]
        return bool(self.api.has_dag(name))

    @staticmethod
    def _wait(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_SECONDS:.0f} s for {what}")
            time.sleep(LOOK_SECONDS)


def name_of(shape: Shape) -> str:
    """The dataflow of a shape."""
    parallelism, shuffles = shape
    return f"aligned_{parallelism}_{shuffles}"


def measured(shape: Shape, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """The alignment of an epoch by shuffle: of that subtask of each which has waited longest."""
    parallelism, shuffles = shape
    by_shuffle = [
        [task for task in tasks if task["region"].startswith(f"shuffle{number}")] for number in range(1, shuffles + 1)
    ]
    assert [len(some) for some in by_shuffle] == [parallelism] * shuffles
    return {
        "seconds": [round(max(task["seconds"] for task in some), 3) for some in by_shuffle],
        "computed": [round(max(task["computed"] for task in some), 3) for some in by_shuffle],
        "stragglers": [some[0]["straggler"] for some in by_shuffle],
    }


def together(shape: Shape, epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """The measurement of a shape: of each epoch a list by shuffle."""
    parallelism, shuffles = shape
    names = ("seconds", "computed", "stragglers")
    return {"parallelism": parallelism, "shuffles": shuffles} | {
        name: [each[name] for each in epochs] for name in names
    }

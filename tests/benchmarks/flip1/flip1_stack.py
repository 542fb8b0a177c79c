"""The query of `flip1_work` on a real stack, while processes of its tasks are killed.

Invariant: for one seed and one mean time between failures, the kills come at the same seconds of the run in each arm.
Nothing is killed if no task runs in that second: as a slot of a cluster that has nothing to do.
"""

from __future__ import annotations

import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from flip1_work import expected
from tests.chaos.task_processes import task_processes

from weir.store.catalogue import published
from weir.store.store import Store
from weir_dev.airflow_api import AirflowApi
from weir_dev.demo.evidence import rows_of
from weir_dev.stack.airflow_components import SCHEDULERS
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.processes import send
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Database, StackRequest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ARMS = ("region", "full", "plain")
"""The DAGs of `dags/flip1.py`."""

PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.2


class Flip1Stack:
    """Airflow, one Connect server, and the three DAGs, of which one runs at a time."""

    def __init__(self, folder: Path) -> None:
        self._plain, self._days = folder / "plain", 0
        self.stack = Stack(
            StackRequest.owned_by_this_process(
                folder=folder / "stack",
                dags=(HERE / "dags",),
                plugins=ROOT / "plugins",
                cache=ROOT / ".weir" / "cache",
                environment={"PYTHONPATH": str(HERE), "WEIR_BENCHMARK_FOLDER": str(self._plain)},
                spark_cores=12,  # all tasks sleep in Spark at once, also those that nobody waits for any more
                database=Database.SQLITE,
            )
        )

    def __enter__(self):
        self.stack.start()
        self.api = AirflowApi(self.stack.url, PERSON, self.stack.credentials.person_password)
        self.store = Store.open(self.stack.store_url)
        for arm in ARMS:
            self._wait(lambda arm=arm: self._has_dag(arm), f"the DAG {arm}")
            self.api.unpause(arm)
        return self

    def __exit__(self, *_):
        self.stack.stop()

    def run(self, arm, seconds, mean=None, seed=0, given_up_after=PATIENCE_SECONDS):
        """Run an arm with stages of so many `seconds`, and kills every `mean` seconds, or none; answers what it took.

        A run that takes longer than `given_up_after` is ended, and its `seconds` are None.
        """
        epoch, run_id, began = self._trigger(arm, seconds)
        kills = self._kill_until_the_end(arm, run_id, began, moments(mean, seed), given_up_after)
        run, tasks = self._dag_run(arm, run_id), self.api.task_instances(arm, run_id)
        is_done = run["state"] == "success"
        if is_done:
            assert self._rows(arm, epoch, run_id) == expected(), f"{arm} {run_id} published other rows"
        self._wait(lambda: not self._processes(), "the tasks' processes to end")
        return {
            "arm": arm,
            "work": seconds,
            "mean": mean,
            "seed": seed,
            "seconds": round(_at(run["end_date"]) - _at(run["queued_at"]), 2) if is_done else None,
            "given_up_after": given_up_after,
            "kills": kills,
            "tasks": len(tasks),
            "tries": sum(one.try_number for one in tasks),
        }

    def _kill_until_the_end(self, arm, run_id, began, moments, given_up_after):
        """Kill at the moments; answers how often a process was there."""
        kills, moment, choice = 0, *next(moments)
        while self._dag_run(arm, run_id)["state"] not in {"success", "failed"}:
            passed = time.monotonic() - began
            if passed > given_up_after:
                self.api.ask("PATCH", f"/api/v2/dags/{arm}/dagRuns/{run_id}", {"state": "failed"})
            if passed >= moment:
                kills += self._kill(choice)
                moment, choice = next(moments)
            time.sleep(LOOK_SECONDS)
        return kills

    def _kill(self, choice):
        running = self._processes()
        if running:
            send(running[int(choice * len(running))].task, signal.SIGKILL)
        return bool(running)

    def _processes(self):
        """Those of the tasks that run, by pid."""
        schedulers = filter(None, map(self.stack.state.process, SCHEDULERS))
        return [one for scheduler in schedulers for one in task_processes(scheduler)]

    def _rows(self, arm, epoch, run_id):
        if arm == "plain":
            rows = pq.read_table(self._plain / run_id / "revenue" / "0").to_pylist()
        else:
            rows = rows_of(self.store, published(self.store, arm, "sums", epoch))
        return sorted(rows, key=lambda row: row["customer"])

    def _trigger(self, arm, seconds):
        """Start a run of the next day; answers its epoch, its id, and when it was started."""
        start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=self._days)
        self._days += 1
        body = {
            "logical_date": start.isoformat(),
            "data_interval_start": start.isoformat(),
            "data_interval_end": (start + timedelta(days=1)).isoformat(),
            "conf": {"seconds": seconds},
        }
        run = self.api.ask("POST", f"/api/v2/dags/{arm}/dagRuns", body)
        return f"{start:%Y%m%dT%H%M%SZ}", run["dag_run_id"], time.monotonic()

    def _dag_run(self, arm, run_id):
        return self.api.ask("GET", f"/api/v2/dags/{arm}/dagRuns/{run_id}")

    def _has_dag(self, arm):
        errors = self.api.import_errors()
        assert not errors, errors[0]
        return self.api.has_dag(arm)

    @staticmethod
    def _wait(condition, what):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_SECONDS:.0f} s for {what}")
            time.sleep(LOOK_SECONDS)


def moments(mean, seed):
    """Seconds since the start of a run, at exponentially distributed intervals, each with a number that chooses a task.

    The intervals of all means are the same ones, stretched: a longer mean is not by chance the worse one.
    """
    chance, at = random.Random(seed), 0.0
    while mean:
        at += mean * chance.expovariate(1)
        yield at, chance.random()
    yield float("inf"), 0.0


def _at(text):
    return datetime.fromisoformat(text).timestamp()

"""The stack around the small dataflow `ladder`, as tests drive it. Invariant: every wait has a condition and an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from tests.chaos.field import Field, Work

from weir.errors import Retryable
from weir.ledger.attempts import newest_attempts
from weir.ledger.database.tables import AttemptRow, LeaseRow, ResultRow, RunRow
from weir.store.catalogue import published
from weir.topology.regions import RegionId
from weir_dev.demo.evidence import rows_of
from weir_dev.files import write_atomically
from weir_dev.stack.credentials import PERSON

FIRST_DAY = "20240101T000000Z"


def declare(control: Path, settings: dict[str, Any]) -> None:
    """Say what the DAGs of the shared stack look like."""
    write_atomically(control, json.dumps(settings))
    parse_again(control)


def parse_again(control: Path) -> None:
    """Have Airflow read the DAG file anew: it looks at all files each second, but only at when they were changed.

    So that a parse which has begun already is not the last, the time is ahead.
    """
    file = control.parent / "dags" / "ladder.py"
    if file.exists():
        os.utime(file, (time.time() + 3,) * 2)


class LadderStack(Field):
    """A running stack, and what a person and a saboteur do to one DAG of it."""

    LOOK_SECONDS = 0.5
    """Between two looks at what is waited for."""

    PATIENCE_SECONDS = 600.0

    # The control file

    def change(self, **settings: Any) -> None:
        """Change what the dataflow reads, of every epoch, and what it looks like."""
        super().change(**settings)
        parse_again(self.control)

    def hold(self, stage: str) -> None:
        """Let the stage's subtasks stop in the middle of their attempts."""
        (self.control.parent / f"hold-{stage}").touch()

    def let_go(self, stage: str) -> None:
        """Let them go on."""
        (self.control.parent / f"hold-{stage}").unlink(missing_ok=True)
        for reached in self.control.parent.glob(f"reached-{stage}-*"):
            reached.unlink()

    def await_reached(self, stage: str, subtask: int = 0) -> int:
        """Wait until a subtask has come to the hold; answers the id of its task process."""
        reached = self.control.parent / f"reached-{stage}-{subtask}"
        self.wait(lambda: reached.exists() and reached.read_text(), f"{stage}[{subtask}] at its hold")
        return int(reached.read_text())

    # Airflow

    def run(self, day: str = "2024-01-01") -> str:
        """The run id of a day, as soon as there is one."""
        self.wait(lambda: any(run.start.startswith(day) for run in self.api.runs(self.dag)), f"a run of {day}")
        return next(run.run_id for run in self.api.runs(self.dag) if run.start.startswith(day))

    def tries(self, run_id: str) -> dict[str, int]:
        """The try number of each task instance."""
        return {str(each): each.try_number for each in self.api.task_instances(self.dag, run_id)}

    def states(self, run_id: str) -> dict[str, str | None]:
        """The state of each task instance."""
        return {str(each): each.state for each in self.api.task_instances(self.dag, run_id)}

    def await_state(self, run_id: str, task: str, *states: str) -> None:
        """Wait until a task instance has one of the states."""
        self.wait(lambda: self.states(run_id).get(task) in states, f"{task} to be {' or '.join(states)}")

    def await_green(self, run_id: str) -> None:
        """Wait until the run and all of its task instances are successful, and nothing is owed."""
        self.wait(lambda: self._is_green(run_id), f"{run_id} to be green")

    def _is_green(self, run_id: str) -> bool:
        state = next(run.state for run in self.api.runs(self.dag) if run.run_id == run_id)
        instances = self.api.task_instances(self.dag, run_id) if state == "failed" else ()
        assert state != "failed", f"{run_id} failed: {[(str(each), each.state, each.note) for each in instances]}"
        return state == "success" and set(self.states(run_id).values()) <= {"success", "removed"} and not self.owed()

    def note(self, run_id: str, task: str) -> str:
        """What stands at a task instance for people to read."""
        return next(each.note for each in self.api.task_instances(self.dag, run_id) if str(each) == task)

    def clear(self, run_id: str, task_id: str, map_index: int = -1) -> None:
        """Clear one task instance by Airflow's REST API, without its downstream."""
        assert self.api.clear(self.dag, run_id, task_id, map_index, "cleared by a test")

    def again(self, run_id: str, before: dict[str, int]) -> dict[str, int]:
        """How many tries each task instance has had since `before`; those without any are left out."""
        after = self.tries(run_id)
        return {task: after[task] - before.get(task, 0) for task in after if after[task] != before.get(task, 0)}

    # Weir

    def weir(self, *words: str) -> str:
        """What Weir's command line says, asked by a person at this stack."""
        with self.typing(*words) as command:
            out, error = command.communicate()
        assert command.returncode == 0, f"{out}{error}"
        return str(out)

    def typing(self, *words: str) -> subprocess.Popen[str]:
        """A command that a person at this stack has typed, while it runs."""
        stack = self.stack
        api = stack.url.replace("://", f"://{PERSON}:{stack.credentials.person_password}@")
        return subprocess.Popen(
            [sys.executable, "-m", "weir.cli.main", *words],
            env={**os.environ, "WEIR_LEDGER": stack.ledger_url, "WEIR_STORE": stack.store_url, "WEIR_API": api},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def owed(self) -> list[str]:
        """Clears that are still owed."""
        from weir.ledger.clears import open_clears

        with self.ledger.transaction() as session:
            return [f"{row.task_id}[{row.map_index}] {row.reason}" for row in open_clears(session, self.dag)]

    def let_pass(self, time: timedelta) -> None:
        """As if all that has happened in the runs had happened so much earlier."""
        with self.ledger.transaction(self.dag) as session:
            runs = session.query(RunRow).filter_by(dataflow=self.dag).all()
            for run in runs:
                assert run.closed_at is not None, run.id
                run.created_at, run.closed_at = run.created_at - time, run.closed_at - time
            for row in session.query(AttemptRow).filter(AttemptRow.run.in_([run.id for run in runs])):
                assert row.ended_at is not None, row.id
                row.began_at, row.ended_at = row.began_at - time, row.ended_at - time
                row.heard_at = None if row.heard_at is None else row.heard_at - time
            for row in session.query(LeaseRow).join(ResultRow, ResultRow.id == LeaseRow.result):
                row.expires_at -= time

    def folder(self, stage: str, subtask: int) -> Path:
        """The folder of the current result of a partition."""
        with self.ledger.transaction() as session:
            of_first_day = session.query(ResultRow).filter_by(run=f"{self.dag}@{FIRST_DAY}", is_current=True)
            row = of_first_day.filter_by(stage=stage, subtask=subtask).one()
        return Path(self.stack.store_url.removeprefix("file://")) / row.folder

    def attempts(self, region: str, subtask: int) -> list[tuple[int, str, str | None]]:
        """Try, state and failure of each attempt."""
        with self.ledger.transaction() as session:
            rows = newest_attempts(session, f"{self.dag}@{FIRST_DAY}")[RegionId(region, subtask)]
        return [(row.try_number, row.state, row.failure) for row in rows]

    def totals(self, epoch: str = FIRST_DAY) -> list[dict[str, int]]:
        """The published rows, by bucket."""
        pointer = published(self.store, self.dag, "sums", epoch)
        assert pointer is not None
        return sorted(rows_of(self.store, pointer), key=lambda row: row["bucket"])

    def digests(self, epoch: str = FIRST_DAY) -> list[str]:
        """The digests of the published partitions."""
        pointer = published(self.store, self.dag, "sums", epoch)
        assert pointer is not None
        return [each.digest for each in pointer.partitions]

    def failures_since(self, region: str, subtask: int, try_number: int) -> list[str | None]:
        """How the attempts behind a try ended; None for one that did not fail."""
        return [failure for number, _, failure in self.attempts(region, subtask) if number > try_number]

    def work(self, task: str) -> Work:
        """The running process of a task instance of the first day, as soon as there is one."""
        wanted = f"{task} of 2024-01-01"
        self.wait(lambda: any(work.task.name == wanted for work in self.running_tasks()), f"a process of {task}")
        return next(work for work in self.running_tasks() if work.task.name == wanted)

    def start_slow(self, run_id: str, subtask: int, milliseconds_a_row: int = 20_000) -> int:
        """Clear a subtask of `doubled` that will dwell on its rows in Spark, for minutes if nobody stops it.

        Answers the id of the process that called the stage. `await_spark` waits until a Connect server is at it.
        """
        self.change(milliseconds_a_row=milliseconds_a_row)
        self.hold("doubled")
        self.clear(run_id, "doubled", subtask)
        pid = self.await_reached("doubled", subtask)
        self.change(milliseconds_a_row=0)
        self.let_go("doubled")
        return pid

    def await_spark(self) -> None:
        """Wait until the Connect server runs a job."""
        self.wait(lambda: self.running_spark_jobs() > 0, "a running Spark job")

    def running_spark_jobs(self) -> int:
        """How many jobs the Spark server is running, as its own pages say."""
        return len(self._spark("jobs?status=running"))

    def busy_executors(self) -> set[str]:
        """The ids of the Spark server's executors that run a task, as its own pages say."""
        return {one["id"] for one in self._spark("executors") if one["activeTasks"] > 0}

    def _spark(self, what: str) -> list[dict[str, object]]:
        pages = f"http://127.0.0.1:{self.stack.state.ports['spark-ui']}/api/v1/applications"
        (application,) = httpx.get(pages, trust_env=False, timeout=60).json()
        return httpx.get(f"{pages}/{application['id']}/{what}", trust_env=False, timeout=60).json()

    def wait(self, condition, what: str, seconds: float | None = None) -> None:
        """Wait for a condition, also while a component is on its way up again."""
        seconds = self.PATIENCE_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while not _holds(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}")
            time.sleep(self.LOOK_SECONDS)


def _holds(condition) -> bool:
    try:
        return bool(condition())
    except Retryable:
        return False

"""A running stack with the dataflow `ladder` of tests/flows, as the chaos run sees it and acts on it.

Invariant: it reads ledger, store and processes without Airflow, so that it sees the same while a component is down.
"""

from __future__ import annotations

import importlib.util
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select
from tests.chaos.task_processes import TaskProcess, task_processes

from weir.errors import WeirError
from weir.ledger.clears import task_of
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import run_by_id, runs_of
from weir.ledger.snapshot import run_state
from weir.store.store import Store
from weir.topology.ids import OWN_RUN
from weir.topology.regions import RegionId
from weir_dev.airflow_api import AirflowApi, DagRun
from weir_dev.demo.evidence import epoch_key
from weir_dev.files import write_atomically
from weir_dev.project import checkout
from weir_dev.stack.airflow_components import SCHEDULERS
from weir_dev.stack.credentials import PERSON

if TYPE_CHECKING:
    from weir.execution.run_state import CurrentResult, RunState
    from weir_dev.stack.stack import Stack


DAG: Final = "ladder"

CALM: Final = "ladder_calm"
"""The same dataflow under another name: it runs when all faults are over."""

SINK: Final = "sums"
FIRST_DAY: Final = date(2024, 1, 1)
FLOWS: Final = Path("tests") / "flows"


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance of the ladder, with a readable name."""

    run_id: str
    task_id: str
    map_index: int
    name: str


@dataclass(frozen=True, slots=True)
class Work:
    """A running task instance and its processes."""

    task: Task
    process: TaskProcess


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as the ledger knows it, with the task instance of each region."""

    id: str
    epoch: str
    run_id: str
    state: RunState
    tasks: dict[RegionId, Task]

    @property
    def results(self) -> list[CurrentResult]:
        """The current results of this run, by partition; those of earlier runs that it reads are theirs."""
        return [self.state.results[each] for each in sorted(self.state.results) if each.run == OWN_RUN]


class Field:
    """The stack, its ledger and store, and the control file of the dataflow."""

    def __init__(self, stack: Stack, control: Path, dag: str = DAG, sink: str = SINK) -> None:
        self.stack, self.control = stack, control
        self.dag, self.sink = dag, sink
        self.store = Store.open(stack.store_url)
        self.ledger = Ledger.open(stack.ledger_url)

    def close(self) -> None:
        """Close the connections."""
        self.ledger.close()
        self.api.close()

    @cached_property
    def api(self) -> AirflowApi:
        """Airflow's API, as the administrator."""
        return AirflowApi(self.stack.url, PERSON, self.stack.credentials.person_password)

    def settings(self) -> dict[str, Any]:
        """Return what the dataflow reads now."""
        found: dict[str, Any] = json.loads(self.control.read_text())
        return found

    def change(self, **settings: Any) -> None:
        """Change what the dataflow reads, of every epoch, and what it looks like."""
        write_atomically(self.control, json.dumps({**self.settings(), **settings}))

    def change_epoch(self, epoch: str, **settings: Any) -> None:
        """Change what the dataflow reads of one epoch."""
        epochs = self.settings().get("epochs", {})
        self.change(epochs={**epochs, epoch: {**epochs.get(epoch, {}), **settings}})

    def days(self) -> list[date]:
        """Return the days of all runs that shall be there."""
        last = date.fromisoformat(self.settings()["last_day"])
        return [FIRST_DAY + timedelta(days=number) for number in range((last - FIRST_DAY).days + 1)]

    def dag_runs(self) -> list[DagRun]:
        """Return the runs that Airflow has; none while it does not answer."""
        try:
            return self.api.runs(self.dag)
        except WeirError:
            return []

    def runs(self) -> list[RunView]:
        """Return the runs that the ledger has and that were pinned. Raises Retryable."""
        with self.ledger.transaction() as session:
            found = []
            for row in runs_of(session, self.dag):
                if row.pinned is None:
                    continue
                run = run_by_id(session, row.id)
                state = run_state(session, run)
                tasks = {}
                for region in state.topology.region_ids():
                    task_id, index = task_of(session, run, region)
                    tasks[region] = Task(row.run_id, task_id, index, f"{region} of {day_of(row.epoch)}")
                found.append(RunView(row.id, row.epoch, row.run_id, state, tasks))
            return found

    def running_tasks(self) -> list[Work]:
        """Return the task instances of all dataflows that run now, with their processes. Raises Retryable."""
        schedulers = filter(None, map(self.stack.state.process, SCHEDULERS))
        processes = {one.ti_id: one for scheduler in schedulers for one in task_processes(scheduler)}
        with self.ledger.transaction() as session:
            query = select(AttemptRow, RunRow).join(RunRow, RunRow.id == AttemptRow.run)
            rows = session.execute(query.where(AttemptRow.ti_id.in_(processes))).tuples().all()
        works = {
            attempt.ti_id: Work(
                Task(
                    run.run_id,
                    attempt.task_id,
                    attempt.map_index,
                    f"{RegionId(attempt.region, attempt.subtask)} of {day_of(run.epoch)}",
                ),
                processes[attempt.ti_id],
            )
            for attempt, run in rows
        }
        return sorted(works.values(), key=lambda work: work.task.name)

    def deliver(self, clears: list[Task], note: str) -> bool:
        """Clear task instances as a person does, also running ones; return whether none is left in `clears`."""
        with suppress(WeirError):
            while clears:
                task = clears[0]
                self.api.clear(self.dag, task.run_id, task.task_id, task.map_index, note, even_if_running=True)
                clears.pop(0)
        return not clears

    def expected(self, epoch: str) -> list[dict[str, int]]:
        """Return what plain Python computes of an epoch and all before it."""
        path = checkout() / FLOWS / "ladder.py"
        spec = importlib.util.spec_from_file_location("weir_chaos_ladder", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        epochs = [each for each in map(epoch_key, self.days()) if each <= epoch]
        rows: list[dict[str, int]] = module.expected_running_totals(self.settings(), epochs)
        return rows


def day_of(epoch: str) -> str:
    """Return the day of an epoch as text."""
    return f"{epoch[:4]}-{epoch[4:6]}-{epoch[6:8]}"

"""The demo: five days under Airflow's scheduler, one result lost, and what heals it.

Invariant: it never says that all is well unless every published row was compared with two other computations of it.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from weir.cli.airflow_api import AirflowApi, DagRun, TaskInstance
from weir.cli.credentials import PERSON
from weir.cli.demo_evidence import (
    LostPartition,
    expected_rows,
    find_partition,
    first_difference,
    published_rows,
    what_the_ledger_says,
)
from weir.cli.demo_report import DayCheck, Healing, print_checks, print_healing, print_loss
from weir.cli.progress import Progress
from weir.cli.project import project_root, state_folder
from weir.cli.stack import Stack
from weir.cli.stack_state import StackRequest
from weir.errors import Misconfigured, Retryable
from weir.ledger.ledger import Ledger
from weir.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

DAG = "flight_delays"
SINK = "delays"
FIRST_DAY = date(2013, 1, 1)
DAYS = tuple(FIRST_DAY + timedelta(days=number) for number in range(5))
DAMAGED_DAY = DAYS[2]
LOST_STAGE, LOST_SUBTASK, LOST_KEY = "join", 0, "carrier"
CONSUMER, CONSUMER_SUBTASK = "by_carrier", 0

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1200.0
_UNFINISHED = {None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule"}


def run_demo(console: Console) -> bool:
    """Run the demo in a stack of its own; whether everything is as it should be."""
    progress = Progress(console)
    folder = state_folder() / "demo"
    with progress.phase("starting Airflow and Spark"):
        stack = _new_stack(progress)
        stack.start()
    try:
        console.print(
            f"To watch: [bold]{stack.url}[/]  login [bold]{PERSON}[/], "
            f"password [bold]{stack.credentials.person_password}[/], until the demo ends"
        )
        return _Story(stack, console, progress).tell()
    finally:
        with progress.phase("stopping Airflow and Spark"):
            stack.stop()
        console.print(f"Logs, results and the ledger of the demo are in [bold]{folder}[/] until the next one.")


def _new_stack(progress: Progress) -> Stack:
    root = project_root()
    folder = state_folder() / "demo"
    request = StackRequest.owned_by_this_process(
        folder=folder,
        dags=(root / "dags",),
        plugins=root / "plugins",
        cache=state_folder() / "cache",
        environment={"WEIR_FLIGHTS_LAST_DAY": DAYS[-1].isoformat()},
    )
    stack = Stack(request, on_change=lambda state: progress.say(state.describe()))
    if stack.is_running():
        raise Misconfigured(f"another demo is running, at {stack.url}: wait until it ends")
    stack.stop()  # what a demo that was killed has left
    shutil.rmtree(folder, ignore_errors=True)
    return stack


@dataclass(frozen=True, slots=True)
class _Damage:
    """The world before the damage, and what was destroyed."""

    run: DagRun
    lost: LostPartition
    before: list[TaskInstance]
    rows: list[dict[str, object]]


class _Story:
    def __init__(self, stack: Stack, console: Console, progress: Progress) -> None:
        self._stack = stack
        self._console = console
        self._progress = progress
        self._api = AirflowApi(stack.url, PERSON, stack.credentials.person_password)
        self._store = Store.open(stack.store_url)

    def tell(self) -> bool:
        with self._progress.phase(f"running {len(DAYS)} days of {DAG}"):
            self._run_days()
        damage = self._damage()
        with self._progress.phase("healing"):
            self._await_healed(damage)
        healing = self._look_at_healing(damage)
        print_healing(self._console, healing)
        with self._progress.phase("comparing the published reports, row by row"):
            checks = self._compare(damage)
        return print_checks(self._console, checks)

    def _run_days(self) -> None:
        for _ in _patiently(f"the DAG {DAG} to appear"):
            errors = self._api.import_errors()
            if errors:
                raise Misconfigured(f"Airflow cannot import a DAG file: {errors[0]}")
            if self._api.has_dag(DAG):
                break
            self._progress.say("Airflow is reading the DAG files")
        self._api.unpause(DAG)
        for _ in _patiently(f"{len(DAYS)} days of {DAG}"):
            runs = self._api.runs(DAG)
            instances = self._api.task_instances(DAG)
            self._refuse_failures(instances)
            done = [run for run in runs if run.state == "success"]
            if len(done) == len(DAYS):
                return
            self._progress.say(_doing(instances, f"{len(done)} of {len(DAYS)} days done"))

    def _damage(self) -> _Damage:
        run = next(run for run in self._api.runs(DAG) if run.start.startswith(DAMAGED_DAY.isoformat()))
        before = self._api.task_instances(DAG)
        rows = published_rows(self._store, DAG, SINK, DAMAGED_DAY)
        ledger = Ledger.open(self._stack.ledger_url)
        lost = find_partition(ledger, DAG, DAMAGED_DAY, LOST_STAGE, LOST_SUBTASK, LOST_KEY)
        ledger.close()
        self._store.delete_folder(lost.folder)
        cleared = self._api.clear(DAG, run.run_id, CONSUMER, CONSUMER_SUBTASK, "the demo clears one consumer")
        if len(cleared) != 1:
            raise Misconfigured(f"Airflow should have cleared {CONSUMER}[{CONSUMER_SUBTASK}], but cleared {cleared}")
        print_loss(self._console, DAMAGED_DAY, lost, f"{CONSUMER}[{CONSUMER_SUBTASK}]")
        return _Damage(run, lost, before, rows)

    def _await_healed(self, damage: _Damage) -> None:
        old = {(one.task_id, one.map_index): one.try_number for one in damage.before if one.run_id == damage.run.run_id}
        for _ in _patiently("the run to heal"):
            instances = self._api.task_instances(DAG, damage.run.run_id)
            self._refuse_failures(instances)
            consumer = next(one for one in instances if (one.task_id, one.map_index) == (CONSUMER, CONSUMER_SUBTASK))
            ran_again = consumer.try_number > old[(CONSUMER, CONSUMER_SUBTASK)]
            state = next(run.state for run in self._api.runs(DAG) if run.run_id == damage.run.run_id)
            if ran_again and state == "success" and all(one.state == "success" for one in instances):
                return
            self._progress.say(_doing(instances, f"the run of {DAMAGED_DAY} is {state}"))

    def _look_at_healing(self, damage: _Damage) -> Healing:
        old = {(one.run_id, one.task_id, one.map_index): one.try_number for one in damage.before}
        now = self._api.task_instances(DAG)
        tries = {one: (old.get((one.run_id, one.task_id, one.map_index), 0), one.try_number) for one in now}
        again = {one: tried for one, tried in tries.items() if tried[0] != tried[1]}
        of_day = [one for one in now if one.run_id == damage.run.run_id]
        spared = [one for one in of_day if one not in again]
        ledger = Ledger.open(self._stack.ledger_url)
        reasons = what_the_ledger_says(ledger, DAG, DAMAGED_DAY, of_day)
        ledger.close()
        strangers = sum(one not in again for one in now) - len(spared)
        return Healing(again, reasons, spared, strangers, len(DAYS) - 1)

    def _compare(self, damage: _Damage) -> list[DayCheck]:
        checks = []
        for day in DAYS:
            self._progress.say(f"comparing {day}")
            rows = published_rows(self._store, DAG, SINK, day)
            difference = first_difference(rows, expected_rows(day))
            if difference is None and day == DAMAGED_DAY:
                difference = first_difference(rows, damage.rows)
            checks.append(DayCheck(day, len(rows), day == DAMAGED_DAY, difference))
        return checks

    def _refuse_failures(self, instances: list[TaskInstance]) -> None:
        failed = [one for one in instances if one.state in {"failed", "upstream_failed"}]
        if failed:
            raise Misconfigured(
                f"{failed[0]} of {failed[0].run_id} is {failed[0].state}, and nothing of the demo should be: "
                f"read its log below {self._stack.task_logs}"
            )


def _doing(instances: list[TaskInstance], so_far: str) -> str:
    """What runs now, in a few words."""
    done = sum(one.state == "success" for one in instances)
    running = [str(one) for one in instances if one.state == "running"]
    unfinished = sum(one.state in _UNFINISHED for one in instances)
    names = f": {', '.join(running[:5])}" if running else ""
    return f"{so_far}; {done} task instances done, {unfinished} to go{names}"


def _patiently(what: str) -> Iterator[None]:
    """Poll until the caller is content. Raises Retryable when that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_SECONDS)
    raise Retryable(f"waited {PATIENCE_SECONDS / 60:.0f} minutes for {what}: this machine may be too slow or too busy")

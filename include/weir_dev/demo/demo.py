"""The demo: two days under Airflow's scheduler, one result lost, and the recovery from that.

Invariants: it deletes nothing that it does not hold and has not verified; and it never says that all is well unless
exactly the expected task instances ran again, and every published row was compared with two other computations of it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from rich.console import Console

from weir.cli.progress import Progress
from weir.coordination.services import Services
from weir.errors import Misconfigured, Retryable
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir_dev.airflow_api import AirflowApi, DagRun, TaskInstance
from weir_dev.demo.evidence import (
    Report,
    Row,
    difference_of_reports,
    expected_rows,
    first_difference,
    pending_clears,
    published_report,
    rows_in_lake,
    rows_in_table,
    what_the_ledger_says,
)
from weir_dev.demo.hold import HeldDay, LostPartition, held_day, partition_to_lose, verified_day
from weir_dev.demo.report import (
    DayCheck,
    Healing,
    changed_tries,
    needed_several_tries,
    picture_of,
    print_checks,
    print_cleared,
    print_found,
    print_healing,
    print_lost,
    reason_in_short,
    unexpected_reruns,
)
from weir_dev.demo.stack import DAG, DAYS, new_stack
from weir_dev.stack.airflow_environment import lake_folder, needs_postgres, postgres_folder
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.postgres import NAME as POSTGRES
from weir_dev.stack.postgres import connection_to_reports
from weir_dev.stack.state import Database

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import date
    from pathlib import Path

    from weir_dev.stack.stack import Stack

SINK: Final = "delays"
DAMAGED_DAY: Final = DAYS[0]
LOST = "join[0]"
CONSUMER, CONSUMER_SUBTASK = "by_carrier", 0
EXPECTED_TRIES: Final = {f"{CONSUMER}[{CONSUMER_SUBTASK}]": 2, LOST: 1}
"""The further tries that the loss costs: the consumer finds the result missing, its producer makes it again, and the
consumer reads it. No other task instance has a reason to run."""

POLL_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 1800.0
_UNFINISHED: Final = frozenset(
    {None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule"}
)
_T = TypeVar("_T")


def run_demo(console: Console, database: Database = Database.POSTGRES, picture: Path | None = None) -> bool:
    """Run the demo in a stack of its own, and report whether everything is as it should be.

    What it prints of the recovery is written to `picture`, an SVG file, if everything is.
    """
    progress = Progress(console)
    with progress.phase("starting Airflow and Spark"):
        stack = new_stack(lambda state: progress.say(state.describe()), database)
        stack.start()
    try:
        console.print(
            f"To watch: [bold]{stack.url}[/]  login [bold]{PERSON}[/], "
            f"password [bold]{stack.credentials.person_password}[/], until the demo ends"
        )
        recorded = Console(file=console.file, width=console.width, record=True)
        story = _Story(stack, recorded, progress)
        try:
            is_right = story.tell()
            if picture is not None and is_right:
                picture.write_text(picture_of(recorded))
            return is_right
        finally:
            story.close()
    finally:
        with progress.phase("stopping Airflow and Spark"):
            stack.stop()
        console.print(f"Logs, results and databases of the demo are in [bold]{stack.folder}[/] until the next one.")


@dataclass(frozen=True, slots=True)
class _Before:
    """The run to damage, and all task instances and published reports before the loss."""

    run: DagRun
    instances: list[TaskInstance]
    reports: dict[date, Report]


class _Story:
    def __init__(self, stack: Stack, console: Console, progress: Progress) -> None:
        self._stack = stack
        self._console = console
        self._progress = progress
        password = stack.credentials.person_password
        self._api = self._await("Airflow to let us in", lambda: AirflowApi(stack.url, PERSON, password))
        self._ledger = Ledger.open(stack.ledger_url)
        self._services = Services(ledger=self._ledger, store=Store.open(stack.store_url))

    def close(self) -> None:
        """Give the connections back."""
        self._ledger.close()
        self._api.close()

    def tell(self) -> bool:
        with self._progress.phase(f"running {len(DAYS)} days of {DAG}"):
            self._await(f"the DAG {DAG}", self._has_dag)
            self._api.unpause(DAG)
            before = self._await(f"{len(DAYS)} days of {DAG}", self._all_done)
        with ThreadPoolExecutor(1) as pandas, held_day(self._services, DAG, DAMAGED_DAY) as held:
            lost = self._damage(before, held)
            expected = {day: pandas.submit(expected_rows, day) for day in DAYS}
            with self._progress.phase("recovering"):
                now = self._await("the end of the recovery", lambda: self._recovered(before))
            healing = self._look_at_healing(before, now, lost)
            print_healing(self._console, healing)
            with self._progress.phase("comparing the published reports, row by row"):
                checks = self._compare(before, expected)
        unexpected = unexpected_reruns(healing.again, before.run.run_id, EXPECTED_TRIES, DAMAGED_DAY.isoformat())
        places = "its files and its table" if needs_postgres(self._stack.request) else "its files"
        return print_checks(self._console, checks, sorted(EXPECTED_TRIES), unexpected, places)

    def _has_dag(self) -> bool | None:
        errors = self._api.import_errors()
        if errors:
            raise Misconfigured.of("dev.dag_import_failed", errors=errors[0])
        self._progress.say("Airflow is reading the DAG files")
        return self._api.has_dag(DAG) or None

    def _all_done(self) -> _Before | None:
        instances = self._api.task_instances(DAG)
        self._refuse_failures(instances)
        begun = {one.run_id for one in instances}
        done = begun - {one.run_id for one in instances if one.state != "success"}
        self._progress.say(_doing(instances, f"{len(done)} of {len(DAYS)} days done"))
        if len(done) < len(DAYS) or not self._has_ended(instances):
            return None
        run = next(run for run in self._api.runs(DAG) if run.start.startswith(DAMAGED_DAY.isoformat()))
        reports = {day: published_report(self._services.store, DAG, SINK, day) for day in DAYS}
        return _Before(run, instances, reports)

    def _has_ended(self, instances: list[TaskInstance]) -> bool:
        """Report whether all runs have ended, with these task instances and with nothing left to clear."""
        are_done = all(one.state == "success" for one in instances)
        return (
            are_done
            and {run.state for run in self._api.runs(DAG)} == {"success"}
            and not pending_clears(self._ledger, DAG)
            # What was cleared since is seen here: a clear is pending until Airflow has carried it out.
            and self._api.task_instances(DAG) == instances
        )

    def _damage(self, before: _Before, held: HeldDay) -> LostPartition:
        """Delete a result that was found as it should be, and clear one of its consumers."""
        lost = partition_to_lose(held, verified_day(self._services, held), LOST, CONSUMER)
        print_found(self._console, DAMAGED_DAY, lost, len(before.instances), needed_several_tries(before.instances))
        print_lost(self._console, DAMAGED_DAY, lost, self._delete(lost))
        self._await(f"Airflow to clear {CONSUMER}[{CONSUMER_SUBTASK}]", lambda: self._clear_consumer(before))
        print_cleared(self._console, DAMAGED_DAY, f"{CONSUMER}[{CONSUMER_SUBTASK}]")
        return lost

    def _delete(self, lost: LostPartition) -> int:
        """Delete the files of a result from the store, and return their number."""
        files = list(self._services.store.list(lost.folder))
        if not files:
            raise Misconfigured.of("dev.nothing_to_delete", lost=lost.name, damaged_day=DAMAGED_DAY, folder=lost.folder)
        self._services.store.delete_folder(lost.folder)
        return len(files)

    def _clear_consumer(self, before: _Before) -> bool | None:
        """Clear the consumer once: an answer that got lost may have been that to a request that was carried out."""
        here = next(one for one in before.instances if _is_consumer(one, before))
        now = next(one for one in self._api.task_instances(DAG, before.run.run_id) if _is_consumer(one, before))
        if now.state != "success" or now.try_number != here.try_number:
            return True
        note = "the demo clears one consumer"
        cleared = self._api.clear(DAG, before.run.run_id, CONSUMER, CONSUMER_SUBTASK, note)
        if [str(one) for one in cleared] != [f"{CONSUMER}[{CONSUMER_SUBTASK}]"]:
            raise Misconfigured.of(
                "dev.not_cleared", consumer=CONSUMER, consumer_subtask=CONSUMER_SUBTASK, cleared=cleared
            )
        return True

    def _recovered(self, before: _Before) -> list[TaskInstance] | None:
        """Return all task instances as soon as the consumer has run again and all runs have ended; else None."""
        instances = self._api.task_instances(DAG)
        self._refuse_failures(instances)
        here = next(one for one in before.instances if _is_consumer(one, before))
        consumer = next(one for one in instances if _is_consumer(one, before))
        of_day = [one for one in instances if one.run_id == before.run.run_id]
        self._progress.say(_doing(of_day, f"the run of {DAMAGED_DAY}"))
        has_run = consumer.try_number > here.try_number
        return instances if has_run and self._has_ended(instances) else None

    def _look_at_healing(self, before: _Before, now: list[TaskInstance], lost: LostPartition) -> Healing:
        again = changed_tries(before.instances, now)
        of_day = [one for one in now if one.run_id == before.run.run_id]
        spared = [one for one in of_day if one not in again]
        recorded = what_the_ledger_says(self._ledger, DAG, DAMAGED_DAY, of_day)
        reasons = {one: reason_in_short(reason, lost) for one, reason in recorded.items()}
        elsewhere = sum(one not in again for one in now) - len(spared)
        return Healing(again, reasons, spared, elsewhere, len(DAYS) - 1)

    def _compare(self, before: _Before, expected: dict[date, Future[list[Row]]]) -> list[DayCheck]:
        checks = []
        for day in DAYS:
            self._progress.say(f"comparing {day}")
            found = published_report(self._services.store, DAG, SINK, day)
            difference = first_difference(found.rows, expected[day].result())
            difference = difference or difference_of_reports(found, before.reports[day])
            difference = difference or self._difference_in_targets(found.rows, day)
            checks.append(DayCheck(day, found.version, len(found.rows), difference))
        return checks

    def _difference_in_targets(self, expected: list[Row], day: date) -> str | None:
        """Return the first difference of the report's files and of its table, if there is one."""
        stack = self._stack
        found = {"its files": rows_in_lake(lake_folder(stack.folder), day)}
        if needs_postgres(stack.request):
            database = connection_to_reports(postgres_folder(stack.folder), stack.state.ports[POSTGRES])
            found["its table"] = rows_in_table(database, day)
        differences = {place: first_difference(rows, expected) for place, rows in found.items()}
        return next((f"{place}: {each}" for place, each in differences.items() if each is not None), None)

    def _refuse_failures(self, instances: list[TaskInstance]) -> None:
        failed = [one for one in instances if one.state in {"failed", "upstream_failed"}]
        if failed:
            raise Misconfigured.of(
                "dev.task_failed",
                failed=failed[0],
                run_id=failed[0].run_id,
                state=failed[0].state,
                task_logs=self._stack.task_logs,
            )

    def _await(self, what: str, ask: Callable[[], _T | None]) -> _T:
        """Ask until there is an answer, also where Airflow or the ledger does not answer for a while.

        Raises Retryable when that takes too long.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        last = ""
        while time.monotonic() < deadline:
            try:
                found = ask()
            except Retryable as error:
                found, last = None, f" Last: {error}"
                self._progress.say(f"asking again: {error}")
            if found is not None:
                return found
            time.sleep(POLL_SECONDS)
        raise Retryable.of("dev.waited_too_long", patience_seconds=PATIENCE_SECONDS / 60, what=what, last=last)


def _is_consumer(one: TaskInstance, before: _Before) -> bool:
    return (one.run_id, one.task_id, one.map_index) == (before.run.run_id, CONSUMER, CONSUMER_SUBTASK)


def _unfinished(instances: list[TaskInstance]) -> int:
    return sum(one.state in _UNFINISHED for one in instances)


def _doing(instances: list[TaskInstance], so_far: str) -> str:
    """Describe what runs now."""
    done = sum(one.state == "success" for one in instances)
    running = [str(one) for one in instances if one.state == "running"]
    names = f": {', '.join(running[:5])}" if running else ""
    return f"{so_far}; {done} task instances done, {_unfinished(instances)} to go{names}"

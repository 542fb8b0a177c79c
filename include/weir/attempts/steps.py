"""Steps that several drivers take: settling, notes, waits, job and report, and heartbeats.

Invariants: what a task does for others (clears, notes, releases, notifications) never decides how the task itself ends:
where it fails, the log says so, and any later process does it. A job and a report are whole files, and are written
once; the report is all that an engine answers. A heartbeat stops only work that could not be committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from weir.attempts.notes import annotate, try_to_annotate
from weir.attempts.ports import Log, TaskEngine, TaskPorts
from weir.coordination.airflow import ClearItem
from weir.coordination.settled import Due
from weir.coordination.values import Awaiting, BeginRequest, Begun, Exhausted, NotInRecord, PassedOver, TaskKey
from weir.errors import Conflict, Fenced, Internal, LedgerBehind, WeirError
from weir.execution.failure_class import FailureClass
from weir.execution.failure_words import SAYS, note_of_failure
from weir.execution.run_state import CLOSE
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import JOB_NAME, RegionReport, SparkJob
from weir.secrecy import without_secrets
from weir.store.store import Store

T = TypeVar("T")

HEARTBEAT_SECONDS: Final = 30.0
"""How often an attempt asks whether it may commit still; a heartbeat is one short transaction of the ledger."""

CATCHES_UP: Final = 3
"""How often a begin has the ledger catch up: the store may show more when it looks again."""

CLOSED_ANEW: Final = "weir: a task of this run was cleared, and the run is closed after it"

_LEFT_OUT: Final = ("skipped", "upstream_failed")
"""Airflow's states of a closing task that has not run, and would not."""


def settle(task: TaskPorts, dataflow: str, due: Due) -> None:
    """Settle what is due of the dataflow, and log what has come of it."""
    for line in task.settling.settle(dataflow, due).lines():
        task.log(line)


def try_to_have_run_closed(task: TaskPorts, request: BeginRequest) -> None:
    """Clear the closing task of a run that a person has marked and then cleared in part.

    Airflow skips the tasks that have not run when a DagRun is marked, and counts a skipped leaf as a success: the run
    would end as one though it is not closed. While this task runs, the DagRun cannot end.
    """
    if not request.clear_number:
        return
    key = request.key
    item = ClearItem(key.dag_id, key.run_id, request.task_prefix + CLOSE.name, -1, None)
    try:
        (found,) = task.airflow.inspect([item])
        if found.state in _LEFT_OUT:
            task.airflow.clear([replace(item, expected_try=found.try_number, is_skipped=True, note=CLOSED_ANEW)])
            task.log(f"{item.task_id} was {found.state}; it was cleared, so that the run is closed after this task")
    except WeirError as error:
        task.log(f"It is not known whether {item.task_id} will run after this task: {error}")


def ready_outcome(task: TaskPorts, begin: Callable[[], T | Awaiting]) -> T:
    """Begin until the outcome is not `Awaiting`, and wait in between.

    A ledger that has lost commits catches up with the store first.
    """
    while True:
        outcome = _begun(task, begin)
        if not isinstance(outcome, Awaiting):
            return outcome
        task.wait(outcome)


def _begun(task: TaskPorts, begin: Callable[[], T]) -> T:
    for _ in range(CATCHES_UP):
        try:
            return begin()
        except LedgerBehind as behind:
            task.log(str(behind))
            task.log(task.settling.catch_up(behind.dataflow))
    return begin()


def end_without_result(task: TaskPorts, key: TaskKey, outcome: object) -> dict[str, Any]:
    """End a try that computes nothing.

    It fails where its restarts are exhausted, and is skipped where its run is passed over; else return its
    summary.
    """
    if isinstance(outcome, Exhausted):
        what, kind = "its process was killed", FailureClass.KILLED.value
        try_to_annotate(task, key, note_of_failure(what, outcome.reason, {}, delay=None, kind=kind))
        # No retry policy is asked: the restart strategy has answered already.
        task.fail(outcome.reason)
    if isinstance(outcome, (NotInRecord, PassedOver)):
        task.log(outcome.note)
        annotate(task.airflow, key, f"{SAYS}{outcome.note}")
        if isinstance(outcome, PassedOver):
            task.skip(outcome.note)
        return {"note": outcome.note}
    raise Internal.of("attempts.illegal_end", key=key, name=type(outcome).__name__)


def write_job(store: Store, job: SparkJob) -> None:
    """Write the job into the attempt's folder, where people and spark-submit read it.

    Raises AlreadyExists or Retryable.
    """
    store.create(f"{job.folder}/{JOB_NAME}", to_json(job))


def read_report(store: Store, job: SparkJob) -> RegionReport:
    """Read the job's report. Raises NotFound, Misconfigured (another version), Corrupt or Retryable."""
    return from_json(RegionReport, store.read(job.report))


class Heartbeat:
    """The heartbeats of an attempt: they renew its leases, and stop its work once its commit would be refused."""

    def __init__(self, task: TaskPorts, engine: TaskEngine, begun: Begun) -> None:
        self._task, self._engine, self._begun = task, engine, begun
        self._is_computing = False
        self.refusal: Conflict | Fenced | None = None
        """Why the work was stopped."""

    def beat(self) -> None:
        """Take one heartbeat, from any thread; where it fails, the next one is long before the leases end."""
        attempt = self._begun.attempt.id
        try:
            self._task.coordinator.heartbeat(self._begun)
        except (Conflict, Fenced) as refusal:
            if self._is_computing:  # else the commit is about to raise the same
                self.refusal = self.refusal or refusal
                self._task.log(f"The Spark work of {attempt} is stopped, since it could not be committed: {refusal}")
                self._engine.stop()
        except WeirError as error:
            self._task.log(f"A heartbeat of {attempt} failed; the next one is soon: {error}")

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let heartbeats stop the work of the block; raise why they did, where it ended because of that."""
        self._is_computing = True
        try:
            yield
        except Exception as error:
            if self.refusal is None:
                raise
            raise self.refusal from error
        finally:
            self._is_computing = False


@contextmanager
def repeated(beat: Callable[[], None], every_seconds: float, log: Log) -> Iterator[None]:
    """Call `beat` from time to time, in a thread, until the block ends; whatever it raises is logged."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(every_seconds):
            try:
                beat()
            except Exception as error:  # noqa: BLE001  else the thread would end, and the leases with it
                log(f"A heartbeat failed; the next one is soon: {without_secrets(f'{type(error).__name__}: {error}')}")

    thread = threading.Thread(target=repeat, name="weir-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

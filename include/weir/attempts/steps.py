"""Steps that several drivers take.

Invariant: what a task does for others (pending clears, notes, releases) never decides how the task itself ends: where
it fails, the log says so, and any later process does it.

The job and the report of one computation, in the store.

Invariant: both are whole files that nothing writes twice. The job's is for people, and for engines that start a process
of their own from it; the report's is all that an engine answers.

The read leases of an attempt, while it computes. Invariant: they outlive it by less than one lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from weir.attempts.coordinator import Coordinator
from weir.attempts.ports import Airflow, Log, TaskPorts
from weir.coordination.values import Attempt, Awaiting, Exhausted, NotInRecord, TaskKey
from weir.errors import Internal, WeirError
from weir.formats.codec import region_job_to_json, region_report_from_json
from weir.formats.region_job import JOB_NAME, RegionReport, SparkJob
from weir.store.store import Store

T = TypeVar("T")


def deliver_clears(coordinator: Coordinator, airflow: Airflow, dataflow: str | None, log: Log) -> int:
    """Deliver the pending clears of one dataflow or of all; answer how many remain.

    Raises Retryable or Misconfigured.
    """
    settled = coordinator.settle(airflow, dataflow)
    for each in settled:
        task = f"{each.task.task_id}[{each.task.map_index}] in {each.task.run_id}"
        log(f"Owed clear of {task}: {each.outcome} ({each.reason})")
    return sum(not each.is_settled for each in settled)


def try_to_deliver_clears(task: TaskPorts, dataflow: str) -> None:
    """Deliver the dataflow's pending clears; where that fails, they remain pending."""
    try:
        deliver_clears(task.coordinator, task.airflow, dataflow, task.log)
    except WeirError as error:
        task.log(f"Clears remain owed: {error}")


def try_to_annotate(task: TaskPorts, key: TaskKey, note: str) -> None:
    """Set the task instance's note; it ends as it does also where that fails."""
    try:
        task.airflow.annotate(key, note)
    except WeirError as error:
        task.log(f"No note was left at the task instance: {error}")


def try_to_release(task: TaskPorts, dataflow: str, runs: Iterable[str] | None = None) -> None:
    """Release and delete results that nothing needs, in `runs` or in all; where that fails, upkeep does it."""
    try:
        deleted = task.coordinator.release(dataflow, runs)
    except WeirError as error:
        task.log(f"What nobody needs any more is still there: {error}")
        return
    if deleted:
        size = sum(each.bytes for each in deleted)
        task.log(f"Released {len(deleted)} result partition(s) that nobody needs any more: {size} bytes")


def ready_outcome(task: TaskPorts, begin: Callable[[], T | Awaiting]) -> T:
    """Begin until the outcome is not `Awaiting`, and wait in between."""
    while True:
        outcome = begin()
        if not isinstance(outcome, Awaiting):
            return outcome
        task.wait(outcome)


def end_without_result(task: TaskPorts, key: TaskKey, outcome: object) -> dict[str, Any]:
    """End a try that computes nothing: fail it where its restarts are exhausted, else answer its summary."""
    if isinstance(outcome, Exhausted):
        try_to_annotate(task, key, f"Weir: killed, not tried again. {outcome.reason}")
        # No retry policy is asked: the restart strategy has answered already.
        task.fail(outcome.reason)
    if isinstance(outcome, NotInRecord):
        task.log(outcome.note)
        task.airflow.annotate(key, outcome.note)
        return {"note": outcome.note}
    raise Internal(f"{key} cannot end with {type(outcome).__name__}")


def write_job(store: Store, job: SparkJob) -> None:
    """Write the job's record into the attempt's folder. Raises AlreadyExists or Retryable."""
    store.create(f"{job.folder}/{JOB_NAME}", region_job_to_json(job))


def read_report(store: Store, job: SparkJob) -> RegionReport:
    """Read the job's report. Raises NotFound, Misconfigured (another version), Corrupt or Retryable."""
    return region_report_from_json(store.read(job.report))


RENEWAL_SECONDS: Final = 600.0


@contextmanager
def renewed(
    coordinator: Coordinator, attempt: Attempt, log: Log, every_seconds: float = RENEWAL_SECONDS
) -> Iterator[None]:
    """Prolong the attempt's leases from time to time, in a thread, until the block ends."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(every_seconds):
            try:
                coordinator.renew(attempt)
            except WeirError as error:  # the next beat comes long before the lease ends
                log(f"The read leases of {attempt.id} were not prolonged and will be soon: {error}")

    thread = threading.Thread(target=renew, name="weir-renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

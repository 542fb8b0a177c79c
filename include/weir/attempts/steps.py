"""Steps that several drivers take.

Invariant: what a task does for others (pending clears, notes, releases) never decides how the task itself ends: where
it fails, the log says so, and any later process does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from weir.attempts.ports import Airflow, Log, TaskPorts
from weir.coordinator.coordinator import Coordinator
from weir.coordinator.values import Awaiting, Exhausted, NotInRecord, TaskKey
from weir.errors import Internal, WeirError

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

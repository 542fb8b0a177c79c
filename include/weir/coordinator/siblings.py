"""The columns of the partitions of one result.

Invariant: an attempt commits other columns than its siblings have only while the whole stage is running again.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.coordinator.awaiting import clear_item
from weir.coordinator.clearing import ClearAnswer, Clearer
from weir.coordinator.services import Services
from weir.coordinator.settle import FINISHED
from weir.coordinator.values import Begun
from weir.errors import Conflict, Misconfigured
from weir.ledger.results import NewResult
from weir.ledger.snapshot import run_state
from weir.recovery.run_state import RunState
from weir.results.schemas import other_schemas
from weir.topology.regions import PartitionId


def require_equal_schemas(
    services: Services, begun: Begun, results: Sequence[NewResult], clearer: Clearer
) -> frozenset[str]:
    """Raise Misconfigured if a sibling that is not about to run again has other columns than these results.

    Answers the attempts that have other columns, and are about to run again.
    """
    if not any(_has_siblings(begun, result.partition) for result in results):
        return frozenset()
    with services.ledger.transaction() as session:
        state = run_state(session, begun.run, begun.topology)
        unlike = {other: result for result in results for other in _unlike(state, result)}
        items = {partition: clear_item(session, begun.run, state.producer(partition)) for partition in unlike}
    if not unlike:
        return frozenset()
    answers = dict(zip(items, clearer.inspect(list(items.values())), strict=True))
    finished = sorted(partition for partition, answer in answers.items() if _has_ended(state, partition, answer))
    if finished:
        one = unlike[finished[0]]
        raise Misconfigured(
            f"{one.partition} has other columns or types than {', '.join(map(str, finished))}: another version of "
            f"stage {one.partition.stage} has made these. Clear the whole stage {one.partition.stage}, so that all of "
            "its subtasks run again with the present one. Nothing was committed"
        )
    return frozenset(state.results[each].attempt for each in unlike)


def require_none_since(before: RunState, results: Sequence[NewResult], known: frozenset[str]) -> None:
    """Raise Conflict if a sibling has committed other columns since they were compared. `before` is the run now."""
    for result in results:
        for partition in _unlike(before, result):
            attempt = before.results[partition].attempt
            if attempt not in known:
                raise Conflict(
                    f"{partition} of {attempt} has come with other columns than {result.partition} meanwhile"
                )


def _has_ended(state: RunState, partition: PartitionId, answer: ClearAnswer) -> bool:
    """Also where Airflow still calls the try running that has committed: its process is about to end."""
    is_ending = answer.state == "running" and answer.try_number == state.region(state.producer(partition)).newest_try
    return is_ending or answer.state in FINISHED


def _has_siblings(begun: Begun, partition: PartitionId) -> bool:
    return len(begun.topology.partitions_of(partition.stage, partition.layout)) > 1


def _unlike(state: RunState, result: NewResult) -> list[PartitionId]:
    """Siblings with other columns whose producers are not known to be at work."""
    siblings = {
        each: state.results[each].digest
        for each in state.topology.partitions_of(result.partition.stage, result.partition.layout)
        if each != result.partition and each in state.results and not state.region(state.producer(each)).at_work
    }
    return list(other_schemas(siblings, result.digest))

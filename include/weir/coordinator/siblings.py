"""The columns of the partitions of one result.

Invariant: an attempt commits other columns than its siblings have only while the whole stage is running again.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.coordinator.awaiting import clear_item
from weir.coordinator.clearing import Clearer
from weir.coordinator.services import Services
from weir.coordinator.settle import FINISHED
from weir.coordinator.values import Begun
from weir.errors import Misconfigured
from weir.ledger.results import NewResult
from weir.ledger.snapshot import run_state
from weir.recovery.run_state import RunState
from weir.results.schemas import other_schemas
from weir.topology.regions import PartitionId, RegionId


def require_equal_schemas(services: Services, begun: Begun, results: Sequence[NewResult], clearer: Clearer) -> None:
    """Raise Misconfigured if a sibling that is not about to run again has other columns than these results."""
    if not any(_has_siblings(begun, result.partition) for result in results):
        return
    with services.ledger.transaction() as session:
        state = run_state(session, begun.run, begun.topology)
        unlike = {other: result for result in results for other in _unlike(state, result)}
        items = {partition: clear_item(session, begun.run, state.producer(partition)) for partition in unlike}
    if not unlike:
        return
    answers = dict(zip(items, clearer.inspect(list(items.values())), strict=True))
    finished = sorted(partition for partition, answer in answers.items() if answer.state in FINISHED)
    if finished:
        one = unlike[finished[0]]
        raise Misconfigured(
            f"{one.partition} has other columns or types than {', '.join(map(str, finished))}: another version of "
            f"stage {one.partition.stage} has made these. Clear the whole stage {one.partition.stage}, so that all of "
            "its subtasks run again with the present one. Nothing was committed"
        )


def _has_siblings(begun: Begun, partition: PartitionId) -> bool:
    return len(begun.topology.partitions_of(partition.stage, partition.layout)) > 1


def _unlike(state: RunState, result: NewResult) -> list[PartitionId]:
    """Siblings with other columns whose producers are not known to be at work."""
    siblings = {
        each: state.results[each].digest
        for each in state.topology.partitions_of(result.partition.stage, result.partition.layout)
        if each != result.partition and each in state.results and not _is_at_work(state, state.producer(each))
    }
    return list(other_schemas(siblings, result.digest))


def _is_at_work(state: RunState, region: RegionId) -> bool:
    return state.region(region).at_work

"""Finds the consumers that must run again because a commit replaced a result that they had read.

Invariant 3: after the clears of a commit, no finished consumer is left that read content other than the current one.
Consumers downstream of a stale consumer are suspended: they become valid again with it, or its own commit clears them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.dataflow.state import OnReprocess
from weir.execution.run_state import CurrentResult, ReadResult, ReadSet, RunState
from weir.formats.manifest import digest_version, is_chain
from weir.topology.regions import PartitionId, RegionId, Topology

USUAL_CAUSES = (
    "current_timestamp, rand, uuid or monotonically_increasing_id; row_number, limit or first over rows whose order is "
    "not total; sums of floating-point numbers; reads of services or files outside of Weir"
)
"""The usual reasons why equal inputs give unequal results."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The new result of a commit; `differs_from` names an earlier attempt whose result from equal inputs differs."""

    partition: PartitionId
    attempt: str
    digest: str
    differs_from: str | None = None


def restarts_consumers(topology: Topology, stage: str) -> bool:
    """Report whether consumers of `stage` restart with it, whatever its digest (Flink's rule)."""
    dataflow = topology.dataflow
    return dataflow.consumers is Consumers.ALWAYS or not dataflow.stage(stage).deterministic


def clears_consumers(topology: Topology) -> bool:
    """Report whether Weir clears consumers at all."""
    return topology.dataflow.failover is not FailoverStrategy.INDIVIDUAL


def clears_later_epochs(topology: Topology) -> bool:
    """Report whether Weir clears the regions of a run whose inputs from an earlier epoch have changed."""
    return clears_consumers(topology) and topology.dataflow.on_reprocess is OnReprocess.CASCADE


def stale_consumers(state: RunState, replaced: Mapping[PartitionId, Replacement]) -> dict[RegionId, str]:
    """Return the finished consumers, in the run of `state`, that a commit makes run again, each with the reason.

    `state` is the run before the commit.
    """
    answers: dict[int, str | None] = {}
    found: dict[RegionId, str] = {}
    for consumer in {region: None for partition in replaced for region in state.consumers(partition)}:
        for result, reads in ((made, reads) for made in state.made_by(consumer) for reads in made.reads):
            if id(reads) not in answers:
                answers[id(reads)] = _first_reason(state.topology, reads, replaced)
            reason = answers[id(reads)]
            if reason is not None:
                found.setdefault(consumer, f"{reason}; {_name_of(result)} read another one")
    return found


def _name_of(result: CurrentResult) -> str:
    """Name the attempt of a result: a number below 1 is no try of the present DagRun."""
    return f"try {result.try_number}" if result.try_number > 0 else result.attempt


def _first_reason(topology: Topology, reads: ReadSet, replaced: Mapping[PartitionId, Replacement]) -> str | None:
    return next(iter(reasons(topology, reads.members, replaced)), None)


def reasons(
    topology: Topology, reads: Iterable[ReadResult], replaced: Mapping[PartitionId, Replacement]
) -> Iterable[str]:
    """Return the reasons why a commit makes the consumer of these inputs stale."""
    for read in reads:
        new = replaced.get(read.partition)
        if new is not None and (reason := _reason(topology, read, new)) is not None:
            yield reason


def _reason(topology: Topology, read: ReadResult, new: Replacement) -> str | None:
    is_chained = is_chain(read.digest) or is_chain(new.digest)
    if digest_version(read.digest) != digest_version(new.digest) and not is_chained:
        return f"weir: another version of Weir has digested {new.partition}: whether it has changed is unknown"
    if read.digest != new.digest:
        return f"weir: {new.partition} has changed{not_deterministic(new)}"
    if restarts_consumers(topology, new.partition.stage) and read.attempt != new.attempt:
        return f"weir: {new.partition} was recomputed, and what reads it always restarts with it"
    return None


def not_deterministic(new: Replacement) -> str:
    """Describe a result that differs from an earlier one of equal inputs; return empty text for any other."""
    if new.differs_from is None:
        return ""
    return (
        f" (not deterministic: {new.differs_from} was made from equal inputs by equal code. Usual causes: "
        f"{USUAL_CAUSES}; a stage that is meant to be so is declared with deterministic=False)"
    )

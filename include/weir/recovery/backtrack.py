"""Which regions run again when inputs are gone.

Flink's RestartPipelinedRegionFailoverStrategy walks from the failed region to the producers of unavailable inputs,
transitively, and from everything that restarts to all its consumers. Weir walks back likewise. Forward it only says
"if it changes": a commit compares digests and clears the consumers that read something else.

Invariant: the walk is decided in rounds without I/O; what it needs to know of the store it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.errors import Fault, Loss
from weir.recovery.plan import Plan, Step, StepKind
from weir.recovery.run_state import RunState
from weir.results.partition_state import PartitionState
from weir.topology.regions import PartitionId, RegionId


@dataclass(frozen=True, slots=True)
class NeedsProbe:
    """The decision depends on whether these partitions are there."""

    partitions: frozenset[PartitionId]


def backtrack(
    state: RunState, failed: RegionId, losses: Mapping[PartitionId, Loss], intact: frozenset[PartitionId]
) -> Plan | NeedsProbe:
    """Decide what runs again so that `failed` can read its inputs.

    `losses` are all partitions known to be unavailable, `intact` those known to be there. Each round either ends in
    the plan or names the inputs of regions to re-run that are in neither.
    """
    causes = _regions_to_rerun(state, failed, losses)
    unknown = frozenset(
        partition
        for region in causes
        if not state.region(region).at_work
        for partition in state.inputs_of(region)
        if partition not in losses and partition not in intact and _needs_probe(state, partition)
    )
    if unknown:
        return NeedsProbe(unknown)
    return Plan(failed, "; ".join(str(loss) for loss in losses.values()), _steps(state, failed, causes))


def known_loss(state: RunState, partition: PartitionId) -> Loss | None:
    """What the ledger alone says against `partition`: never committed, stale, or released."""
    result = state.results.get(partition)
    if result is None:
        return Loss(*_names(state, partition), "", Fault.NEVER_COMMITTED, "its producer has committed nothing")
    if not state.is_valid(partition):
        return Loss(
            *_names(state, partition), result.attempt, Fault.STALE, "an input of its producer has changed since"
        )
    if result.state is PartitionState.RELEASED:
        return Loss(*_names(state, partition), result.attempt, Fault.MISSING, "it was released")
    return None


def _names(state: RunState, partition: PartitionId) -> tuple[str, str, int, str]:
    return partition.run or state.run, partition.stage, partition.subtask, partition.layout


def _needs_probe(state: RunState, partition: PartitionId) -> bool:
    return known_loss(state, partition) is None


def _regions_to_rerun(state: RunState, failed: RegionId, losses: Mapping[PartitionId, Loss]) -> dict[RegionId, str]:
    """All producers of unavailable inputs, transitively, each with the first loss that asks for it."""
    causes: dict[RegionId, str] = {}
    open_regions = [failed]
    while open_regions:
        reader = open_regions.pop()
        if reader is not failed and state.region(reader).at_work:
            continue  # its own attempt finds out what it misses
        for partition in state.inputs_of(reader):
            loss = losses.get(partition) or known_loss(state, partition)
            producer = state.topology.producer(partition)
            if loss is not None and producer not in causes:
                causes[producer] = f"{loss}; needed by {reader}"
                open_regions.append(producer)
    return causes


def _steps(state: RunState, failed: RegionId, causes: Mapping[RegionId, str]) -> tuple[Step, ...]:
    maybe = _consumers_of(state, [region for region in causes if not state.region(region).at_work])
    steps = []
    for region in state.topology.region_ids():
        known = state.region(region)
        if region == failed:
            continue
        if region in causes:
            kind = StepKind.JOINED if known.at_work else StepKind.RERUN
            steps.append(Step(kind, region, known.newest_try, causes[region]))
        elif region in maybe and known.newest_try:
            reason = f"if the digest of {maybe[region]} changes"
            steps.append(Step(StepKind.IF_CHANGED, region, known.newest_try, reason))
        else:
            steps.append(Step(StepKind.SPARED, region, known.newest_try, "nothing it reads is made again"))
    return tuple(steps)


def _consumers_of(state: RunState, regions: list[RegionId]) -> dict[RegionId, RegionId]:
    """Everything behind `regions`, each with the one that it reads."""
    found: dict[RegionId, RegionId] = {}
    pending = list(regions)
    while pending:
        producer = pending.pop()
        for partition in state.topology.outputs(producer):
            for consumer in state.topology.consumers(partition):
                if consumer not in found:
                    found[consumer] = producer
                    pending.append(consumer)
    return found

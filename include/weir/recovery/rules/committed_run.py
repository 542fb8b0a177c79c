"""A run in which everything has committed, for questions about a topology of which nothing has run.

`weir plan --topology` and `weir advise` ask them, and the engine that decides in production answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.errors import Fault, Internal, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import Plan
from weir.topology.ids import AttemptId, Digest, RunId
from weir.topology.regions import PartitionId, RegionId, Topology

_RUN = RunId("committed@now")
_ATTEMPT = AttemptId("t0001")
_VERSIONS = frozenset({"code"})


def committed_run(topology: Topology) -> RunState:
    """Return a run in which each region has committed once and read what is current, and that has not been closed."""
    results: dict[PartitionId, CurrentResult] = {}
    read_sets: dict[int, tuple[tuple[PartitionId, ...], ReadSet]] = {}
    """By the id of the partitions: readers of an all-to-all exchange share one object, which is kept with its set."""
    for region in topology.region_ids():
        reads = []
        for partitions in (read.partitions for read in topology.inputs(region)):
            if id(partitions) not in read_sets:
                read_sets[id(partitions)] = partitions, _read_set(partitions)
            reads.append(read_sets[id(partitions)][1])
        for each in topology.outputs(region):
            results[each] = CurrentResult(
                partition=each,
                result=len(results) + 1,
                attempt=_ATTEMPT,
                try_number=1,
                state=PartitionState.FINISHED,
                folder="",
                manifest_sha256="",
                digest=_digest(each),
                rows=1,
                bytes=1,
                reads=tuple(reads),
                versions=_VERSIONS,
            )
    ended = {
        each: RegionState(region=each, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
        for each in topology.region_ids()
    }
    return RunState(run=_RUN, topology=topology, results=results, regions=ended)


def decided(state: RunState, failed: RegionId | None, lost: Iterable[PartitionId], occasion: Occasion) -> Plan:
    """Return what the engine decides for such a run where these partitions are lost, and all others are there."""
    losses = {each: _loss(each) for each in lost}
    intact = state.results.keys() - losses.keys()
    plan = decide(state, Failure(failed=failed, losses=losses, intact=intact, occasion=occasion))
    if isinstance(plan, NeedsProbe):
        raise Internal.of("recovery.input_is_there", partitions=sorted(plan.partitions))
    return plan


def _loss(partition: PartitionId) -> Loss:
    where = partition.stage, partition.subtask, partition.layout
    return Loss(_RUN, *where, _ATTEMPT, Fault.MISSING, "the question says that it is gone")


def _read_set(partitions: tuple[PartitionId, ...]) -> ReadSet:
    return ReadSet(tuple(ReadResult(each, _ATTEMPT, _digest(each)) for each in partitions))


def _digest(partition: PartitionId) -> Digest:
    return Digest(str(partition))

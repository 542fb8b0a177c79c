"""A run in which everything has committed, for questions about a topology of which nothing has run.

`weir plan --topology` and `weir advise` ask them, and the engine that decides in production answers.
"""

from __future__ import annotations

from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.topology.ids import AttemptId, Digest, RunId
from weir.topology.regions import PartitionId, Topology

RUN = RunId("committed@now")
ATTEMPT = AttemptId("t0001")


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
                attempt=ATTEMPT,
                try_number=1,
                state=PartitionState.FINISHED,
                folder="",
                manifest_sha256="",
                digest=_digest(each),
                rows=1,
                bytes=1,
                reads=tuple(reads),
            )
    ended = {
        each: RegionState(region=each, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
        for each in topology.region_ids()
    }
    return RunState(run=RUN, topology=topology, results=results, regions=ended)


def _read_set(partitions: tuple[PartitionId, ...]) -> ReadSet:
    return ReadSet(tuple(ReadResult(each, ATTEMPT, _digest(each)) for each in partitions))


def _digest(partition: PartitionId) -> Digest:
    return Digest(str(partition))

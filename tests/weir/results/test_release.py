from weir.recovery.failover import JobPartition
from weir.results.release import RegionRelease
from weir.topology.graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions

B, P, HF = PartitionType.BLOCKING, PartitionType.PIPELINED, PartitionType.HYBRID_FULL


def view(*parallelisms, edges):
    stages = [JobVertex(f"s{i}", p) for i, p in enumerate(parallelisms)]
    graph = JobGraph(stages, [JobEdge(f"s{i}", f"s{j}", Pattern.ALL_TO_ALL, kind) for i, kind, j in edges])
    return RegionRelease(graph, pipelined_regions(graph))


def test_a_partition_is_released_when_its_consumer_is_finished():
    assert view(1, 1, edges=[(0, B, 1)]).finished(1) == (JobPartition(0, 0),)


def test_a_partition_is_kept_until_the_whole_region_is_finished():
    release = view(1, 1, 1, edges=[(0, B, 1), (1, P, 2)])
    assert release.finished(1) == ()
    assert release.finished(2) == (JobPartition(0, 0),)


def test_a_partition_is_kept_until_all_consumers_are_finished():
    release = view(1, 2, edges=[(0, B, 1)])
    assert release.finished(1) == ()
    assert release.finished(2) == (JobPartition(0, 0),)


def test_a_consumer_that_runs_again_keeps_its_inputs():
    release = view(1, 2, edges=[(0, B, 1)])
    release.finished(1)
    release.finished(2)
    release.unfinished(2)
    assert release.finished(1) == ()


def test_finishing_again_offers_the_same_partitions_again():
    release = view(2, 1, edges=[(0, HF, 1)])
    assert release.finished(2) == release.finished(2) == (JobPartition(0, 0), JobPartition(0, 1))


def test_a_pipelined_partition_is_not_released_here():
    release = view(1, 1, edges=[(0, P, 1)])
    release.finished(0)
    assert release.finished(1) == ()

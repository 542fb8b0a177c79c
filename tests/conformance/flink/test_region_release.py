import pytest
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.region_release import RegionRelease
from tests.conformance.flink.restart_set import JobPartition

from weir.errors import Internal

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


def test_a_subtask_of_another_graph_is_refused():
    release = view(1, 1, edges=[(0, B, 1)])
    for told in (release.finished, release.unfinished):
        with pytest.raises(Internal, match="no vertex 2: the graph has the vertices 0 to 1"):
            told(2)


def test_what_was_never_finished_may_be_unfinished():
    release = view(1, 1, edges=[(0, B, 1)])
    release.unfinished(1)
    assert release.finished(1) == (JobPartition(0, 0),)


def test_releasing_the_inputs_of_many_costs_no_more_than_their_number():
    """100,000 by 100,000 edges would take hours: it is done in the time that a test has, or not at all."""
    release = view(100_000, 100_000, edges=[(0, B, 1)])
    assert [len(release.finished(100_000 + i)) for i in range(100_000)][-2:] == [0, 100_000]

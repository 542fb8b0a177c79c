import pytest
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.restart_set import JobPartition, restart_set, tasks_to_restart

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Internal

TYPES = {"P": PartitionType.PIPELINED, "B": PartitionType.BLOCKING, "HF": PartitionType.HYBRID_FULL}


class Job:
    """Stages v1, v2, ... of parallelism 1, joined by edges like `1 B 4`."""

    def __init__(self, size, *edges):
        split = [edge.split() for edge in edges]
        self.graph = JobGraph(
            [JobVertex(f"v{i}", 1) for i in range(1, size + 1)],
            [JobEdge(f"v{one}", f"v{other}", Pattern.POINTWISE, TYPES[kind]) for one, kind, other in split],
        )
        self.regions = pipelined_regions(self.graph)

    def restarts(self, failed, *, missing=(), lost=None, created=()):
        found = tasks_to_restart(
            self.graph,
            self.regions,
            failed - 1,
            missing=frozenset(JobPartition(place, 0) for place in missing),
            lost=None if lost is None else JobPartition(lost, 0),
            created=frozenset(v - 1 for v in created),
        )
        return [v + 1 for v in found]


SIX = Job(6, "1 B 4", "1 B 5", "2 B 4", "2 B 5", "3 B 6")


@pytest.mark.parametrize(
    ("failed", "restarted"), [(1, [1, 4, 5]), (2, [2, 4, 5]), (3, [3, 6]), (4, [4]), (5, [5]), (6, [6])]
)
def test_a_region_restarts_with_its_consumers(failed, restarted):
    assert SIX.restarts(failed) == restarted


@pytest.mark.parametrize(
    ("failed", "lost", "restarted"),
    [(4, 0, [1, 4, 5]), (4, 2, [2, 4, 5]), (5, 1, [1, 4, 5]), (5, 3, [2, 4, 5]), (6, 4, [3, 6])],
)
def test_a_lost_input_restarts_its_producer(failed, lost, restarted):
    assert SIX.restarts(failed, lost=lost) == restarted


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ((), [[1, 3], [2, 3], [3]]),
        ((0,), [[1, 3], [1, 2, 3], [1, 3]]),
        ((1,), [[1, 2, 3], [2, 3], [2, 3]]),
        ((0, 1), [[1, 2, 3], [1, 2, 3], [1, 2, 3]]),
    ],
)
def test_every_input_that_is_missing_restarts_its_producer(missing, expected):
    job = Job(3, "1 B 3", "2 B 3")
    assert [job.restarts(failed, missing=missing) for failed in (1, 2, 3)] == expected


def test_regions_restart_whole():
    job = Job(6, "1 P 2", "2 B 3", "3 P 4", "4 B 5", "5 P 6")
    assert job.restarts(3) == [3, 4, 5, 6]
    assert job.restarts(3, lost=1) == [1, 2, 3, 4, 5, 6]


def test_what_was_never_started_does_not_restart():
    job = Job(2, "1 B 2")
    assert job.restarts(2, created=(1, 2)) == []
    assert job.restarts(2, lost=0, created=(1, 2)) == []


def test_a_durable_copy_stops_the_search_for_producers():
    job = Job(4, "1 HF 3", "2 P 3", "3 HF 4")
    assert job.restarts(3) == [2, 3, 4]
    assert job.restarts(4) == [4]


def test_the_mark_of_a_lost_partition_lasts_for_one_decision():
    assert SIX.restarts(4, lost=0) == [1, 4, 5]
    assert SIX.restarts(4) == [4]


def test_a_vertex_that_is_not_there_is_refused():
    with pytest.raises(Internal, match="vertex 6 has failed"):
        SIX.restarts(7)


def test_edges_of_an_all_to_all_exchange_are_never_walked():
    """100,000 by 100,000 edges would take hours: it is done in the time that a test has, or not at all."""
    size = 100_000
    graph = JobGraph(
        [JobVertex("a", size), JobVertex("b", size)],
        [JobEdge("a", "b", Pattern.ALL_TO_ALL, PartitionType.BLOCKING)],
    )
    regions = pipelined_regions(graph)
    assert tasks_to_restart(graph, regions, 0) == (0, *range(size, 2 * size))
    assert tasks_to_restart(graph, regions, size) == (size,)
    lost = frozenset({JobPartition(0, 7)})
    assert tasks_to_restart(graph, regions, size, missing=lost) == (7, *range(size, 2 * size))


def test_as_many_losses_as_groups_are_not_multiplied():
    """100,000 groups by 100,000 losses would take hours."""
    size = 100_000
    graph = JobGraph(
        [JobVertex("a", size), JobVertex("b", size), JobVertex("c", 1)],
        [
            JobEdge("a", "b", Pattern.POINTWISE, PartitionType.BLOCKING),
            JobEdge("b", "c", Pattern.ALL_TO_ALL, PartitionType.BLOCKING),
        ],
    )
    everything = frozenset(JobPartition(exchange, subtask) for exchange in (0, 1) for subtask in range(size))
    assert len(tasks_to_restart(graph, pipelined_regions(graph), 2 * size, missing=everything)) == graph.size


FOUR = Job(4, "1 B 2", "2 B 3", "1 B 4")


@pytest.mark.parametrize(
    ("strategy", "consumers", "restarted", "if_changed", "by_hand"),
    [
        (FailoverStrategy.REGION, Consumers.IF_CHANGED, [1, 2], [3, 4], []),
        (FailoverStrategy.REGION, Consumers.ALWAYS, [1, 2, 3, 4], [], []),
        (FailoverStrategy.FULL, Consumers.IF_CHANGED, [1, 2, 3, 4], [], []),
        (FailoverStrategy.INDIVIDUAL, Consumers.IF_CHANGED, [2], [], [1]),
        (FailoverStrategy.INDIVIDUAL, Consumers.ALWAYS, [2], [], [1]),
    ],
)
def test_each_failover_strategy_chooses_its_tasks(strategy, consumers, restarted, if_changed, by_hand):
    found = restart_set(
        FOUR.graph, FOUR.regions, 1, consumers=consumers, strategy=strategy, missing=frozenset({JobPartition(0, 0)})
    )
    assert [v + 1 for v in found.restarted] == restarted
    assert [v + 1 for v in found.if_changed] == if_changed
    assert [v + 1 for v in found.by_hand] == by_hand


def test_a_full_restart_spares_nobody_whatever_is_lost():
    job = Job(3, "1 P 2", "2 B 3")
    found = restart_set(job.graph, job.regions, 0, consumers=Consumers.ALWAYS, strategy=FailoverStrategy.FULL)
    assert found.restarted == (0, 1, 2)
    with pytest.raises(Internal, match="vertex 3 has failed"):
        restart_set(job.graph, job.regions, 3, consumers=Consumers.ALWAYS, strategy=FailoverStrategy.FULL)

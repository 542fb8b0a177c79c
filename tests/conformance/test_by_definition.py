"""Regions, restarts and releases against slow answers that follow the definitions edge by edge."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.region_release import RegionRelease
from tests.conformance.flink.restart_set import JobPartition, restart_set, tasks_to_restart

from weir.dataflow.dataflow import Consumers


class EdgeByEdge:
    """A job graph as a set of (exchange, producer, consumer)."""

    def __init__(self, parallelisms, exchanges):
        self.exchanges = exchanges
        self.vertices = [(stage, i) for stage, parallelism in enumerate(parallelisms) for i in range(parallelism)]
        number = {vertex: place for place, vertex in enumerate(self.vertices)}
        self.edges = [
            (place, number[one, a], number[other, b])
            for place, (one, other, pattern, _) in enumerate(exchanges)
            for a, b in product(range(parallelisms[one]), range(parallelisms[other]))
            if pattern is Pattern.ALL_TO_ALL or reads(parallelisms[one], parallelisms[other], a, b)
        ]
        self.region = self._regions()

    def type(self, place):
        return self.exchanges[place][3]

    def _regions(self):
        """Joined over pipelined edges; then joined with what they reach and are reached from."""
        label = list(range(len(self.vertices)))
        for _ in self.vertices:
            for place, a, b in self.edges:
                if self.type(place) is PartitionType.PIPELINED:
                    label[a] = label[b] = min(label[a], label[b])
        reach = {one: {one} for one in label}
        for _ in reach:
            for _, a, b in self.edges:
                reach[label[a]] |= reach[label[b]]
        return [min(other for other in reach[one] if one in reach[other]) for one in label]

    def members(self):
        return {frozenset(v for v, r in enumerate(self.region) if r == each) for each in self.region}

    def restarts(self, failed, gone, *, forward=True):
        """The least set that holds the failed region, producers of what cannot be read, and consumers."""
        involved = {self.region[failed]}
        while True:
            back = {a for place, a, b in self.edges if self.region[b] in involved and self.cannot_read(place, a, gone)}
            ahead = {b for _, a, b in self.edges if self.region[a] in involved} if forward else set()
            more = {self.region[vertex] for vertex in back | ahead} - involved
            if not more:
                return {vertex for vertex, region in enumerate(self.region) if region in involved}
            involved |= more

    def cannot_read(self, place, producer, gone):
        return self.type(place) is PartitionType.PIPELINED or (place, self.vertices[producer][1]) in gone

    def released(self, vertex, finished):
        """What the region of a vertex reads from the store and nobody who is unfinished reads."""
        unfinished = {region for v, region in enumerate(self.region) if v not in finished}
        if self.region[vertex] in unfinished:
            return set()
        stored = [edge for edge in self.edges if self.type(edge[0]) is not PartitionType.PIPELINED]
        read = {(place, a) for place, a, b in stored if self.region[b] == self.region[vertex]}
        needed = {(place, a) for place, a, b in stored if self.region[b] in unfinished}
        return {(place, self.vertices[a][1]) for place, a in read - needed}


def reads(producers, consumers, a, b):
    """Whether consumer b reads producer a, pointwise: the smaller side's share of the larger one."""
    if producers < consumers:
        return b * producers // consumers == a
    return b * producers // consumers <= a < (b + 1) * producers // consumers


PARALLELISMS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@st.composite
def graphs(draw):
    """Stages of any parallelism; exchanges forward and backward, several between the same two, and to itself."""
    parallelisms = draw(PARALLELISMS)
    stage = st.integers(0, len(parallelisms) - 1)
    exchange = st.tuples(stage, stage, st.sampled_from(Pattern), st.sampled_from(PartitionType))
    return parallelisms, draw(st.lists(exchange, max_size=8))


@st.composite
def acyclic(draw):
    """As Flink's job graphs are."""
    parallelisms, exchanges = draw(graphs())
    return parallelisms, [(min(one, other), max(one, other), *rest) for one, other, *rest in exchanges if one != other]


ANY = st.one_of(acyclic(), graphs())


def both(drawn):
    parallelisms, exchanges = drawn
    graph = JobGraph(
        [JobVertex(f"s{i}", parallelism) for i, parallelism in enumerate(parallelisms)],
        [JobEdge(f"s{one}", f"s{other}", pattern, kind) for one, other, pattern, kind in exchanges],
    )
    return graph, pipelined_regions(graph), EdgeByEdge(parallelisms, exchanges)


@given(ANY)
def test_regions_are_what_is_joined_by_pipelined_edges_or_by_cycles(drawn):
    _, regions, slow = both(drawn)
    assert set(map(frozenset, regions.members)) == slow.members()


@given(ANY, st.data())
def test_what_restarts_is_the_least_closed_set(drawn, data):
    graph, regions, slow = both(drawn)
    partitions = [JobPartition(k, i) for k, wiring in enumerate(graph.exchanges) for i in range(len(wiring.producers))]
    missing = data.draw(st.frozensets(st.sampled_from(partitions)) if partitions else st.just(frozenset()))
    created = data.draw(st.frozensets(st.integers(0, graph.size - 1)))
    for _ in range(3):
        failed = data.draw(st.integers(0, graph.size - 1))
        lost = data.draw(st.none() | st.sampled_from(partitions) if partitions else st.none())
        gone = {(each.exchange, each.subtask) for each in missing | ({lost} if lost else set())}
        everything = slow.restarts(failed, gone)
        found = tasks_to_restart(graph, regions, failed, missing=missing, lost=lost)
        assert list(found) == sorted(everything)
        found = tasks_to_restart(graph, regions, failed, missing=missing, lost=lost, created=created)
        assert list(found) == sorted(everything - created)
        certain = slow.restarts(failed, gone, forward=False)
        by_weir = restart_set(graph, regions, failed, missing=missing, lost=lost, consumers=Consumers.IF_CHANGED)
        assert list(by_weir.restarted) == sorted(certain)
        assert list(by_weir.if_changed) == sorted(everything - certain)


@given(ANY, st.data())
def test_what_is_released_is_what_no_unfinished_region_reads(drawn, data):
    graph, regions, slow = both(drawn)
    view, finished = RegionRelease(graph, regions), set()
    vertices = list(range(graph.size))
    random = data.draw(st.randoms(use_true_random=False))
    # All once, in any order, so that much is released at last; some again, and some back, in between.
    for vertex in random.sample(vertices, len(vertices)) + random.choices(vertices, k=10):
        if random.random() < 0.2:
            again = random.choice(vertices)
            view.unfinished(again)
            finished.discard(again)
        finished.add(vertex)
        found = view.finished(vertex)
        assert list(found) == sorted(found)
        assert {(each.exchange, each.subtask) for each in found} == slow.released(vertex, finished)

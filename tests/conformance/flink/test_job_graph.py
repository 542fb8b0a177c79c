import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions

from weir.errors import Misconfigured

TYPES = {"P": PartitionType.PIPELINED, "B": PartitionType.BLOCKING, "HF": PartitionType.HYBRID_FULL}


def graph(stages, *edges):
    """Build a graph of stages like `a*3` and edges like `a P b` (pointwise) or `a B* b` (all to all)."""
    vertices = [JobVertex(*_sized(stage)) for stage in stages.split()]
    return JobGraph(vertices, [_edge(*edge.split()) for edge in edges])


def _sized(stage):
    name, _, parallelism = stage.partition("*")
    return name, int(parallelism or 1)


def _edge(producer, kind, consumer):
    pattern = Pattern.ALL_TO_ALL if kind.endswith("*") else Pattern.POINTWISE
    return JobEdge(producer, consumer, pattern, TYPES[kind.removesuffix("*")])


def regions(built):
    return {frozenset(built.names[v] for v in members) for members in pipelined_regions(built).members}


def sizes(built):
    return sorted(len(members) for members in pipelined_regions(built).members)


@pytest.mark.parametrize(
    ("stages", "edges", "expected"),
    [
        ("a b c", [], [1, 1, 1]),
        ("a*3 b*3", ["a P b"], [2, 2, 2]),
        ("a*2 b*2 c*2", ["a P* b", "b P* c"], [6]),
        ("1 2 3 4 5 6 7", ["1 P 5", "2 P 5", "3 P 6", "4 P 6", "5 P 7", "6 P 7"], [7]),
        ("1 2 3 4 5 6 7", ["1 P 2", "1 P 3", "2 P 4", "2 P 5", "3 P 6", "3 P 7"], [7]),
        ("a*2 b*2 c*2", ["a P* b", "b B c"], [1, 1, 4]),
        ("a*2 b*2 c*2", ["a P* b", "b B* c"], [1, 1, 4]),
        ("1 2 3 4 5 6 7", ["1 P 5", "2 P 5", "3 P 6", "4 P 6", "5 B 7", "6 B 7"], [1, 3, 3]),
        ("1 2 3 4", ["1 B 2", "1 P 3", "2 P 4", "3 P 4"], [4]),
        ("1 2 3 4", ["1 B 2", "1 P 3", "2 B 4", "3 P 4"], [4]),
        ("1 2 3", ["1 B 2", "2 P 3"], [1, 2]),
        ("1 2 3 4", ["1 P 3", "2 B 3", "3 P 4"], [1, 3]),
        ("1 2 3 4", ["1 P 2", "2 P 3", "2 B 4"], [1, 3]),
        ("1 2 3 4", ["1 B 2", "2 P 4", "1 P 3", "3 P 4"], [4]),
        ("1*3 2*5 3*2", ["1 P* 2", "2 P* 3"], [10]),
        ("1*8 2*8 3*8 4*8", ["1 B* 2", "1 P* 3", "2 P* 4", "3 P* 4"], [32]),
        ("1*2 2*2", [], [1, 1, 1, 1]),
        ("1*2 2*2", ["1 HF 2"], [1, 1, 1, 1]),
    ],
)
def test_regions_are_those_of_flinks_cases(stages, edges, expected):
    assert sizes(graph(stages, *edges)) == expected


def test_regions_of_a_pointwise_chain_hold_one_index_each():
    built = graph("a*100 b*100 c*100", "a P b", "b P c")
    assert regions(built) == {frozenset((f"a#{i}", f"b#{i}", f"c#{i}")) for i in range(100)}


def test_only_the_indexes_on_a_cycle_are_merged():
    built = graph("a*4 b*2 c*4", "a P c", "a B b", "b B c")
    assert regions(built) == {
        frozenset({"a#0", "a#1", "b#0", "c#0", "c#1"}),
        frozenset({"a#2", "a#3", "b#1", "c#2", "c#3"}),
    }


def test_an_unknown_or_doubled_stage_is_refused():
    with pytest.raises(Misconfigured, match="'b', which is not declared"):
        graph("a", "a P b")
    with pytest.raises(Misconfigured, match="declared twice"):
        graph("a a")


@st.composite
def graphs(draw):
    parallelisms = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    stages = [JobVertex(f"s{i}", p) for i, p in enumerate(parallelisms)]
    pairs = [(i, j) for j in range(len(stages)) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    edges = [
        JobEdge(f"s{i}", f"s{j}", draw(st.sampled_from(Pattern)), draw(st.sampled_from(PartitionType)))
        for i, j in chosen
    ]
    return stages, edges


@given(graphs())
def test_regions_divide_all_vertices(drawn):
    built = JobGraph(*drawn)
    found = pipelined_regions(built)
    assert sorted(v for members in found.members for v in members) == list(range(built.size))
    assert all(found.of[v] == number for number, members in enumerate(found.members) for v in members)


@given(graphs(), st.randoms(use_true_random=False))
def test_neither_names_nor_the_order_of_declaration_change_regions(drawn, random):
    stages, edges = drawn
    new_name = {stage.name: f"t{random.randrange(1000)}_{stage.name}" for stage in stages}
    renamed = [JobVertex(new_name[stage.name], stage.parallelism) for stage in stages]
    rewired = [JobEdge(new_name[e.producer], new_name[e.consumer], e.pattern, e.type) for e in edges]
    random.shuffle(renamed)
    random.shuffle(rewired)
    old = {frozenset(v.split("_", 1)[1] for v in region) for region in regions(JobGraph(renamed, rewired))}
    assert old == regions(JobGraph(stages, edges))


@given(graphs())
def test_no_two_regions_depend_on_each_other(drawn):
    built = JobGraph(*drawn)
    found = pipelined_regions(built)
    behind = {region: set() for region in range(len(found.members))}
    for wiring in built.exchanges:
        for group in wiring.groups():
            for producer in group.producers:
                behind[found.of[producer]] |= {found.of[consumer] for consumer in group.consumers}
    while behind:
        ends = {region for region, after in behind.items() if not (after - {region}) & behind.keys()}
        assert ends, "a cycle of regions is left"
        behind = {region: after for region, after in behind.items() if region not in ends}


@given(graphs())
def test_each_end_of_an_exchange_is_in_exactly_the_group_that_it_names(drawn):
    for wiring in JobGraph(*drawn).exchanges:
        for vertex in wiring.producers:
            assert [g for g, group in enumerate(wiring.groups()) if vertex in group.producers] == [
                wiring.group_of_producer(vertex)
            ]
        for vertex in wiring.consumers:
            assert [g for g, group in enumerate(wiring.groups()) if vertex in group.consumers] == [
                wiring.group_of_consumer(vertex)
            ]


def test_all_to_all_exchanges_are_never_enumerated():
    """100,000 by 100,000 edges would take hours: it is done in the time that a test has, or not at all."""
    assert len(pipelined_regions(graph("a*100000 b*100000", "a B* b")).members) == 200_000
    assert len(pipelined_regions(graph("a*100000 b*100000", "a P* b")).members) == 1
    assert len(pipelined_regions(graph("a*100000 b*100000", "a B* b", "b HF* a")).members) == 1

"""Which regions go on index by index."""

from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.components import strongly_connected

from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir.topology.regions import Topology


def stage(name, *inputs, parallelism=3):
    return Stage(name, f"p:{name}", list(inputs), parallelism=parallelism)


def point(name):
    return blocking(name, pointwise=True)


def everything(name):
    return blocking(name, broadcast=True)


def pipelines(*stages):
    read = {exchange.stage for each in stages for exchange in each.exchanges.values()}
    sinks = [sink(each, f"{each.name}_out") for each in stages if each.name not in read]
    found = Topology(Dataflow("flow", [*stages, *sinks])).pipelines
    return [[region.stages[0] for region in pipeline] for pipeline in found]


A = source("a", "p:a", parallelism=3)


def test_regions_joined_pointwise_are_one_pipeline():
    assert pipelines(A, stage("b", point("a")), stage("c", point("b"))) == [["a", "b", "c"]]


def test_what_shares_a_plan_is_one_region_of_the_pipeline():
    assert pipelines(A, stage("b", pipelined("a")), stage("c", point("b"))) == [["a", "c"]]


def test_an_exchange_that_is_not_pointwise_ends_a_pipeline_and_another_may_follow():
    stages = [A, stage("b", point("a")), stage("c", everything("b")), stage("d", point("c"))]
    assert pipelines(*stages) == [["a", "b"], ["c", "d"]]


def test_a_dataflow_without_pointwise_exchanges_has_none():
    assert pipelines(A, stage("b", everything("a"))) == []


def test_one_subtask_is_no_pipeline():
    assert pipelines(source("a", "p:a"), stage("b", point("a"), parallelism=1)) == []


def test_branches_and_joins_by_index_are_one_pipeline():
    stages = [A, stage("b", point("a")), stage("c", point("a")), stage("d", point("b"), point("c"))]
    assert pipelines(*stages) == [["a", "b", "c", "d"]]


def test_two_that_never_meet_are_two_pipelines():
    other = source("x", "p:x", parallelism=2)
    stages = [A, stage("b", point("a")), other, stage("y", point("x"), parallelism=2)]
    assert pipelines(*stages) == [["a", "b"], ["x", "y"]]


def test_two_ends_that_also_exchange_all_rows_are_not_independent():
    both = Stage("b", "p:b", {"own": point("a"), "all": everything("a")}, parallelism=3)
    assert pipelines(A, both) == []


def test_a_way_out_and_back_ends_the_pipeline_before_it_comes_back():
    stages = [A, stage("b", point("a")), stage("x", blocking("a"), parallelism=1)]
    assert pipelines(*stages, stage("c", point("b"), everything("x"))) == [["a", "b"]]


def test_a_region_outside_that_all_read_or_that_reads_all_is_no_way_back():
    before, behind = source("lookup", "p:l"), stage("sum", blocking("a"), blocking("b"), parallelism=1)
    assert pipelines(before, A, stage("b", point("a"), everything("lookup")), behind) == [["a", "b"]]


def test_pipelines_never_wait_for_each_other_in_a_cycle():
    c, b = stage("c", everything("a"), point("d")), stage("b", point("a"), everything("d"))
    found = pipelines(A, source("d", "p:d", parallelism=3), c, b)
    assert found == [["d", "c"]] or found == [["a", "b"]]


@st.composite
def dataflows(draw):
    stages = [source("s0", "p:f", parallelism=2)]
    for i in range(1, draw(st.integers(2, 9))):
        read = draw(st.sets(st.integers(0, i - 1), min_size=0, max_size=3))
        exchanges = [draw(st.sampled_from([point, point, everything]))(f"s{j}") for j in sorted(read)]
        made = stage(f"s{i}", *exchanges, parallelism=2) if read else source(f"s{i}", "p:f", parallelism=2)
        stages.append(made)
    return Topology(Dataflow("flow", [*stages, *(sink(each, f"{each.name}_out") for each in stages)]))


@given(dataflows())
def test_a_region_is_in_one_pipeline_at_most_and_inside_all_is_pointwise(topology):
    names = [region.name for pipeline in topology.pipelines for region in pipeline]
    assert len(names) == len(set(names))
    for pipeline in topology.pipelines:
        assert len(pipeline) > 1
        for one in pipeline:
            for other in pipeline:
                assert all(each.pointwise for each in topology.exchanges_between(one.name, other.name))


@given(dataflows())
def test_with_each_pipeline_for_one_node_nothing_depends_on_itself(topology):
    node = {region.name: i for i, region in enumerate(topology.regions)}
    for pipeline in topology.pipelines:
        node |= {region.name: node[pipeline[0].name] for region in pipeline}
    successors = [set() for _ in topology.regions]
    for region in topology.regions:
        for upstream in topology.upstream(region.name):
            if node[upstream.name] != node[region.name]:
                successors[node[upstream.name]].add(node[region.name])
    component = strongly_connected([sorted(each) for each in successors])
    assert len(set(component)) == len(component)


@given(dataflows())
def test_of_two_ends_that_are_joined_by_index_one_is_in_a_pipeline(topology):
    inside = {region.name for pipeline in topology.pipelines for region in pipeline}
    for region in topology.regions:
        for upstream in topology.upstream(region.name):
            between = topology.exchanges_between(upstream.name, region.name)
            ways = [other for other in topology.upstream(region.name) if other != upstream]
            if all(each.pointwise for each in between) and not ways:
                assert {region.name, upstream.name} & inside

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, Stage, blocking, cached, pipelined, previous, sink, source
from weir.errors import Internal
from weir.topology.partitions import PLAIN, Layout
from weir.topology.regions import InputPartitions, LogicalRegion, PartitionId, RegionId, Topology


def flights(parallelism=3):
    return Dataflow(
        "flight_delays",
        [
            source("flights", "p:flights", parallelism=parallelism),
            Stage("clean", "p:clean", [pipelined("flights")], parallelism=parallelism),
            source("weather", "p:weather"),
            source("planes", "p:planes"),
            Stage(
                "joined",
                "p:join",
                [blocking("clean", by=["origin", "hour"]), blocking("weather", by=["origin", "hour"])],
                parallelism=2,
                max_parallelism=32,
            ),
            Stage(
                "carriers",
                "p:carriers",
                {"rows": blocking("joined", by="carrier"), "planes": blocking("planes", broadcast=True)},
                parallelism=4,
            ),
            Stage("routes", "p:routes", {"rows": blocking("joined", by=["origin", "dest"])}, parallelism=2),
            Stage("report", "p:report", {"carriers": blocking("carriers"), "routes": blocking("routes")}),
            sink("report", "delays"),
            sink("clean", "flights_clean"),
        ],
        max_parallelism=128,
    )


HOURLY = Layout(("origin", "hour"), 32)
BY_CARRIER = Layout(("carrier",), 128)


def test_pipelined_stages_share_a_region_and_blocking_ones_do_not():
    assert Topology(flights()).regions == (
        LogicalRegion("flights-clean-flights_clean", ("flights", "clean", "flights_clean"), 3),
        LogicalRegion("weather", ("weather",), 1),
        LogicalRegion("planes", ("planes",), 1),
        LogicalRegion("joined", ("joined",), 2),
        LogicalRegion("carriers", ("carriers",), 4),
        LogicalRegion("routes", ("routes",), 2),
        LogicalRegion("report-delays", ("report", "delays"), 1),
    )


def test_a_region_of_one_subtask_is_not_mapped():
    topology = Topology(flights())
    assert topology.region("report-delays").map_index(0) == -1
    assert topology.region("joined").map_index(1) == 1


def test_a_long_name_is_shortened_to_first_and_last():
    stages = [source("a" * 30, "p:a"), Stage("b" * 30, "p:b", [pipelined("a" * 30)]), sink("b" * 30, "c")]
    assert [region.name for region in Topology(Dataflow("f", stages)).regions] == ["a" * 30 + "-to-c"]


def test_names_of_regions_do_not_depend_on_parallelism():
    assert [r.name for r in Topology(flights(1)).regions] == [r.name for r in Topology(flights(7)).regions]


def test_a_stage_is_written_once_for_each_layout_that_is_read():
    topology = Topology(flights())
    assert topology.layouts_of("flights") == ()
    assert topology.layouts_of("clean") == (HOURLY,)
    assert topology.layouts_of("joined") == (BY_CARRIER, Layout(("origin", "dest"), 128))
    assert topology.layouts_of("planes") == topology.layouts_of("carriers") == topology.layouts_of("delays") == (PLAIN,)
    assert topology.layout(HOURLY.id) == HOURLY


def test_outputs_are_those_of_all_stages_of_the_region():
    region = Topology(flights()).region_of("clean", 2)
    assert region == RegionId("flights-clean-flights_clean", 2)
    assert Topology(flights()).outputs(region) == (
        PartitionId("clean", 2, HOURLY.id),
        PartitionId("flights_clean", 2, "plain"),
    )


def test_a_keyed_input_reads_all_partitions_and_keeps_its_key_groups():
    cleaned, weather = Topology(flights()).inputs(RegionId("joined", 1))
    assert (cleaned.argument, cleaned.stage, cleaned.producer, cleaned.layout) == ("clean", "joined", "clean", HOURLY)
    assert cleaned.partitions == tuple(PartitionId("clean", i, HOURLY.id) for i in range(3))
    assert cleaned.key_groups == weather.key_groups == (16, 31)


def test_a_broadcast_input_reads_everything():
    rows, planes = Topology(flights()).inputs(RegionId("carriers", 3))
    assert rows.key_groups == (96, 127)
    assert (planes.argument, planes.layout, planes.key_groups) == ("planes", PLAIN, None)


def test_all_subtasks_of_all_readers_consume_a_partition():
    topology = Topology(flights())
    assert topology.consumers(PartitionId("joined", 0, BY_CARRIER.id)) == tuple(
        RegionId("carriers", i) for i in range(4)
    )
    assert topology.consumers(PartitionId("delays", 0, "plain")) == ()
    assert topology.producer(PartitionId("clean", 2, HOURLY.id)) == RegionId("flights-clean-flights_clean", 2)


def test_logical_neighbours_and_leaves():
    topology = Topology(flights())
    assert [r.name for r in topology.upstream("joined")] == ["flights-clean-flights_clean", "weather"]
    assert [r.name for r in topology.leaves] == ["report-delays"]
    assert topology.sinks == ("delays", "flights_clean")
    assert topology.exchanges_between("planes", "carriers") == (blocking("planes", broadcast=True),)
    assert topology.exchanges_between("planes", "routes") == ()


def test_ids_of_another_topology_are_told_apart():
    topology = Topology(flights(2))
    assert topology.knows(RegionId("joined", 1))
    assert not topology.knows(RegionId("flights-clean-flights_clean", 2))
    assert not topology.knows(RegionId("gone", 0))
    with pytest.raises(
        Internal,
        check=of_kind("topology.region_without_subtask", logical="joined", parallelism="1", region="joined[2]"),
    ):
        topology.inputs(RegionId("joined", 2))
    with pytest.raises(Internal, check=of_kind("topology.region_unknown", name="gone")):
        topology.outputs(RegionId("gone", 0))
    with pytest.raises(Internal, check=of_kind("topology.layout_unknown")):
        topology.layout("by-x")


def history(parallelism=3):
    """Rows of today, cleaned index by index, joined to the history up to yesterday; with a report beside it."""
    return Topology(
        Dataflow(
            "history",
            [
                source("rows", "p:rows", parallelism=parallelism),
                Stage("clean", "p:clean", [blocking("rows", pointwise=True)], parallelism=parallelism),
                Stage(
                    "merged",
                    "p:merge",
                    {"today": blocking("clean", by="id"), "before": previous("merged", by="id", schema="id BIGINT")},
                    parallelism=2,
                ),
                Stage("report", "p:report", [cached("merged")], parallelism=2),
                Stage("last", "p:last", {"now": blocking("report"), "before": previous("clean", schema="id BIGINT")}),
                sink("last", "out"),
            ],
        )
    )


BY_ID = Layout(("id",), 128)


def test_a_pointwise_reader_reads_one_partition_and_that_one_has_one_consumer():
    topology = history()
    (read,) = topology.inputs(RegionId("clean", 2))
    assert (read.partitions, read.key_groups, read.layout) == ((PartitionId("rows", 2, "plain"),), None, PLAIN)
    assert topology.consumers(PartitionId("rows", 2, "plain")) == (RegionId("clean", 2),)


def test_a_partition_that_is_read_pointwise_and_otherwise_has_all_those_consumers():
    rows = source("rows", "p:rows", parallelism=2)
    one = Stage("one", "p:one", [blocking("rows", pointwise=True)], parallelism=2)
    two = Stage("two", "p:two", [blocking("rows", broadcast=True)], parallelism=2)
    both = {"own": blocking("rows", pointwise=True), "all": blocking("rows", broadcast=True)}
    three = Stage("three", "p:three", both, parallelism=2)
    sinks = [sink(stage, f"{stage}_out") for stage in ("one", "two", "three")]
    topology = Topology(Dataflow("flow", [rows, one, two, three, *sinks]))
    assert topology.consumers(PartitionId("rows", 1, "plain")) == (
        RegionId("one-one_out", 1),
        RegionId("two-two_out", 0),
        RegionId("two-two_out", 1),
        RegionId("three-three_out", 0),
        RegionId("three-three_out", 1),
    )


def of_run_before(stage, producer, declared, assigned):
    return InputPartitions(
        argument="before",
        stage=stage,
        producer=producer,
        layout=declared,
        partitions=(),
        declared=declared,
        assigned=assigned,
        schema="id BIGINT",
    )


def test_what_is_read_of_the_epoch_before_is_told_apart_from_inputs_of_the_run():
    topology = history()
    assert [read.argument for read in topology.inputs(RegionId("merged-report", 1))] == ["today"]
    assert topology.previous_inputs(RegionId("merged-report", 1)) == (
        of_run_before("merged", "merged", BY_ID, (64, 127)),
    )
    assert topology.previous_inputs(RegionId("last-out", 0)) == (of_run_before("last", "clean", PLAIN, None),)
    assert topology.previous_inputs(RegionId("rows", 0)) == ()


def test_what_the_next_epoch_reads_is_written_and_has_no_consumer_in_this_run():
    topology = history()
    assert topology.layouts_of("merged") == (BY_ID,)
    assert topology.outputs(RegionId("merged-report", 1)) == (
        PartitionId("merged", 1, BY_ID.id),
        PartitionId("report", 1, "plain"),
    )
    assert topology.consumers(PartitionId("merged", 1, BY_ID.id)) == ()
    assert topology.consumers(PartitionId("clean", 0, "plain")) == ()
    assert topology.writes("merged", BY_ID.id)
    assert not topology.writes("merged", "plain")
    assert not topology.writes("gone", "plain")


def test_the_epoch_before_makes_no_edge_between_regions():
    topology = history()
    assert [r.name for r in topology.upstream("last-out")] == ["merged-report"]
    assert [r.name for r in topology.upstream("merged-report")] == ["clean"]
    assert [r.name for r in topology.leaves] == ["last-out"]


def test_a_region_that_only_the_next_epoch_reads_is_a_leaf():
    stages = [source("a", "p:a"), Stage("b", "p:b", {"a": previous("a", schema="k INT")}), sink("b", "out")]
    assert [r.name for r in Topology(Dataflow("flow", stages)).leaves] == ["a", "b-out"]


def test_cached_stages_share_a_region_and_name_what_is_kept():
    stages = [
        source("a", "p:a"),
        Stage("b", "p:b", [cached("a")]),
        Stage("c", "p:c", [cached("b", durable=False)]),
        Stage("d", "p:d", {"a": cached("a", durable=False), "b": pipelined("b"), "c": cached("c")}),
        sink("d", "out"),
    ]
    topology = Topology(Dataflow("flow", stages))
    assert [r.name for r in topology.regions] == ["a-b-c-d-out"]
    assert topology.copies_of("a-b-c-d-out") == ("a", "c")
    assert topology.persisted_of("a-b-c-d-out") == ("a", "b")
    assert topology.layouts_of("a") == ()


@st.composite
def dataflows(draw):
    stages = [source("s0", "p:f", parallelism=draw(st.integers(1, 4)))]
    for i in range(1, draw(st.integers(1, 8))):
        if draw(st.booleans()):
            read = stages[draw(st.integers(0, i - 1))]
            stages.append(Stage(f"s{i}", "p:f", [pipelined(read)], parallelism=read.parallelism))
            continue
        read = stages[draw(st.integers(0, i - 1))]
        if draw(st.booleans()):
            stages.append(Stage(f"s{i}", "p:f", [blocking(read, pointwise=True)], parallelism=read.parallelism))
            continue
        exchange = draw(
            st.sampled_from([blocking(read, by="k"), blocking(read, by="j"), blocking(read, broadcast=True)])
        )
        earlier = previous(f"s{draw(st.integers(0, i))}", by="k", schema="k INT")
        inputs = {"now": exchange} | ({"before": earlier} if draw(st.booleans()) else {})
        stages.append(Stage(f"s{i}", "p:f", inputs, parallelism=draw(st.integers(1, 4))))
    return Dataflow("flow", [*stages, *(sink(stage, f"{stage.name}_out") for stage in stages)])


@given(dataflows())
def test_readers_and_writers_are_inverse(flow):
    topology = Topology(flow)
    read = {
        (partition, region)
        for region in topology.region_ids()
        for part in topology.inputs(region)
        for partition in part.partitions
    }
    written = {
        (partition, consumer)
        for region in topology.region_ids()
        for partition in topology.outputs(region)
        for consumer in topology.consumers(partition)
    }
    assert read == written


@given(dataflows())
def test_every_subtask_is_in_one_region_and_every_partition_has_one_producer(flow):
    topology = Topology(flow)
    assert sorted(stage for region in topology.regions for stage in region.stages) == sorted(
        stage.name for stage in flow.stages
    )
    outputs = [(partition, region) for region in topology.region_ids() for partition in topology.outputs(region)]
    assert len({partition for partition, _ in outputs}) == len(outputs)
    assert all(topology.producer(partition) == region for partition, region in outputs)


@given(dataflows())
def test_regions_come_after_those_they_read(flow):
    topology = Topology(flow)
    seen = set()
    for region in topology.regions:
        assert {producer.name for producer in topology.upstream(region.name)} <= seen
        seen.add(region.name)


def test_fifty_stages_of_a_hundred_subtasks_take_well_under_a_tenth_of_a_second():
    chain = [Stage(f"s{i}", "p:f", [blocking(f"s{i - 1}", by="k")], parallelism=100) for i in range(1, 49)]
    flow = Dataflow("flow", [source("s0", "p:f", parallelism=100), *chain, sink("s48", "out")])
    spent = []
    for _ in range(5):
        started = time.perf_counter()
        Topology(flow)
        spent.append(time.perf_counter() - started)
    assert min(spent) < 0.1

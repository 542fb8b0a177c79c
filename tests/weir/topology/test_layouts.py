import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, pipelined, previous, sink, source
from weir.errors import Internal, Misconfigured
from weir.execution.run_state import EarlierRun, RunState
from weir.topology.ids import RunId, RunRef
from weir.topology.layouts import SMALL_RESULT, ResultSize, WrittenLayouts, chosen_layouts, declared_layouts
from weir.topology.partitions import PLAIN, KeyFilter, Layout, PartitionId
from weir.topology.regions import RegionId, Topology

GOLDEN = Path(__file__).parents[2] / "golden"
BY_A, BY_B = Layout(("a",), 128), Layout(("b",), 128)
LARGE = SMALL_RESULT + 1


def flow(*readers, more=()):
    stages = [source("rows", "p:rows", parallelism=2), Stage("made", "p:made", [pipelined("rows")], parallelism=2)]
    stages += [
        Stage(f"reader{i}", "p:read", {"made": exchange}, parallelism=parallelism)
        for i, (exchange, parallelism) in enumerate(readers)
    ]
    stages += more
    read = {exchange.stage for stage in stages for exchange in stage.exchanges.values() if not exchange.is_previous}
    stages += [sink(stage, f"{stage.name}_published") for stage in stages if stage.name not in read]
    return Dataflow("flow", stages)


def made(by=(), **more):
    return blocking("made", by=by, **more)


def choice(dataflow, size=None, small=SMALL_RESULT, before=None):
    sizes = {} if size is None else {"made": ResultSize(size, "flow@before")}
    found = chosen_layouts(dataflow, sizes, small, before or {}).get("made")
    return declared_layouts(dataflow)["made"] if found is None else found.written


@pytest.mark.parametrize("size", [None, 0, SMALL_RESULT, LARGE, 10**12])
def test_nothing_is_redistributed_for_consumers_with_one_subtask(size):
    assert choice(flow((made("a"), 1), (made("b"), 1), (made(broadcast=True), 3)), size) == (PLAIN,)


@pytest.mark.parametrize("size", [0, 1, SMALL_RESULT])
def test_a_small_result_is_written_once_and_plain(size):
    assert choice(flow((made("a"), 8), (made("b"), 8), (made(["a", "b"]), 2)), size) == (PLAIN,)


def test_what_is_small_is_a_setting():
    assert choice(flow((made("a"), 8)), 100, small=99) == (BY_A,)
    assert choice(flow((made("a"), 8)), 100, small=100) == (PLAIN,)


def test_a_result_of_unknown_size_has_a_layout_for_each_key_that_divides_it():
    dataflow = flow((made("a"), 2), (made("b"), 1), (made(broadcast=True), 3), (made(pointwise=True), 2))
    assert choice(dataflow) == (BY_A,)


def test_a_large_result_is_written_once_by_the_keys_that_save_most_reading():
    dataflow = flow((made("a"), 2), (made("b"), 4), (made("a"), 2), (made(broadcast=True), 100))
    assert choice(dataflow, LARGE) == (BY_B,)
    assert choice(flow((made("a"), 2)), LARGE) == (BY_A,)
    assert choice(flow((made("a"), 4), (made("b"), 4), (made(["a", "b"]), 4)), LARGE) == (BY_A,)


def test_a_large_result_is_written_again_for_readers_that_would_read_it_too_often():
    assert choice(flow((made("a"), 50), (made("b"), 100)), LARGE) == (BY_A, BY_B)
    assert choice(flow((made("a"), 12), (made("b"), 11)), LARGE) == (BY_A,)
    assert choice(flow((made("a"), 12), (made("b"), 12)), LARGE) == (BY_A, BY_B)
    assert choice(flow((made("a"), 12), (made("b"), 6), (made("b"), 7)), LARGE) == (BY_A, BY_B)


def test_a_run_that_is_pinned_again_keeps_the_layouts_that_later_runs_have_read():
    dataflow = flow((made("a"), 8), (made("b"), 8))
    assert choice(dataflow, 0, before={"made": {BY_B.id}}) == (BY_B,)
    assert choice(dataflow, 10**12, before={"made": {PLAIN.id, "by-gone-128-0"}}) == (PLAIN,)
    assert choice(dataflow, 0, before={"made": {"by-gone-128-0"}, "other": {BY_B.id}}) == (PLAIN,)


def test_what_is_chosen_says_why():
    dataflow = flow((made("a"), 12), (made("b"), 12))
    sizes = {"made": ResultSize(12_000, "flow@before")}
    assert chosen_layouts(dataflow, sizes, 10**6, {})["made"].reason == (
        "it had 12.0 kB in flow@before, and up to 1.0 MB are filtered when they are read"
    )
    assert chosen_layouts(dataflow, {"made": ResultSize(10**9, "flow@before")}, 10**6, {}) == {}


def test_state_is_written_as_it_is_declared():
    state = keyed_state("history", key="k", schema="k bigint, n bigint")
    stages = [source("rows", "p:rows"), Stage("keep", "p:keep", {"rows": blocking("rows", by="k")}, state=state)]
    stages.append(sink("keep", "kept"))
    found = chosen_layouts(Dataflow("flow", stages), {"history": ResultSize(1, "flow@before")}, SMALL_RESULT, {})
    assert set(found) == {"rows"}


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_sink_is_written_as_it_is_declared(size):
    dataflow = Dataflow(
        "flow", [source("rows", "p:rows"), sink("rows", "out", by=["a", "b"]), sink("rows", "plain")], max_parallelism=8
    )
    sizes = {"out": ResultSize(size, "flow@before"), "plain": ResultSize(size, "flow@before")}
    topology = Topology(dataflow, chosen_layouts(dataflow, sizes, SMALL_RESULT, {"plain": {"by-other"}}))
    assert topology.layouts_of("out") == (Layout(("a", "b"), 8),)
    assert topology.layouts_of("plain") == (PLAIN,)


def written(*layouts):
    return {"made": WrittenLayouts(layouts, "why")}


def test_consumers_by_any_key_read_the_layout_that_is_there():
    dataflow = flow((made("a"), 2), (made("b"), 2), (made(broadcast=True), 2), (made("b"), 1))
    topology = Topology(dataflow, written(BY_A))
    assert topology.layouts_of("made") == (BY_A,)
    assert topology.outputs(RegionId("rows-made", 1)) == (PartitionId("made", 1, BY_A.id),)
    by_a, by_b, of_all, by_one = (topology.inputs(RegionId(f"reader{i}-reader{i}_published", 0))[0] for i in range(4))
    assert {each.layout for each in (by_a, by_b, of_all, by_one)} == {BY_A}
    assert (by_a.key_groups, by_a.filter) == ((0, 63), None)
    assert (by_b.key_groups, by_b.filter) == (None, KeyFilter(BY_B, (0, 63)))
    assert (of_all.key_groups, of_all.filter) == (None, None)
    assert (by_one.key_groups, by_one.filter) == (None, None)
    readers = topology.consumers(PartitionId("made", 0, BY_A.id))
    assert {each.name for each in readers} == {f"reader{i}-reader{i}_published" for i in range(4)}


def test_a_pointwise_consumer_reads_its_own_partition_in_any_layout():
    topology = Topology(flow((made("a"), 4), (made(pointwise=True), 2)), written(BY_A))
    (read,) = topology.inputs(RegionId("reader1-reader1_published", 1))
    assert (read.partitions, read.key_groups, read.filter) == ((PartitionId("made", 1, BY_A.id),), None, None)
    assert RegionId("reader1-reader1_published", 0) not in topology.consumers(PartitionId("made", 1, BY_A.id))


def test_the_record_of_a_run_has_its_layouts():
    dataflow = flow((made("a"), 2), (made("b"), 2))
    topology = Topology(dataflow, written(PLAIN, BY_B))
    read = Topology.from_json(json.loads(json.dumps(topology.to_json())))
    assert (read.dataflow, read.chosen) == (dataflow, topology.chosen)
    assert read.layouts_of("made") == (PLAIN, BY_B)


def test_the_record_on_disk_has_not_changed():
    dataflow = replace(flow((made("a"), 2), (made("b"), 2)), failover="region")  # a run's record always names one
    topology = Topology(dataflow, written(PLAIN, BY_B))
    recorded = json.loads((GOLDEN / "pinned-v1.json").read_text())
    assert topology.to_json() == recorded
    with pytest.raises(Misconfigured, check=of_kind("dataflow.record_of_other_version", expected="1", version=5)):
        Topology.from_json({**recorded, "version": 5})


def test_a_record_without_layouts_has_those_of_its_exchanges():
    dataflow = flow((made("a"), 1), (made("b"), 1))
    topology = Topology.from_json(dataflow.to_json())
    assert (topology.chosen, topology.layouts_of("made")) == (None, (BY_A, BY_B))
    assert topology.to_json() == dataflow.to_json()


def yesterday_and_today(before, after):
    """A run of today that reads `made` of a run of yesterday, each pinned to layouts of its own."""

    def topology(parallelism, layouts):
        read = previous("made", by="b", schema="a bigint, b bigint")
        reader = Stage("again", "p:again", {"made": read}, parallelism=parallelism)
        return Topology(flow((made("a"), 2), more=[reader]), layouts and written(*layouts))

    run = RunRef("flow@20130101T000000Z")
    earlier = {run: EarlierRun(run, topology(3, before), None)}
    today = topology(4, after)
    return RunState(
        run=RunId("flow@20130102T000000Z"), topology=today, results={}, regions={}, predecessor=run, earlier=earlier
    )


@pytest.mark.parametrize("after", [None, (PLAIN,), (BY_A,)], ids=str)
@pytest.mark.parametrize(
    ("before", "layout"), [(None, BY_B), ((PLAIN,), PLAIN), ((BY_A,), BY_A), ((BY_A, PLAIN), PLAIN), ((BY_B,), BY_B)]
)
def test_a_reader_of_an_earlier_run_takes_the_layout_that_is_there(before, after, layout):
    state = yesterday_and_today(before, after)
    (read,) = state.inputs(RegionId("again-again_published", 1))
    assert read.layout == layout
    assert [each.layout for each in read.partitions] == [layout.id, layout.id]
    own = ((32, 63), None) if layout == BY_B else (None, KeyFilter(BY_B, (32, 63)))
    assert (read.key_groups, read.filter) == own


def test_a_result_that_the_earlier_run_does_not_write_at_all_is_missed():
    state = yesterday_and_today(None, None)
    (run,) = state.earlier
    stages = [source("rows", "p:rows", parallelism=2), sink("rows", "published")]
    earlier = {run: EarlierRun(run, Topology(Dataflow("flow", stages)), None)}
    other = RunState(run=state.run, topology=state.topology, results={}, regions={}, predecessor=run, earlier=earlier)
    with pytest.raises(Misconfigured, check=of_kind("execution.layout_not_written")):
        other.inputs(RegionId("again-again_published", 0))


exchanges = st.sampled_from(
    [made("a"), made("b"), made(["a", "b"]), made(broadcast=True), made(pointwise=True), made(["b", "a"])]
)


@given(
    st.lists(st.tuples(exchanges, st.sampled_from([1, 2, 7])), min_size=1, max_size=6),
    st.sampled_from([None, 0, LARGE]),
)
def test_the_layouts_never_change_what_a_subtask_reads(readers, size):
    readers = [(exchange, 2 if exchange.pointwise else parallelism) for exchange, parallelism in readers]
    dataflow = flow(*readers)
    sizes = {} if size is None else {"made": ResultSize(size, "flow@before")}
    declared, chosen = Topology(dataflow), Topology(dataflow, chosen_layouts(dataflow, sizes, SMALL_RESULT, {}))
    assert declared.region_ids() == chosen.region_ids()
    for region in declared.region_ids():
        for before, after in zip(declared.inputs(region), chosen.inputs(region), strict=True):
            assert (before.declared, before.assigned) == (after.declared, after.assigned)
            assert [each.subtask for each in before.partitions] == [each.subtask for each in after.partitions]
            assert (before.key_groups, before.filter) == (before.assigned, None)
            if after.layout == after.declared or after.assigned in (None, (0, after.declared.max_parallelism - 1)):
                assert after.filter is None
            else:
                assert after.filter == KeyFilter(after.declared, after.assigned)
            for partition in after.partitions:
                assert partition in chosen.outputs(chosen.producer(partition))
                assert region in chosen.consumers(partition)
    assert len(chosen.layouts_of("made")) <= len(declared.layouts_of("made"))


def test_a_layout_of_another_stage_is_not_written():
    topology = Topology(flow((made("a"), 2)), written(PLAIN))
    assert not topology.writes("made", BY_A.id)
    with pytest.raises(Internal):
        topology.partitions_of("made", BY_A.id)

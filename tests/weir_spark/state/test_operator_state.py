"""Lists and broadcast state on Spark: what is written is what the next epoch is given, whatever its parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.state import broadcast_state, list_state
from weir.errors import Misconfigured
from weir.formats.region_job import InputToRead, StateToRead
from weir.topology.partitions import PLAIN
from weir_spark.region import region
from weir_spark.results.digest import digest_of
from weir_spark.results.reader import read_input
from weir_spark.state.operator_state import BroadcastState, ListState

pytestmark = pytest.mark.spark

SPLIT, UNION = list_state("offsets"), list_state("offsets", union=True)
RATES = broadcast_state("rates", schema="k BIGINT, rate DOUBLE")

OFFSETS = """
def offsets(ctx, offsets):
    seen = offsets.get()
    offsets.add({"epoch": ctx.epoch, "subtask": ctx.subtask, "seen": len(seen)})
    return ctx.spark.range(len(seen))

def idle(ctx, offsets):
    return ctx.spark.range(len(offsets.get()))
"""


@pytest.fixture
def epoch(spark, store, jobs):
    """Run a stage that keeps a state in all of its subtasks, and answer the state's reports."""

    def run(function, state, before=(), parallelism=2):
        return [one(function, state, before, parallelism, subtask) for subtask in range(parallelism)]

    def one(function, state, before, parallelism, subtask):
        keeper = jobs.stage(
            "keeper", function, inputs=(given_as(jobs, state, before),), subtask=subtask, parallelism=parallelism
        )
        kept = jobs.stage(
            state.name,
            "",
            jobs.output(state.name, subtask=subtask),
            pipelined={"keeper": "keeper"},
            keeps_state_of="keeper",
            subtask=subtask,
        )
        (report,) = region.run(jobs.region(keeper, kept), spark, store, lambda line: None).outputs
        return report

    return run


def given_as(jobs, state, before):
    """The state as the coordinator describes it to a job."""
    read = (
        replace(jobs.read(state.name, *before), declared_schema=state.schema)
        if before
        else InputToRead(
            argument=state.name, layout=PLAIN, spark_schema="", partitions=(), declared_schema=state.schema
        )
    )
    return replace(read, state=StateToRead(state=state, epoch="20130101T000000Z"))


@pytest.fixture
def lists(spark, jobs):
    """The handles that subtasks are given of what others have left."""
    return lambda state, before, parallelism: [
        ListState(
            state=state, session=spark, given_as=given_as(jobs, state, before), subtask=subtask, parallelism=parallelism
        )
        for subtask in range(parallelism)
    ]


@pytest.fixture
def kept(spark, jobs, store):
    """Lists as subtasks have left them."""
    from weir_spark.state.operator_state import write_operator_state

    def write(*elements_by_subtask, state=SPLIT):
        reports = []
        for subtask, elements in enumerate(elements_by_subtask):
            handle = ListState(
                state=state,
                session=spark,
                given_as=given_as(jobs, state, ()),
                subtask=subtask,
                parallelism=len(elements_by_subtask),
            )
            handle.update(elements)
            reports.append(write_operator_state(handle, state.name, jobs.output(state.name, subtask=subtask), store))
        return reports

    return write


def test_a_split_list_goes_on_in_each_subtask_and_is_divided_anew_at_another_parallelism(
    epoch, pipeline, lists
) -> None:
    module = pipeline(OFFSETS)
    first = epoch(f"{module}:offsets", SPLIT)
    second = epoch(f"{module}:offsets", SPLIT, first)
    assert [each.digest.rows for each in second] == [2, 2]
    third = epoch(f"{module}:idle", SPLIT, second, parallelism=3)
    assert [each.digest.rows for each in third] == [2, 1, 1]
    found = [[(each["subtask"], each["seen"]) for each in handle.get()] for handle in lists(SPLIT, third, 3)]
    assert found == [[(0, 0), (0, 1)], [(1, 0)], [(1, 1)]]


def test_a_union_list_is_given_whole_and_each_subtask_leaves_its_own_elements(lists, kept) -> None:
    for parallelism in (1, 2, 3):
        handles = lists(UNION, kept(["a"], ["b", "c"], state=UNION), parallelism)
        assert [handle.get() for handle in handles] == [["a", "b", "c"]] * parallelism
        assert sorted(each for handle in handles for each in handle.kept()) == ['"a"', '"b"', '"c"']


def test_a_list_can_be_set_added_to_and_cleared(lists, kept) -> None:
    handle = lists(SPLIT, kept(["a"]), 1)[0]
    handle.add("b", 3)
    assert handle.kept() == ['"a"', '"b"', "3"]
    handle.update([None, {"to": [1.5, True]}])
    assert handle.kept() == ["null", '{"to":[1.5,true]}']
    handle.clear()
    assert handle.kept() == []
    assert handle.get() == ["a"]


def test_lists_keep_their_order_and_are_equal_when_their_elements_are(kept, lists) -> None:
    one, other = kept([{"a": 1, "b": 2}, (1, 2)], list(range(300, 0, -1)))
    again, _ = kept([{"b": 2, "a": 1}, [1, 2]], [])
    assert one.digest == again.digest
    assert [handle.get() for handle in lists(SPLIT, [one, other], 2)] == [
        [{"a": 1, "b": 2}, [1, 2]],
        list(range(300, 0, -1)),
    ]
    assert len(other.files) == 1


def test_an_empty_list_is_a_result_too(epoch, pipeline, kept, lists) -> None:
    empty = kept([], [])
    assert [each.digest.rows for each in empty] == [0, 0]
    assert [handle.get() for handle in lists(SPLIT, empty, 3)] == [[], [], []]
    assert [each.digest.rows for each in epoch(f"{pipeline(OFFSETS)}:idle", SPLIT, empty)] == [0, 0]


@pytest.mark.parametrize("element", [{1, 2}, float("nan"), b"bytes"])
def test_an_element_that_is_no_json_is_refused(lists, element) -> None:
    with pytest.raises(Misconfigured, check=of_kind("state.element_not_json", name="offsets")):
        lists(SPLIT, (), 1)[0].add(element)


def test_an_element_that_would_come_back_as_another_one_is_refused(lists) -> None:
    with pytest.raises(Misconfigured, check=of_kind("state.element_changes")):
        lists(SPLIT, (), 1)[0].add([{1: "one"}])


@pytest.fixture
def rates(spark, jobs):
    return lambda *before: BroadcastState(RATES, spark, given_as(jobs, RATES, before))


RATE = """
def first(ctx, rates):
    rates.update(ctx.spark.sql("select id k, double(id) / 2 rate, 'x' more from range(10)"))
    return ctx.spark.range(1)

def next(ctx, rates):
    return rates.read()
"""


def test_broadcast_state_is_equal_in_all_subtasks_and_kept_where_it_is_not_updated(
    epoch, pipeline, rates, spark
) -> None:
    module = pipeline(RATE)
    first = epoch(f"{module}:first", RATES)
    second = epoch(f"{module}:next", RATES, first, parallelism=3)
    assert {each.digest for each in (*first, *second)} == {
        digest_of(spark.sql("select id k, double(id) / 2 rate from range(10)"))
    }
    assert {len(each.files) for each in (*first, *second)} == {1}
    assert sorted(row["k"] for row in rates(*second).read().collect()) == list(range(10))


def test_broadcast_state_is_empty_in_the_first_epoch_and_has_its_columns(rates) -> None:
    assert (rates().read().columns, rates().read().count()) == (["k", "rate"], 0)


def test_broadcast_state_takes_rows_of_its_schema_only(rates, spark) -> None:
    with pytest.raises(
        Misconfigured, check=of_kind("state.list_column_missing", column="rate", columns=["k", "rate"], types=["k"])
    ):
        rates().update(spark.sql("select 1L k"))
    with pytest.raises(
        Misconfigured, check=of_kind("state.type_differs", field="rate", declared="double", found="int")
    ):
        rates().update(spark.sql("select 1L k, 1 rate"))
    assert read_input(spark, rates().given_as).count() == 0

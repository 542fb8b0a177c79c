"""What only a restored partition can fail: each kind of damage is told by the check that is meant for it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.builders.state_chain import StateChain

from weir.dataflow import digest
from weir.dataflow.quality import Policy
from weir.dataflow.state import keyed_state
from weir.formats.checks import BUILT_IN, CheckOutcome, CheckReason, CheckToRun
from weir.formats.region_job import RestoredToCheck
from weir.formats.suite import Expectation, Suite
from weir.topology.partitions import KEY_GROUP_COLUMN, Layout
from weir_spark.checks.integrity import check_restored
from weir_spark.region import region
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

pytestmark = pytest.mark.spark

BY_KEY = Layout(("key",), 16)
ALL = (0, 15)
SECOND = "20130102T000000Z"
FEW = Suite("few", "f", (Expectation("expect_table_row_count_to_be_between", {"max_value": 10}),))

NUMBERS = """
def numbers(ctx):
    return ctx.spark.sql("select id key, string(id) text from range(40)")

def even(ctx, numbers):
    return numbers.where("key % 2 = 0")
"""


@pytest.fixture
def written(spark, store, jobs, pipeline):
    """A keyed result and its description as a restored one."""
    module = pipeline(NUMBERS)
    output = jobs.output("numbers", BY_KEY)
    (report,) = region.run(jobs.region(jobs.stage("numbers", f"{module}:numbers", output)), spark, store, print).outputs
    restored = RestoredToCheck(
        run="flow@1",
        stage="numbers",
        subtask=0,
        layout=BY_KEY,
        attempt="t1",
        digest=str(report.digest),
        rows=40,
        spark_schema=report.spark_schema,
        files=jobs.files(report),
    )
    return module, report, restored


@pytest.fixture
def state(spark, store):
    """A keyed state of two epochs, and the description of its restored partition."""
    chain = StateChain(store, keyed_state("seen", key="key", schema="key BIGINT, n BIGINT", ttl="30 days"), 16)

    def epoch(name, rows, deleted):
        handle = KeyedState(StoredState(spark, chain.read(name), ALL))
        handle.upsert(rows)
        handle.delete(deleted)
        report = write_state(handle, "seen", chain.output(name), store)
        chain.go_on(name, {ALL: report})
        return report

    epoch("20130101T000000Z", spark.sql("select id key, 1L n from range(30)"), spark.sql("select 99L key"))
    report = epoch(SECOND, spark.sql("select id key, 2L n from range(25, 35)"), spark.sql("select 3L key"))
    return RestoredToCheck(
        run="flow@2",
        stage="seen",
        subtask=0,
        layout=BY_KEY,
        attempt="t2",
        digest=str(report.digest),
        rows=report.digest.rows,
        spark_schema=report.spark_schema,
        state=chain.read(SECOND),
        key_groups=ALL,
        at_least=30,
    )


@pytest.fixture
def evolved(spark, store):
    """A keyed state whose oldest file has a narrower column, and lacks one."""
    chain = StateChain(store, keyed_state("wider", key="key", schema="key BIGINT, n INT"), 16)

    def epoch(name, rows, tallies):
        read = chain.read(name) if tallies else replace(chain.read(name), tallies=None)
        handle = KeyedState(StoredState(spark, read, ALL))
        handle.upsert(rows)
        report = write_state(handle, "wider", chain.output(name), store)
        chain.go_on(name, {ALL: report})
        return report

    epoch("20130101T000000Z", spark.sql("select id key, 1 n from range(30)"), tallies=True)
    chain.state = keyed_state("wider", key="key", schema="key BIGINT, more STRING, n BIGINT")
    report = epoch(SECOND, spark.sql("select id key, 'x' more, 2L n from range(5)"), tallies=False)
    assert report.state.rows_before == 30
    return RestoredToCheck(
        run="flow@2",
        stage="wider",
        subtask=0,
        layout=BY_KEY,
        attempt="t2",
        digest=str(report.digest),
        rows=30,
        spark_schema=report.spark_schema,
        state=chain.read(SECOND),
    )


def changed(path, tmp_path, change):
    """The file of a URL as another one, whose rows are others."""
    table = change(pq.read_table(path.removeprefix("file://")).replace_schema_metadata(None))
    file = tmp_path / path.rpartition("/")[2]
    pq.write_table(table, file)
    return f"file://{file}"


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def failing(report):
    assert report.suite == BUILT_IN
    return {each.type.removeprefix("weir_"): each for each in report.results if not each.success}


def test_a_partition_restored_whole_passes_every_check(spark, written, state) -> None:
    _, report, numbers = written
    (plain,) = check_restored(spark, numbers, "numbers")
    (keyed,) = check_restored(spark, state, "seen", CheckReason.RESTORE_TEST)
    assert [failing(plain), failing(keyed)] == [{}, {}]
    assert (plain.rows, plain.digest, plain.layout) == (40, str(report.digest), BY_KEY.id)
    assert (keyed.run, keyed.attempt, keyed.argument, keyed.why) == ("flow@2", "t2", "seen", CheckReason.RESTORE_TEST)
    assert (keyed.rows, keyed.outcome) == (34, CheckOutcome.PASSED)
    checks = ["schema_as_recorded", "rows_as_recorded", "rows_never_fewer", "digest_as_recorded"]
    keys = ["keys_in_key_groups", "keys_unique"]
    assert [each.type.removeprefix("weir_") for each in keyed.results] == [*checks, *keys]


def test_entries_of_one_map_are_no_keys_that_come_twice(spark, store) -> None:
    maps = keyed_state("maps", key="key", map_key="name", schema="key BIGINT, name STRING, n BIGINT")
    chain = StateChain(store, maps, 16)
    handle = KeyedState(StoredState(spark, chain.read(SECOND), ALL))
    handle.upsert(spark.sql("select id % 3 key, string(id) name, id n from range(30)"))
    report = write_state(handle, "maps", chain.output(SECOND), store)
    chain.go_on(SECOND, {ALL: report})
    restored = RestoredToCheck(
        run="flow@2",
        stage="maps",
        subtask=0,
        layout=BY_KEY,
        attempt="t2",
        digest=str(report.digest),
        rows=30,
        spark_schema=report.spark_schema,
        state=chain.read(SECOND),
        key_groups=ALL,
    )
    (checked,) = check_restored(spark, restored, "maps")
    assert failing(checked) == {}
    (unique,) = (each for each in checked.results if each.type == "weir_keys_unique")
    assert unique.kwargs["column_list"] == ["key", "name"]


def test_a_digest_of_another_rule_is_not_compared(spark, written) -> None:
    _, _, numbers = written
    (report,) = check_restored(spark, replace(numbers, digest_rule=digest(ignore=["text"])))
    assert failing(report) == {}
    assert "weir_digest_as_recorded" not in {each.type for each in report.results}


def test_another_value_and_a_missing_row_violate_digest_and_count(spark, written, tmp_path) -> None:
    _, _, restored = written
    upper = changed(
        restored.files[0], tmp_path, lambda table: with_column(table, "text", pc.utf8_lpad(table["text"], 3, "0"))
    )
    (report,) = check_restored(spark, replace(restored, files=(upper,)))
    assert failing(report).keys() == {"digest_as_recorded"}
    fewer = changed(restored.files[0], tmp_path, lambda table: table.slice(1))
    (report,) = check_restored(spark, replace(restored, files=(fewer,)))
    assert failing(report).keys() == {"digest_as_recorded", "rows_as_recorded"}
    assert failing(report)["rows_as_recorded"].observed == 39
    assert report.outcome is CheckOutcome.FAILED


def test_a_key_in_a_foreign_key_group_is_named(spark, written, tmp_path) -> None:
    _, _, restored = written

    def move(table):
        groups = table[KEY_GROUP_COLUMN].to_pylist()
        return with_column(table, KEY_GROUP_COLUMN, pa.array([(groups[0] + 1) % 16, *groups[1:]], pa.int32()))

    first = pq.read_table(restored.files[0].removeprefix("file://"))["key"][0].as_py()
    (report,) = check_restored(spark, replace(restored, files=(changed(restored.files[0], tmp_path, move),)))
    assert failing(report).keys() == {"digest_as_recorded", "keys_in_key_groups"}
    foreign = failing(report)["keys_in_key_groups"]
    assert (foreign.unexpected, foreign.rows, foreign.examples) == (1, 40, (first,))
    (report,) = check_restored(spark, replace(restored, key_groups=(0, 3)))
    assert failing(report).keys() == {"keys_in_key_groups"}


def test_of_files_of_another_schema_nothing_else_is_checked(spark, written, tmp_path) -> None:
    _, _, restored = written

    def as_text(table):
        return with_column(table, "key", table["key"].cast(pa.string()))

    bad = changed(restored.files[0], tmp_path, as_text)
    for files in ((bad,), (restored.files[0], bad)):
        looked = check_restored(
            spark, replace(restored, files=files, checks=(CheckToRun(FEW, Policy.FAIL, CheckReason.RESTORE_TEST),))
        )
        (report,) = looked
        assert failing(report).keys() == {"schema_as_recorded"}
        assert len(report.results) == 1


def test_files_of_a_state_may_be_of_older_declarations_but_of_no_others(spark, evolved, tmp_path) -> None:
    (report,) = check_restored(spark, evolved)
    assert (failing(report), report.rows) == ({}, 30)
    oldest, newest = evolved.state.files
    for change in (
        lambda table: table.drop_columns(["key"]),
        lambda table: with_column(table, "n", table["n"].cast("float64")),
    ):
        bad = replace(oldest, path=changed(oldest.path, tmp_path, change))
        (report,) = check_restored(spark, replace(evolved, state=replace(evolved.state, files=(bad, newest))))
        assert failing(report).keys() == {"schema_as_recorded"}


def test_a_state_with_two_rows_of_a_key_or_fewer_rows_than_before_fails(spark, state, tmp_path) -> None:
    oldest, newest = state.state.files
    twice = changed(newest.path, tmp_path, lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    files = (oldest, replace(newest, path=twice))
    (report,) = check_restored(spark, replace(state, state=replace(state.state, files=files)))
    assert failing(report)["keys_unique"].unexpected == 2
    (report,) = check_restored(spark, replace(state, state=replace(state.state, files=(newest,))))
    assert failing(report).keys() == {"rows_as_recorded", "rows_never_fewer", "digest_as_recorded"}
    assert failing(report)["rows_never_fewer"].observed == 10


def test_nothing_is_computed_from_a_restored_input_that_fails(spark, store, jobs, written) -> None:
    module, report, restored = written
    warned = replace(restored, checks=(CheckToRun(FEW, Policy.WARN, CheckReason.RESTORED),))

    def run(to_check):
        read = replace(jobs.read("numbers", report), restored=(to_check,))
        stage = jobs.stage("even", f"{module}:even", jobs.output("even"), inputs=(read,))
        return region.run(jobs.region(stage), spark, store, lambda line: None)

    good = run(warned)
    assert [each.suite for each in good.checks] == [BUILT_IN, "few"]
    assert [each.outcome for each in good.checks] == [CheckOutcome.PASSED, CheckOutcome.WARNED]
    assert good.outputs[0].digest.rows == 20
    for bad in (
        replace(restored, rows=41),
        replace(restored, checks=(CheckToRun(FEW, Policy.FAIL, CheckReason.RESTORED),)),
    ):
        refused = run(bad)
        assert refused.outputs == ()
        assert refused.checks[-1].outcome is CheckOutcome.FAILED
    assert len(store.folders("flow/20130101T000000Z/even/plain/0")) == 1

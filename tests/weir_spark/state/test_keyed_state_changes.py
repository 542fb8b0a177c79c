"""What a stage may ask of keyed state, what is written for it, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind

from weir.dataflow.state import keyed_state
from weir.dataflow.state_schema import stored_fields
from weir.errors import Internal, Misconfigured
from weir.formats.manifest import UpdateDigest
from weir.store.store import Store
from weir.topology.key_hash import key_group
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import state_digest, write_state

SCHEMA = "k STRING, n BIGINT"
DAYS = tuple(f"2013010{day}T000000Z" for day in range(1, 8))
ALL = (0, 127)


@pytest.fixture
def chain(store):
    return StateChain(store, keyed_state("h", key="k", schema=SCHEMA))


def opened(spark, chain, day, mine=ALL):
    return KeyedState(StoredState(spark, chain.read(day, mine), mine))


def written(spark, chain, day, change, mine=ALL):
    state = opened(spark, chain, day, mine)
    change(state)
    return write_state(state, "h", chain.output(day), chain.store)


def epoch(spark, chain, day, rows, schema=SCHEMA):
    report = written(spark, chain, day, lambda state: state.upsert(spark.createDataFrame(rows, schema)))
    chain.go_on(day, {ALL: report})
    return report


def found(state, *keys):
    return sorted(tuple(row) for row in state.read(*keys).collect())


@pytest.mark.spark
def test_several_rows_of_one_key_are_an_error_that_shows_three_such_keys(spark, chain):
    rows = [("a", 1), ("b", 1), (None, 1), ("c", 1), ("d", 1), ("a", 2), ("b", 2), (None, 2), ("c", 2), ("a", 1)]
    with pytest.raises(Misconfigured) as error:
        epoch(spark, chain, DAYS[0], rows)
    assert "k='a' (3 rows); k=None (2 rows); k='b' (2 rows): aggregate them first" in str(error.value)


@pytest.mark.spark
def test_rows_of_one_key_in_two_upserts_are_no_error_and_the_later_one_wins(spark, chain):
    def change(state):
        state.upsert(spark.createDataFrame([("a", 1), ("b", 1)], SCHEMA))
        state.delete(spark.createDataFrame([("a",), ("a",), ("b",), ("never",)], "k STRING"))
        state.upsert(spark.createDataFrame([("b", 2)], SCHEMA))

    report = written(spark, chain, DAYS[0], change)
    chain.go_on(DAYS[0], {ALL: report})
    assert found(opened(spark, chain, DAYS[1])) == [("b", 2)]
    assert (report.state.changed, report.digest.rows) == (1, 1)


@pytest.mark.spark
def test_order_by_says_which_row_wins_nulls_last_and_equally_high_ones_are_the_same_each_time(spark, chain):
    rows = [("a", 1, 5), ("a", 2, 7), ("a", 3, None), ("b", 4, None), ("c", 5, 1), ("c", 6, 1)]
    ends = set()
    for turned in (rows, rows[::-1]):
        frame = spark.createDataFrame(turned, "k STRING, n BIGINT, at INT").repartition(3)
        report = written(spark, chain, DAYS[0], lambda state, frame=frame: state.upsert(frame, order_by="at"))
        ends.add(str(report.digest))
    chain.go_on(DAYS[0], {ALL: report})
    assert found(opened(spark, chain, DAYS[1]))[:2] == [("a", 2), ("b", 4)]
    assert len(ends) == 1


@pytest.mark.spark
def test_rows_that_another_subtask_keeps_are_refused_and_unknown_keys_may_be_deleted(spark, chain):
    lower, upper = chain.key_groups(2)
    rows = spark.createDataFrame([(text, 1) for text in "abcdefgh"], SCHEMA)
    with pytest.raises(Misconfigured, check=of_kind("state.upsert_of_other_subtask")):
        written(spark, chain, DAYS[0], lambda state: state.upsert(rows), lower)
    report = written(spark, chain, DAYS[0], lambda state: state.delete(rows), upper)
    assert (report.files, report.state.changed) == ((), 0)


@pytest.mark.spark
def test_a_state_may_have_keys_only(spark, store):
    chain = StateChain(store, keyed_state("h", key="k", schema="k STRING"))
    for day, keys in zip(DAYS, ("ab", "bc"), strict=False):
        epoch(spark, chain, day, [(key,) for key in keys], "k STRING")
    assert found(opened(spark, chain, DAYS[2])) == [("a",), ("b",), ("c",)]


@pytest.mark.spark
def test_a_subtask_without_keys_and_an_epoch_without_changes_write_no_file(spark, chain):
    rows = [("a", 1), ("b", 2)]
    numbers = [key_group([("string", key)], 128) for key, _ in rows]
    reports = {}
    for mine in chain.key_groups(4):
        share = [row for row, number in zip(rows, numbers, strict=True) if mine[0] <= number <= mine[1]]
        own = spark.createDataFrame(share, SCHEMA)
        reports[mine] = written(spark, chain, DAYS[0], lambda state, own=own: state.upsert(own), mine)
    kept = [sum(first <= number <= last for number in numbers) for first, last in chain.key_groups(4)]
    assert [each.digest.rows for each in reports.values()] == kept
    assert [len(each.files) for each in reports.values()] == [min(1, count) for count in kept]
    assert 0 in kept
    chain.go_on(DAYS[0], reports)
    again = {mine: written(spark, chain, DAYS[1], lambda state: None, mine) for mine in chain.key_groups(4)}
    assert [each.files for each in again.values()] == [()] * 4
    assert [each.digest for each in again.values()] == [each.digest for each in reports.values()]
    same = written(
        spark, chain, DAYS[1], lambda state: state.upsert(state.read(), only_changed=True), chain.key_groups(4)[0]
    )
    assert (same.files, same.state.changed) == ((), 0)


@pytest.mark.spark
def test_rows_of_other_columns_or_types_are_refused(spark, chain):
    def upsert(rows, schema, **options):
        return lambda state: state.upsert(spark.createDataFrame(rows, schema), **options)

    with pytest.raises(
        Misconfigured,
        check=of_kind("state.column_missing", columns=["k", "m"], missing=["n"], wanted=["k", "n"], what="upsert"),
    ):
        written(spark, chain, DAYS[0], upsert([], "k STRING, m BIGINT"))
    with pytest.raises(
        Misconfigured, check=of_kind("state.column_missing", missing=["at"], wanted=["k", "n", "at"], what="upsert")
    ):
        written(spark, chain, DAYS[0], upsert([], SCHEMA, order_by="at"))
    with pytest.raises(
        Misconfigured, check=of_kind("state.column_missing", missing=["k"], wanted=["k"], what="delete")
    ):
        written(spark, chain, DAYS[0], lambda state: state.delete(spark.createDataFrame([], "n BIGINT")))
    with pytest.raises(Misconfigured, check=of_kind("state.key_missing", keys=["k"], missing=["k"], what="read")):
        written(spark, chain, DAYS[0], lambda state: state.read(spark.createDataFrame([], "n BIGINT")))
    with pytest.raises(Misconfigured, check=of_kind("state.type_differs", declared="bigint", field="n", found="int")):
        written(spark, chain, DAYS[0], upsert([("a", 1)], "k STRING, n INT"))
    empty = spark.createDataFrame([], SCHEMA)
    with pytest.raises(Misconfigured, check=of_kind("state.too_many_changes", changes="61", most="60")):
        written(spark, chain, DAYS[0], lambda state: [state.upsert(empty) for _ in range(61)])


@pytest.mark.spark
def test_read_takes_only_the_rows_of_the_keys_that_it_is_given(spark, chain):
    epoch(spark, chain, DAYS[0], [("a", 1), ("b", 1), (None, 1)])
    epoch(spark, chain, DAYS[1], [("b", 2), ("c", 2)])
    state = opened(spark, chain, DAYS[2])
    keys = spark.createDataFrame([(1, "b"), (2, "b"), (3, None), (4, "z")], "other INT, k STRING")
    assert [row[1] for row in state.read(keys).orderBy("n").collect()] == [1, 2]
    assert found(state.__class__(state.stored), keys.where("k is not null")) == [("b", 2)]
    joined = keys.join(state.read(keys), "k", "left").where("n is not null")
    assert [row["n"] for row in joined.collect()] == [2, 2]


@pytest.mark.spark
def test_read_finds_equal_numbers_of_other_types_and_refuses_keys_that_equal_none(spark, store):
    chain = StateChain(store, keyed_state("h", key=["a", "b"], schema="a INT, b BIGINT, n BIGINT"))
    epoch(spark, chain, DAYS[0], [(1, 2, 3), (None, 2, 4), (5, None, 6)], chain.state.schema)
    state = opened(spark, chain, DAYS[1])
    keys = spark.sql("select * from values (1L, 2S), (1L, 2S), (null, 2S), (5L, null), (4294967297L, 2S) keys(a, b)")
    assert {row["n"] for row in state.read(keys.select("b", "a")).collect()} == {3, 4, 6}
    with pytest.raises(
        Misconfigured, check=of_kind("state.key_out_of_range", found="Row(a=4294967297, b=2)", state="h")
    ):
        state.per_key(keys, lambda key, rows, state: None, "a INT")
    for kind in ("string", "decimal(10,0)", "double", "date", "string collate UTF8_LCASE"):
        other = spark.sql(f"select cast(null as {kind}) a, 2L b")
        for ask in (state.read, lambda rows: state.per_key(rows, print, "a INT")):
            with pytest.raises(Misconfigured, match="its key a is int, but the rows have"):
                ask(other)
        with pytest.raises(Misconfigured, check=of_kind("state.type_differs", declared="int", field="a", name="h")):
            written(spark, chain, DAYS[1], lambda state, other=other: state.delete(other))


@pytest.mark.spark
def test_every_type_that_may_be_declared_is_written_read_and_written_again(spark, store):
    values = {
        "BOOLEAN": "true",
        "TINYINT": "-128",
        "SMALLINT": "300",
        "INT": "7",
        "BIGINT": "9007199254740993",
        "FLOAT": "'NaN'",
        "DOUBLE": "-0.0",
        "DECIMAL(38,3)": "'12345678901234567890123456789012345.678'",
        "DATE": "'0001-01-01'",
        "TIMESTAMP": "'9999-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ": "'0001-01-01 00:00:00'",
        "STRING": "'ß '",
        "BINARY": "X'00FF'",
        "STRUCT<x: INT, y: ARRAY<BIGINT>>": "null",
        "ARRAY<MAP<STRING, DATE>>": "array(map('a', date'2020-01-01'), null)",
        "MAP<BIGINT, STRUCT<x: TIMESTAMP_NTZ>>": "map(1L, null)",
    }
    kinds = dict(enumerate(values))
    schema = ", ".join(["k BIGINT", *(f"c{i} {kind}" for i, kind in kinds.items())])
    rows = spark.range(2).selectExpr("id k", *(f"cast({values[kind]} as {kind}) c{i}" for i, kind in kinds.items()))
    assert list(stored_fields(schema)) == rows.columns
    chain = StateChain(store, keyed_state("h", key="k", schema=schema))
    first = written(spark, chain, DAYS[0], lambda state: state.upsert(rows))
    chain.go_on(DAYS[0], {ALL: first})
    same = written(spark, chain, DAYS[1], lambda state: state.upsert(rows, only_changed=True))
    chain.go_on(DAYS[1], {ALL: same})
    of_nulls = rows.withColumn(
        "c13", F.expr("if(k = 0, named_struct('x', null, 'y', null), null)").cast(rows.schema["c13"].dataType)
    )
    other = written(spark, chain, DAYS[2], lambda state: state.upsert(of_nulls, only_changed=True))
    assert (same.state.changed, same.digest, other.state.changed) == (0, first.digest, 1)
    assert state_digest(StoredState(spark, chain.read(DAYS[2]))) == first.digest


@pytest.mark.spark
def test_keys_with_equal_hashes_are_distinguished(spark, store):
    """What is replaced is looked for by Spark's hash of the keys, which skips nulls."""
    schema = "a STRING, b STRING, n BIGINT"
    chain = StateChain(store, keyed_state("h", key=["a", "b"], schema=schema))
    epoch(spark, chain, DAYS[0], [(None, "x", 1), ("x", None, 2)], schema)
    report = epoch(spark, chain, DAYS[1], [(None, "x", 3)], schema)
    assert (report.state.changed, sum(file.rows for file in report.files)) == (1, 1)
    stored = StoredState(spark, chain.read(DAYS[2]))
    assert set(map(tuple, KeyedState(stored).read().collect())) == {(None, "x", 3), ("x", None, 2)}
    assert state_digest(stored) == report.digest


@pytest.mark.spark
def test_keys_may_be_of_any_type_that_divides_and_columns_may_have_odd_names(spark, store):
    values = {
        "BOOLEAN": True,
        "TINYINT": -1,
        "SMALLINT": 300,
        "BIGINT": 2**60,
        "DATE": date(1500, 1, 1),
        "TIMESTAMP": datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001  # in the session's zone
        "TIMESTAMP_NTZ": datetime(2013, 1, 1),  # noqa: DTZ001
        "BINARY": bytearray(b"\x00\xff"),
        "STRING": "ß`.",
    }
    names = [f"k{number}" for number in range(len(values))]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, values, strict=True)) + ", `odd.na``me x` INT"
    chain = StateChain(store, keyed_state("h", key=names, schema=schema))
    whole, nulls = (*values.values(), 1), (*[None] * len(values), 1)
    some = [tuple(None if place == hole else value for place, value in enumerate(whole)) for hole in range(len(values))]
    epoch(spark, chain, DAYS[0], [whole, nulls, *some], schema)
    report = epoch(spark, chain, DAYS[1], [(*row[:-1], 2) for row in (whole, nulls, *some[:4])], schema)
    assert (report.state.changed, report.digest.rows) == (6, 11)
    assert sorted(row[-1] for row in opened(spark, chain, DAYS[2]).read().collect()) == [1] * 5 + [2] * 6


@pytest.mark.spark
def test_files_are_distinguished_in_a_folder_of_any_name_and_with_equal_names(spark, tmp_path):
    store = Store.open(str(tmp_path / "a store % é #1"))
    store.initialise()
    chain = StateChain(store, keyed_state("h", key="k", schema=SCHEMA))
    for number, day in enumerate(DAYS[:3]):
        epoch(spark, chain, day, [("a", number), (f"k{number}", number)])
    expected = [("a", 2), ("k0", 0), ("k1", 1), ("k2", 2)]
    assert found(opened(spark, chain, DAYS[3])) == expected
    stored = opened(spark, chain, DAYS[3]).stored
    renamed = []
    for number, file in enumerate(stored.read.files):
        target = tmp_path / "other" / str(number) / "part-0.parquet"
        target.parent.mkdir(parents=True)
        shutil.copy(Path(file.path.removeprefix("file://")), target)
        renamed.append(replace(file, path=f"file://{target}"))
    again = StoredState(spark, replace(stored.read, files=tuple(renamed)))
    assert found(KeyedState(again)) == expected


@pytest.mark.spark
def test_tallies_that_cannot_be_are_an_error_of_ours_before_anything_is_committed(spark, chain):
    ending = StateChain(chain.store, keyed_state("h", key="k", schema=SCHEMA, ttl="5 days"))
    epoch(spark, ending, DAYS[0], [("a", 1), ("b", 1)])
    state = opened(spark, ending, DAYS[1])
    known = state.stored.read.tallies
    for wrong in ((replace(known[0], rows=0),), (UpdateDigest(known[0].updated - 1, 2, 0, 0, 0),)):
        broken = KeyedState(StoredState(spark, replace(state.stored.read, tallies=wrong), ALL))
        broken.upsert(spark.createDataFrame([("a", 2)], SCHEMA))
        with pytest.raises(Internal, match=r"report this"):
            write_state(broken, "h", ending.output(DAYS[1]), ending.store)

"""Columns and tables of Delta Lake: what becomes of their types, and what is refused before anything is published."""

# ruff: noqa: S608

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import Field, QueryBuilder
from deltalake.exceptions import DeltaError
from tests.messages.kinds import of_kind
from tests.weir.sinks.delta_sink import DAY, LONG, NEXT, Sink, by_duckdb, made_table

from weir.errors import Misconfigured
from weir.sinks import Outcome, TargetAway
from weir.sinks.targets import delta as module


@pytest.fixture
def sink(tmp_path):
    return Sink(tmp_path)


# Columns


NESTED = (
    ("s", "string", pa.string()),
    ("d", "decimal(12,2)", pa.decimal128(12, 2)),
    ("t", "timestamp", pa.timestamp("us", "UTC")),
    ("day", "date", pa.date32()),
    ("b", "binary", pa.binary()),
    ("l", {"type": "array", "elementType": "integer", "containsNull": True}, pa.list_(pa.int32())),
    (
        "m",
        {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
        pa.map_(pa.string(), pa.float64()),
    ),
    (
        "r",
        {"type": "struct", "fields": [{"name": "x", "type": "short", "nullable": True, "metadata": {}}]},
        pa.struct([("x", pa.int16())]),
    ),
)


def test_all_types_null_and_the_empty_text_come_back_as_they_were(sink):
    at = datetime(2013, 1, 1, 12, tzinfo=UTC)
    full = ("", Decimal("-1.50"), at, date(1969, 12, 31), b"\x00", [1, None], {"a": None}, {"x": -3})
    empty = (None,) * 8
    given = (*full[:6], list(full[6].items()), full[7])
    sink.publish(sink.version(1, [given, empty], columns=NESTED))
    assert sorted(sink.rows(), key=repr) == sorted([full, empty], key=repr)


def test_timestamps_as_older_sparks_write_them_are_read(sink):
    columns = (("t", "timestamp", pa.timestamp("us", "UTC")),)
    version = sink.version(
        1, [datetime(1950, 1, 1, 12, tzinfo=UTC)], columns=columns, use_deprecated_int96_timestamps=True
    )
    sink.publish(version)
    assert sink.rows() == [datetime(1950, 1, 1, 12, tzinfo=UTC)]


def test_timestamps_without_a_zone_need_a_table_that_knows_them(sink):
    columns = (*LONG, ("z", "timestamp_ntz", pa.timestamp("us")))
    sink.publish(sink.version(1, [1]))
    version = sink.version(2, [(1, datetime(2013, 1, 1))], columns=columns)  # noqa: DTZ001
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_feature_missing")):
        sink.publish(version)
    assert sink.rows() == [1]


def test_a_new_table_knows_timestamps_without_a_zone(sink):
    columns = (("z", "timestamp_ntz", pa.timestamp("us")),)
    sink.publish(sink.version(1, [datetime(2013, 1, 1)], columns=columns))  # noqa: DTZ001
    assert sink.rows() == [datetime(2013, 1, 1)]  # noqa: DTZ001


def test_columns_are_added_and_widened_in_the_commit_that_needs_them(sink):
    narrow = (("a", "integer", pa.int32()), ("f", "float", pa.float32()), ("d", "decimal(4,2)", pa.decimal128(4, 2)))
    wide = (
        ("a", "long", pa.int64()),
        ("f", "double", pa.float64()),
        ("d", "decimal(20,2)", pa.decimal128(20, 2)),
        ("s", "string", pa.string()),
    )
    # Spark writes short decimals as whole numbers.
    sink.publish(sink.version(1, [(1, 1.5, Decimal("1.25"))], columns=narrow, store_decimal_as_integer=True))
    target, version = sink.target(), sink.version(1, [(2**40, 0.1, Decimal(10**12), "x")], epoch=NEXT, columns=wide)
    token = target.prepare(version, None)
    assert len(sink.table.schema().fields) == 4
    before = sink.table.version()
    assert target.commit(version, token) is Outcome.COMMITTED
    assert sink.table.version() == before + 1
    assert (sink.rows(), sink.rows(NEXT)) == ([(1, 1.5, Decimal("1.25"), None)], [(2**40, 0.1, Decimal(10**12), "x")])
    assert sink.publish(sink.version(2, [(3, 2.5, Decimal("2.25"))], columns=narrow)) is Outcome.COMMITTED
    assert sink.rows() == [(3, 2.5, Decimal("2.25"), None)]
    assert str(sink.table.schema().fields[0].type) == 'PrimitiveType("long")'


def test_structs_get_more_fields(sink):
    def columns(*fields):
        kind = {
            "type": "struct",
            "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t, _ in fields],
        }
        array = {"type": "array", "elementType": kind, "containsNull": True}
        return (("r", array, pa.list_(pa.struct([(n, arrow) for n, _, arrow in fields]))),)

    x, wide, y = ("x", "integer", pa.int32()), ("x", "long", pa.int64()), ("y", "string", pa.string())
    sink.publish(sink.version(1, [[{"x": 1}, None]], columns=columns(x)))
    sink.publish(sink.version(1, [[{"x": 2**40, "y": "a"}]], columns=columns(wide, y), epoch=NEXT))
    assert sink.rows() == [[{"x": 1, "y": None}, None]]
    assert sink.rows(NEXT) == [[{"x": 2**40, "y": "a"}]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((("k", "string", pa.string()),), "k is bigint, expected string"),
        ((("K", "long", pa.int64()),), "K is spelled k"),
        ((("_epoch", "string", pa.string()),), "_epoch is the epoch's"),
        ((("a b", "long", pa.int64()),), "'a b' cannot be published"),
        ((("i", "interval day to second", pa.int64()),), "no type for the column 'i'"),
    ],
)
def test_columns_that_the_table_cannot_have_are_refused(sink, columns, message):
    sink.publish(sink.version(1, [1]))
    before = sink.table.version()
    with pytest.raises(Misconfigured, match=message):
        sink.target().prepare(sink.version(2, [], columns=columns), None)
    assert sink.table.version() == before


def test_without_create_a_table_and_its_columns_must_be_there(sink):
    version = sink.version(1, [1])
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_table_missing")):
        sink.publish(version, create="never")
    sink.publish(version)
    more = (*LONG, ("s", "string", pa.string()))
    with pytest.raises(Misconfigured, match=r"s is missing, expected string: declare create="):
        sink.publish(sink.version(2, [(1, "x")], columns=more), create="never")
    assert sink.publish(sink.version(2, [2]), create="never") is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("condition", "count"), [("k = 2", 1), ("f = 0.5", 1), ("s > 'b'", 1), ("s is null", 2), ("later is null", 3)]
)
def test_no_reader_loses_rows_by_statistics(sink, condition, count):
    columns = (*LONG, ("f", "double", pa.float64()), ("s", "string", pa.string()))
    sink.publish(sink.version(1, [(1, 0.5, "x" * 200), (2, None, None), (3, float("nan"), None)], columns=columns))
    sink.append(7)  # by a writer that gives minima and maxima
    sink.table.alter.add_columns(Field("later", "long"))
    condition = f"_epoch = '{DAY}' and {condition}"  # delta-rs' dataset loses the row of the other writer
    found = by_duckdb(sink.table)
    assert len(found.filter(condition).fetchall()) == count
    by_delta = QueryBuilder().register("t", sink.table).execute(f"select k from t where {condition}")
    assert pa.table(by_delta.read_all()).num_rows == count


# Tables of others


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly is set"),
        ({"delta.enableDeletionVectors": "true"}, "has the feature deletionVectors"),
        ({"delta.columnMapping.mode": "name"}, "maps columns by name"),
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "would drop the markers"),
        ({"partition": None}, "partitioned by nothing, expected _epoch"),
        ({"partition": "k"}, "partitioned by k, expected _epoch"),
    ],
)
def test_tables_whose_promises_files_would_break_are_refused_before_anything_is_published(sink, properties, message):
    made_table(sink, **properties)
    with pytest.raises(Misconfigured, match=message):
        sink.target().prepare(sink.version(1, [1]), None)
    assert sink.table.version() == 0


def test_a_table_with_a_constraint_is_refused(sink):
    made_table(sink)
    sink.table.alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_table_unfit")):
        sink.publish(sink.version(1, [1]))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field("g", "long", metadata={"delta.generationExpression": "k + 1"}), of_kind("sinks.delta_rule_unknown")),
        (
            Field("v", "string", metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
            of_kind("sinks.delta_rule_unknown"),
        ),
        (Field("n", "long", nullable=False), of_kind("sinks.delta_column_left_out")),
    ],
)
def test_columns_of_a_table_that_weir_cannot_fill_are_refused(sink, field, message):
    made_table(sink, (("k", "long"), (field, None), ("_epoch", "string")))
    with pytest.raises(Misconfigured, check=message):
        sink.publish(sink.version(1, [1]))


def test_a_column_without_nulls_takes_rows_without_nulls(sink):
    made_table(sink, ((Field("k", "long", nullable=False), None), ("_epoch", "string")))
    sink.publish(sink.version(1, [1]))
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_null_refused", name="k")):
        sink.target().prepare(sink.version(2, [2], [None]), None)
    assert sink.rows() == [1]


def test_a_table_that_was_made_by_somebody_keeps_its_description_and_comments(sink):
    made_table(sink, ((Field("k", "long", metadata={"comment": "the key"}), None), ("_epoch", "string")))
    sink.table.alter.set_table_description("delays of all days")
    sink.publish(sink.version(1, [(1, "x")], columns=(*LONG, ("s", "string", pa.string()))))
    assert sink.table.metadata().description == "delays of all days"
    assert [(each.name, each.metadata) for each in sink.table.schema().fields] == [
        ("k", {"comment": "the key"}),
        ("_epoch", {}),
        ("s", {}),
    ]


def test_a_table_belongs_to_one_sink_until_a_person_says_otherwise(sink):
    sink.publish(sink.version(1, [1]))
    other = sink.version(1, [2], sink="others")
    with pytest.raises(
        Misconfigured, check=of_kind("sinks.delta_owned_by_another", found="flow.delays", owner="flow.others")
    ):
        sink.publish(other)
    sink.table.alter.set_table_properties({"weir.owner": "flow.others"}, raise_if_not_exists=False)
    assert sink.publish(other) is Outcome.COMMITTED
    assert sink.rows() == [2]


def test_a_disk_that_is_not_there_is_away(sink):
    version = sink.version(1, [1])
    sink.root.parent.rmdir()
    with pytest.raises(TargetAway, check=of_kind("sinks.folder_away")):
        sink.target().prepare(version, None)
    assert not sink.root.parent.exists()


def test_two_columns_that_differ_in_case_are_refused(sink):
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_unusable")):
        sink.target().prepare(sink.version(1, columns=(("foo", *LONG[0][1:]), ("FOO", *LONG[0][1:]))), None)


def test_a_file_where_the_table_should_be_is_no_silence(sink):
    sink.root.write_text("not a table")
    with pytest.raises(Misconfigured):
        sink.target().prepare(sink.version(1, [1]), None)


def test_a_log_that_is_torn_is_no_silence(sink):
    sink.publish(sink.version(1, [1]))
    (sink.root / "_delta_log" / f"{sink.table.version() + 1:020}.json").write_text('{"add": ')
    with pytest.raises(Misconfigured, check=of_kind("sinks.delta_unusable")):
        sink.target().prepare(sink.version(2, [2]), None)


def test_a_name_of_folders_that_is_too_long_is_refused_before_anything_is_published(sink):
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        sink.target(partition="x" * 240).prepare(sink.version(1, [1]), None)


def test_a_file_where_the_epochs_folder_should_be_is_refused_before_anything_is_published(sink):
    sink.publish(sink.version(1, [1], epoch=NEXT))
    (sink.root / f"_epoch={DAY}").write_text("no folder")
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        sink.target().prepare(sink.version(1, [1]), None)


def test_a_log_that_is_cleaned_up_while_it_is_read_is_read_again(sink, monkeypatch):
    sink.publish(sink.version(1, [1]))
    usual, failed = module.DeltaTable, []

    def reading(*args, **options):
        if not failed:
            failed.append(args)
            raise DeltaError("Kernel error: File not found: _delta_log/00000000000000000000.json")
        return usual(*args, **options)

    monkeypatch.setattr(module, "DeltaTable", reading)
    assert sink.target().prepare(sink.version(2, [2]), None) == {}
    assert failed

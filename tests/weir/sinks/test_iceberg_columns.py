"""Columns in Apache Iceberg: types, columns that come later, and what a table refuses before anything is published."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from tests.messages.kinds import of_kind
from tests.weir.sinks.iceberg_lake import COLUMNS, NEXT, Lake

from weir.errors import Misconfigured
from weir.sinks import Outcome
from weir.sinks.targets import iceberg
from weir.sinks.targets.iceberg_schema import NAME_MAPPING

K = ("k", "long", pa.int64())


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def struct(*fields):
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in fields]
    return {"type": "struct", "fields": made}, pa.struct([(name, arrow) for name, _, arrow in fields])


def array(kind, arrow):
    return {"type": "array", "elementType": kind, "containsNull": True}, pa.list_(arrow)


@pytest.mark.parametrize("as_integer", [False, True], ids=["decimals as bytes", "as integers, as Spark writes them"])
def test_every_type_comes_back_equal(lake, as_integer):
    zoned, plain = datetime(2013, 1, 1, 5, 6, 7, 890123, UTC), datetime(2013, 1, 1, 5, 6, 7, 890123)  # noqa: DTZ001
    kinds = [
        ("byte", pa.int8(), -7),
        ("short", pa.int16(), -300),
        ("integer", pa.int32(), 2**31 - 1),
        ("long", pa.int64(), -(2**63)),
        ("float", pa.float32(), 0.5),
        ("double", pa.float64(), 1e-300),
        ("decimal(7,2)", pa.decimal128(7, 2), Decimal("-12345.67")),
        ("decimal(15,2)", pa.decimal128(15, 2), Decimal("-1234567890123.45")),
        ("decimal(38,10)", pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789")),
        ("string", pa.string(), "ä\0\\N\t\r\n'\"\\."),
        ("varchar(9)", pa.string(), ""),
        ("boolean", pa.bool_(), True),
        ("date", pa.date32(), date(1900, 2, 28)),
        ("timestamp", pa.timestamp("us", "UTC"), zoned),
        ("timestamp_ntz", pa.timestamp("us"), plain),
        ("binary", pa.binary(), b"\0\xff"),
    ]
    columns = [K, *((f"c{at}", kind, arrow) for at, (kind, arrow, _) in enumerate(kinds))]
    values = [value for *_, value in kinds]
    rows = [(1, *values), (2, *[None] * len(values))]
    lake.publish(lake.version(1, rows, columns=columns, store_decimal_as_integer=as_integer))
    found = lake.load().scan().to_arrow().to_pylist()
    assert [tuple(row.values()) for row in found] == rows


def test_nested_values_come_back_equal_and_nested_columns_can_be_added(lake):
    point, wider = struct(("x", "long", pa.int64())), struct(("x", "long", pa.int64()), ("y", "string", pa.string()))
    days = ({"type": "map", "keyType": "string", "valueType": "date"}, pa.map_(pa.string(), pa.date32()))
    before = [K, ("l", *array(*point)), ("m", *days), ("p", *point)]
    after = [K, ("l", *array(*wider)), ("m", *days), ("p", *wider)]
    day = [("a", date(2013, 1, 1)), ("b", None)]
    lake.publish(lake.version(1, [(1, [{"x": 1}, None], day, {"x": 3}), (2, [], None, None)], columns=before))
    assert lake.load().scan("k = 1").to_arrow().to_pylist() == [
        {"k": 1, "l": [{"x": 1}, None], "m": day, "p": {"x": 3}}
    ]
    lake.publish(lake.version(1, [(3, [{"x": 1, "y": "b"}], [], {"x": 3, "y": None})], columns=after, epoch=NEXT))
    assert sorted(lake.load().scan().to_arrow().to_pylist(), key=lambda row: row["k"]) == [
        {"k": 1, "l": [{"x": 1, "y": None}, None], "m": day, "p": {"x": 3, "y": None}},
        {"k": 2, "l": [], "m": None, "p": None},
        {"k": 3, "l": [{"x": 1, "y": "b"}], "m": [], "p": {"x": 3, "y": None}},
    ]


def test_new_columns_come_in_the_snapshot_of_their_files_and_missing_ones_are_null(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    version = lake.version(1, [("e", 2, "b", 5)], epoch=NEXT, columns=(*COLUMNS, ("n", "integer", pa.int32())))
    lake.target().prepare(version, None)
    assert "n" not in lake.load().schema().column_names
    lake.publish(version)
    assert (lake.rows("k", "n"), lake.snapshots()) == ([(1, None), (2, 5)], 2)
    lake.publish(lake.version(2, [("e", 3, "c")], epoch=NEXT))
    assert lake.rows("k", "n") == [(1, None), (3, None)]


def test_columns_become_wider_and_never_narrower(lake):
    narrow = [("k", "integer", pa.int32()), ("f", "float", pa.float32()), ("d", "decimal(7,2)", pa.decimal128(7, 2))]
    wide = [K, ("f", "double", pa.float64()), ("d", "decimal(9,2)", pa.decimal128(9, 2))]
    lake.publish(lake.version(1, [(1, 0.5, Decimal("1.00"))], columns=narrow))
    lake.publish(lake.version(1, [(2**40, 0.1, Decimal("1234567.89"))], columns=wide, epoch=NEXT))
    assert lake.rows() == [(1, 0.5, Decimal("1.00")), (2**40, 0.1, Decimal("1234567.89"))]
    types = [str(each.field_type) for each in lake.load().schema().fields]
    lake.publish(lake.version(2, [(3, 0.5, Decimal("1.00"))], columns=narrow))
    assert [str(each.field_type) for each in lake.load().schema().fields] == types
    assert lake.rows("k") == [(1099511627776,), (3,)]


def test_a_table_without_a_mapping_of_names_gets_one_with_its_first_files(lake):
    existing(lake)
    lake.publish(lake.version(1, [("d", 1, "a")]), create="never")
    assert lake.rows() == [("d", 1, "a")]
    assert NAME_MAPPING in lake.load().properties


def existing(lake, *transforms, day=None, required=()):
    """A table that a person has made, partitioned by `day`."""
    kinds = {"day": day or StringType(), "k": LongType(), "s": StringType()}
    fields = [
        NestedField(at, name, kind, required=name in required) for at, (name, kind) in enumerate(kinds.items(), start=1)
    ]
    spec = PartitionSpec(*(PartitionField(1, 1000 + at, each, f"p{at}") for at, each in enumerate(transforms)))
    catalog = lake.catalog()
    catalog.create_namespace("db")
    catalog.create_table("db.delays", Schema(*fields), partition_spec=spec)


def with_day(spark, arrow):
    return (("day", spark, arrow), *COLUMNS[1:])


@pytest.mark.parametrize(
    ("transform", "day", "columns", "values"),
    [
        (IdentityTransform(), StringType(), COLUMNS, ("d", "e")),
        (IdentityTransform(), DateType(), with_day("date", pa.date32()), (date(2013, 1, 1), date(2013, 1, 2))),
        (
            IdentityTransform(),
            DecimalType(9, 2),
            with_day("decimal(9,2)", pa.decimal128(9, 2)),
            (Decimal("1.50"), Decimal("-1.50")),
        ),
        (
            DayTransform(),
            TimestamptzType(),
            with_day("timestamp", pa.timestamp("us", "UTC")),
            (datetime(2013, 1, 1, 3, tzinfo=UTC), datetime(2013, 1, 2, 4, tzinfo=UTC)),
        ),
        (TruncateTransform(2), StringType(), COLUMNS, ("abc", "bcd")),
    ],
    ids=["identity", "date", "decimal", "day", "truncate"],
)
def test_a_partitioned_table_takes_files_of_one_value(lake, transform, day, columns, values):
    existing(lake, transform, day=day)
    one, other = values
    lake.publish(lake.version(1, [(one, 1, "a")], [(other, 2, "b")], [(None, 3, "c")], columns=columns))
    lake.publish(lake.version(1, [(one, 99, "foreign")], columns=columns, sink="others"))
    lake.publish(lake.version(2, [(one, 4, "a")], [(other, 5, "b")], columns=columns))
    assert lake.rows("k") == [(4,), (5,), (99,)]
    assert len({str(task.file.partition) for task in lake.load().scan().plan_files()}) == 2
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_file_refused")):
        lake.publish(lake.version(3, [(one, 4, "a"), (other, 5, "b")], columns=columns))


@pytest.mark.parametrize(
    ("rows", "columns", "options", "message"),
    [
        ([("d", 1, "a"), (None, 2, "b")], COLUMNS, {}, of_kind("sinks.iceberg_partition_null")),
        ([("d", 1, "a")], COLUMNS, {"write_statistics": False}, of_kind("sinks.iceberg_statistics_missing")),
        ([(1, "a")], COLUMNS[1:], {}, of_kind("sinks.iceberg_partition_missing")),
    ],
)
def test_a_partition_whose_value_the_footer_does_not_tell_is_refused(lake, rows, columns, options, message):
    """PyIceberg would put these files into another partition, or into that of null."""
    existing(lake, IdentityTransform())
    with pytest.raises(Misconfigured, check=message):
        lake.target().prepare(lake.version(1, rows, columns=columns, **options), None)


def test_a_partition_whose_metrics_are_off_is_not_taken_for_null(lake):
    existing(lake, IdentityTransform())
    with lake.load().transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "counts"})
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_partition_null")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)


def test_a_partition_that_no_statistics_tell_is_refused(lake):
    existing(lake, BucketTransform(4))
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_file_refused")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ([*COLUMNS, ("n", "integer", pa.int32())], ("d", 1, "a", 5), of_kind("sinks.iceberg_table_unfit")),
        ([("k", "string", pa.string())], ("1",), of_kind("sinks.iceberg_type_differs")),
        ([("s", "binary", pa.binary())], (b"x",), of_kind("sinks.iceberg_type_differs", name="s")),
        ([("K", "long", pa.int64())], (1,), of_kind("sinks.iceberg_column_spelled")),
        ([K, ("v", "void", pa.null())], (1, None), of_kind("sinks.iceberg_type_unknown", where="v")),
        (
            [K, ("l", *array("interval day to second", pa.duration("us")))],
            (1, []),
            of_kind("sinks.iceberg_type_unknown", where="l.element"),
        ),
    ],
)
def test_columns_that_a_table_does_not_take_are_refused(lake, columns, row, message):
    existing(lake)
    with pytest.raises(Misconfigured, check=message):
        lake.target(create="never").prepare(lake.version(1, [row], columns=columns), None)
    assert lake.snapshots() == 0


def test_a_table_that_requires_values_is_refused(lake):
    existing(lake, required=("k",))
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_required", first="k")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)


def test_a_table_of_a_format_that_pyiceberg_does_not_write_is_refused(lake, monkeypatch):
    existing(lake)
    monkeypatch.setattr(iceberg, "_FORMAT", 1)
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_format_too_new", format="1", format_version="2")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)


def test_a_table_that_is_missing_is_named_with_what_to_write(lake):
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_table_missing", name="db.delays")):
        lake.target(create="never").prepare(lake.version(1, [("d", 1, "a")]), None)


def test_a_column_that_was_renamed_is_found_by_its_new_name(lake):
    lake.publish(lake.version(1, [("d", 1, "a")]))
    with lake.load().update_schema() as update:
        update.rename_column("s", "text")
    with pytest.raises(
        Misconfigured, check=of_kind("sinks.iceberg_column_renamed", name="s", new_name="text", table="db.delays")
    ):
        lake.publish(lake.version(2, [("d", 2, "b")]))
    renamed = (*COLUMNS[:2], ("text", "string", pa.string()))
    assert lake.publish(lake.version(1, [("e", 2, "b")], columns=renamed, epoch=NEXT)) is Outcome.COMMITTED
    assert lake.rows("k", "text") == [(1, "a"), (2, "b")]


def test_a_mapping_of_names_without_a_column_is_refused(lake):
    existing(lake)
    with lake.load().transaction() as change:
        change.set_properties({NAME_MAPPING: '[{"field-id": 1, "names": ["day"]}]'})
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_mapping_incomplete", field_id="2", name="k")):
        lake.target().prepare(lake.version(1, [("d", 1, "a")]), None)


def test_timestamps_as_int96_are_refused_by_the_setting_that_writes_them(lake):
    columns = [("t", "timestamp", pa.timestamp("ns"))]
    version = lake.version(
        1, [(datetime(2013, 1, 1, tzinfo=UTC),)], columns=columns, use_deprecated_int96_timestamps=True
    )
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_int96")):
        lake.target().prepare(version, None)


def test_field_ids_of_another_table_are_refused(lake):
    kind = pa.field("k", pa.int64(), metadata={"PARQUET:field_id": "2"})
    version = lake.version(1, [(1,)], columns=[("k", "long", kind.type)])
    pa.parquet.write_table(pa.table([[1]], schema=pa.schema([kind])), lake.store / version.files[0].path)
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_field_ids")):
        lake.target().prepare(version, None)


LIST = array("long", pa.int64())


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (
            [("a.b", "long", pa.int64()), ("a", *struct(("b", "long", pa.int64())))],
            of_kind("sinks.iceberg_names_joined"),
        ),
        ([("l", *LIST), ("l.element", "long", pa.int64())], of_kind("sinks.iceberg_names_joined")),
        (
            [("s", *struct(("x.y", "long", pa.int64()), ("x", *struct(("y", "long", pa.int64())))))],
            of_kind("sinks.iceberg_names_joined"),
        ),
        ([("foo", "long", pa.int64()), ("FOO", "string", pa.string())], of_kind("sinks.iceberg_names_joined")),
    ],
    ids=["struct", "array", "nested", "case"],
)
def test_names_that_are_one_name_in_iceberg_are_refused_before_a_table_is_made(lake, columns, names):
    with pytest.raises(Misconfigured, check=names):
        lake.target().prepare(lake.version(1, columns=columns), None)
    assert not lake.catalog().table_exists(lake.table)


def test_a_column_with_a_dot_is_not_taken_for_a_field_that_the_table_has(lake):
    lake.publish(lake.version(1, [(1, {"b": 2})], columns=[K, ("a", *struct(("b", "long", pa.int64())))]))
    with pytest.raises(
        Misconfigured,
        check=of_kind("sinks.iceberg_depth_differs", found="the field 'b' of 'a'", given="the column 'a.b'"),
    ):
        lake.target().prepare(lake.version(2, [(1, 3)], columns=[K, ("a.b", "long", pa.int64())]), None)


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_a_time_that_pyiceberg_cannot_describe_is_refused_by_the_name_of_its_column(lake, kind):
    arrow, late = {
        "date": (pa.date32(), 2932897),
        "timestamp": (pa.timestamp("us", "UTC"), 2932897 * 86_400_000_000),
    }[kind]
    version = lake.version(1, [(1, late)], columns=[K, ("at", kind, arrow)])
    with pytest.raises(Misconfigured, check=of_kind("sinks.iceberg_years_refused", file="at")):
        lake.target().prepare(version, None)

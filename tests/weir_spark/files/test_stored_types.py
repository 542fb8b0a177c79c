"""A column of Parquet is read as what its file says, or widened without loss; all other types are found, by name."""

import io
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.dataflow.state_schema import declared_fields
from weir_spark.files.stored_types import stored_types, unreadable

AT = datetime(2013, 1, 1, 12, tzinfo=UTC)
WHOLE = {"TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE"}
DECIMALS = {"DECIMAL(20,2)", "DECIMAL(20,0)"}
TIMES = {"TIMESTAMP", "TIMESTAMP_NTZ"}
READ = {
    "bool": (pa.array([True]), {"BOOLEAN"}),
    "int8": (pa.array([5], pa.int8()), WHOLE | DECIMALS),
    "int16": (pa.array([5], pa.int16()), WHOLE | DECIMALS),
    "int32": (pa.array([5], pa.int32()), WHOLE | DECIMALS),
    "int64": (pa.array([5], pa.int64()), {"BIGINT", "DECIMAL(20,0)"}),
    "uint8": (pa.array([5], pa.uint8()), WHOLE),
    "uint16": (pa.array([5], pa.uint16()), WHOLE),
    "uint32": (pa.array([4_000_000_000], pa.uint32()), {"BIGINT"}),
    "uint64": (pa.array([2**63 + 5], pa.uint64()), {"DECIMAL(20,0)"}),
    "float": (pa.array([0.5], pa.float32()), {"FLOAT", "DOUBLE"}),
    "double": (pa.array([0.5]), {"DOUBLE"}),
    "decimal9": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), {"DECIMAL(9,2)", "DECIMAL(20,2)"}),
    "decimal38": (pa.array([Decimal("1.25")], pa.decimal128(38, 2)), set()),
    "date": (pa.array([date(2013, 1, 2)]), {"DATE", "TIMESTAMP_NTZ"}),
    "time_ms": (pa.array([time(10)], pa.time32("ms")), set()),
    "time_us": (pa.array([time(10)], pa.time64("us")), set()),
    "local_ms": (pa.array([AT.replace(tzinfo=None)], pa.timestamp("ms")), TIMES),
    "at_us": (pa.array([AT], pa.timestamp("us", "UTC")), TIMES),
    "at_ns": (pa.array([AT], pa.timestamp("ns", "UTC")), set()),
    "text": (pa.array(["12"]), {"STRING", "BINARY"}),
    "words": (pa.array(["x", "x"]).dictionary_encode(), {"STRING", "BINARY"}),
    "bytes": (pa.array([b"12"]), {"STRING", "BINARY"}),
    "fixed": (pa.array([b"12"], pa.binary(2)), {"BINARY"}),
    "nulls": (pa.nulls(1), WHOLE | {"DATE"}),
    "list": (pa.array([[1]]), {"ARRAY<BIGINT>"}),
    "struct": (pa.array([{"a": 1}]), {"STRUCT<a: BIGINT>", "STRUCT<A: DECIMAL(20,0)>"}),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"MAP<STRING, BIGINT>"}),
}
"""Columns of a file, and all declared types that they are read as."""

DECLARED = {kind for _, kinds in READ.values() for kind in kinds} | {"DECIMAL(5,2)", "ARRAY<DOUBLE>", "STRUCT<a: INT>"}


def footer_of(columns):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return pq.read_metadata(out).schema


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("wrap", ["{}", "ARRAY<STRUCT<x: {}>>"])
def test_each_stored_type_is_read_as_types_that_have_all_its_values(name, wrap):
    values, right = READ[name]
    if name in ("words", "map") and wrap != "{}":
        return
    column = values if wrap == "{}" else pa.array([[{"x": None}]], pa.list_(pa.struct([("x", values.type)])))
    stored = stored_types(footer_of({"v": column}))
    read = {kind for kind in DECLARED if not list(unreadable(declared_fields(f"V {wrap.format(kind)}"), stored))}
    narrow = {"int8": set(), "uint8": {"TINYINT"}, "int16": {"TINYINT"}}.get(name, {"TINYINT", "SMALLINT"})
    assert read == (right if wrap == "{}" else right - narrow)


def test_a_column_that_is_not_read_is_told_with_its_place_its_types_and_what_to_write():
    stored = stored_types(footer_of({"v": pa.array([{"at": [AT]}]), "n": pa.array([1], pa.uint32())}))
    found = list(unreadable(declared_fields("v STRUCT<at: ARRAY<BIGINT>>, n INT, other INT"), stored))
    assert [(each.name, each.declared.name, each.stored.name) for each in found] == [
        ("v.at.element", "bigint", "TIMESTAMP(microseconds)"),
        ("n", "int", "UINT_32"),
    ]
    assert [str(each).rpartition(": ")[2] for each in found] == ["write TIMESTAMP", "write BIGINT"]

"""Columns as `values` writes them, of Arrow and of PostgreSQL: nothing goes through dates of Python, or floats."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc


def of_arrow(column):
    """The values of a column, in the form of `values`."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = pc.cast(column.cast(pa.timestamp("us", kind.tz)), pa.int64())
    elif pa.types.is_date32(kind):
        column = pc.cast(column, pa.int32())
    return [plain(each, kind) for each in column.to_pylist()]


def plain(value, kind):
    if value is None:
        return None
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if pa.types.is_map(kind):
        return {plain(key, kind.key_type): plain(each, kind.item_type) for key, each in value}
    if isinstance(value, list):
        return [plain(each, kind.value_type) for each in value]
    if isinstance(value, dict):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    return value


SELECTED = {
    "date": "v - date '1970-01-01'",
    "timestamp": "(extract(epoch from v) * 1000000)::bigint",
    "timestamp_ntz": "(extract(epoch from v) * 1000000)::bigint",
    "float": "v::float8::text",
    "double": "v::text",
}
"""What is selected of a column `v` in PostgreSQL, by Spark's type; else the column."""


def of_postgres(value, type_):
    """A selected value, in the form of `values`."""
    if value is None:
        return None
    if type_ in ("float", "double"):
        return "nan" if value == "NaN" else repr(float(value))
    if isinstance(value, memoryview):
        return bytes(value)
    if type_.startswith("map<int"):
        return {key: each for key, each in value}  # noqa: C416  JSON has pairs where keys are no texts
    return int(value) if type_ in ("date", "timestamp", "timestamp_ntz") else value

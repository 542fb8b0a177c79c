"""Converts rows between Arrow and Python. Invariant: no value is changed; what a column cannot hold is an error.

This module runs in Spark's Python workers, as `keyed_pass` does. Arrow would cut 1.5 and Decimal("1.5") to 1 and a time
to its day, round to decimals, drop fields of structs, and give pandas whole numbers as floats.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time
from operator import call
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


class NotHeld(ValueError):
    """A value that a column of the state or of the answer does not hold, or Python does not."""


_LARGEST_FLOAT = 3.4028235677973366e38
"""From here on a double is rounded to infinity as a float."""

_FAMILIES: tuple[tuple[str, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    ("a boolean", (pt.is_boolean,)),
    ("a number", (pt.is_integer, pt.is_floating, pt.is_decimal)),
    ("text", (pt.is_string, pt.is_large_string, pt.is_string_view)),
    ("binary", (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)),
    ("a date", (pt.is_date,)),
    ("a timestamp", (pt.is_timestamp,)),
)
_RELATED = ({"a date", "a timestamp"}, {"text", "binary"})
_OF_ARROW = (TypeError, ValueError, OverflowError, NotImplementedError)
"""What Arrow raises for values that it cannot convert."""

_MISSING = ("NAType", "NaTType")
"""The types of pandas' missing values, by name: pandas need not be there."""


def to_pandas(table: pa.Table) -> Any:
    """Return a DataFrame of pandas; whole numbers with a null are of pandas' nullable types, or objects if nested."""
    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        column = table.column(field.name)
        if pt.is_integer(field.type) and column.null_count:
            frame[field.name] = column.to_pandas(types_mapper=_nullable)
    return frame


def _nullable(kind: pa.DataType) -> Any:
    pandas = importlib.import_module("pandas")  # only functions of pandas need it
    return getattr(pandas, f"Int{kind.bit_width}Dtype")()


def of_dicts(rows: list[dict[str, Any]], schema: pa.Schema, what: str) -> pa.Table:
    """Return rows as Arrow's. Raises NotHeld that shows the first row which is not of the schema."""
    try:
        return _of_dicts(rows, schema)
    except _OF_ARROW:
        rows = [{name: None if _is_missing(value) else value for name, value in row.items()} for row in rows]
        for row in rows:
            try:
                _of_dicts([row], schema)
            except _OF_ARROW as error:
                types = ", ".join(f"{field.name} {field.type}" for field in schema)
                raise NotHeld(f"{what} does not fit its columns ({types}): {row!r}: {error}") from error
        return _of_dicts(rows, schema)


def of_pandas(frame: Any, schema: pa.Schema) -> pa.Table:
    """Return the columns of a DataFrame of pandas, by their names. Raises NotHeld for values that do not fit."""
    return pa.table([_named(field, frame[field.name], _of_series) for field in schema], schema=schema)


def of_arrow(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a table, by their names. Raises NotHeld for values that do not fit."""
    return pa.table([_named(field, table.column(field.name), _converted) for field in schema], schema=schema)


def _named(field: pa.Field, values: Any, convert: Callable[[Any, pa.DataType], pa.Array]) -> pa.Array:
    try:
        return convert(values, field.type)
    except _OF_ARROW as error:
        raise NotHeld(f"the column {field.name} of an answer does not fit {field.type}: {error}") from error


def _of_dicts(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    for field in schema:
        _require_kept((row[field.name] for row in rows), field.type, f"the column {field.name}")
    return pa.Table.from_pylist(rows, schema=schema)


def _of_series(series: Any, kind: pa.DataType) -> pa.Array:
    """The values of a column of pandas, for which NaN is a null."""
    if series.dtype != object:
        return _converted(pa.Array.from_pandas(series), kind)
    values = list(series)
    if not pt.is_nested(kind):
        values = [None if _is_missing(each) or _is_nan(each) else each for each in values]
    _require_kept(values, kind, "it")
    return pa.array(values, kind, from_pandas=True)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_missing(value: Any) -> bool:
    return type(value).__name__ in _MISSING


def _require_kept(values: Iterable[Any], kind: pa.DataType, what: str) -> None:
    """Raise ValueError where Arrow would take a value of Python as another one."""
    is_kept = _test_of(kind)
    if is_kept is None:
        return
    for value in values:
        if value is not None and not is_kept(value):
            raise ValueError(f"{what} is of type {kind}, which does not hold {value!r}")


Test = Callable[[Any], bool]


def _test_of(kind: pa.DataType) -> Test | None:
    """Return the test of values, without None, that Arrow takes as this type; None where it refuses all others."""
    for is_of, make in _TESTS:
        if is_of(kind):
            return make(kind)
    return None


def _is_boolean(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # NumPy's has the one name or the other


def _whole(value: Any) -> bool:
    if _is_boolean(value):
        return False
    if isinstance(value, int) or _is_nan(value):
        return True  # Arrow refuses a NaN, but for pandas
    try:
        return bool(int(value) == value)
    except (TypeError, ValueError, OverflowError):
        return True  # Arrow refuses it


def _float(value: Any) -> bool:
    if _is_boolean(value):
        return False
    return not isinstance(value, float) or value in (float("inf"), -float("inf")) or not abs(value) >= _LARGEST_FLOAT


def _day(value: Any) -> bool:
    return not isinstance(value, int) and (not isinstance(value, datetime) or value.time() == time())


def _instant(value: Any) -> bool:
    return not isinstance(value, int) and not getattr(value, "nanosecond", 0)


def _clock(value: Any) -> bool:
    """A moment of another zone than UTC has two readings without one: its own, and that of UTC, which Arrow takes."""
    return _instant(value) and (not isinstance(value, datetime) or not value.utcoffset())


def _struct(kind: pa.DataType) -> Test:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    tests = [_of_null(_test_of(kind.field(i).type)) for i in range(kind.num_fields)]

    def is_kept(value: Any) -> bool:
        if isinstance(value, dict):
            return value.keys() <= {*names} and all(
                test(value.get(name)) for name, test in zip(names, tests, strict=True)
            )
        return not isinstance(value, Sequence) or all(map(call, tests, value))

    return is_kept


def _list(kind: pa.DataType) -> Test:
    test = _of_null(_test_of(kind.value_type))
    # Of a text Arrow would take the characters.
    return lambda value: not isinstance(value, str | bytes | bytearray | memoryview) and all(map(test, value))


def _map(kind: pa.DataType) -> Test:
    tests = _of_null(_test_of(kind.key_type)), _of_null(_test_of(kind.item_type))

    def is_kept(value: Any) -> bool:
        entries = [*value.items()] if isinstance(value, dict) else list(value)
        keys = [entry[0] for entry in entries]  # may be lists, which have no hash
        is_twice = not isinstance(value, dict) and any(key in keys[:at] for at, key in enumerate(keys))
        return not is_twice and all(all(map(call, tests, entry)) for entry in entries)

    return is_kept


def _of_null(test: Test | None) -> Test:
    return lambda value: value is None or test is None or _is_missing(value) or test(value)


_TESTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Test]], ...] = (
    (pt.is_integer, lambda _: _whole),
    (pt.is_float32, lambda _: _float),
    (pt.is_floating, lambda _: lambda value: not _is_boolean(value)),
    (pt.is_date, lambda _: _day),
    (pt.is_timestamp, lambda kind: _instant if kind.tz else _clock),
    (pt.is_struct, _struct),
    (pt.is_map, _map),
    (pt.is_list, _list),
)


def _converted(values: Any, kind: pa.DataType) -> pa.Array:
    """Return Arrow's values in another type. Raises ValueError where one would be changed."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pt.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if array.type == kind:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    _require_related(array.type, kind)
    if pt.is_integer(array.type) and pt.is_decimal(kind):
        # Arrow would ask for 19 digits before the point, whatever the numbers are.
        made = array.cast(pa.decimal128(20, 0)).cast(kind)
    else:
        made = array.cast(kind)
    _require_equal(array, made)
    return made


def _require_related(found: pa.DataType, kind: pa.DataType) -> None:
    """Arrow would parse texts, count the microseconds of times, and fill and drop fields of structs."""
    if pt.is_struct(found) and pt.is_struct(kind):
        parts = [{each.field(i).name: each.field(i).type for i in range(each.num_fields)} for each in (found, kind)]
        if parts[0].keys() != parts[1].keys():
            raise ValueError(f"found {found}, which has other fields")
        pairs = [(parts[0][name], parts[1][name]) for name in parts[0]]
    elif pt.is_map(found) and pt.is_map(kind):
        pairs = [(found.key_type, kind.key_type), (found.item_type, kind.item_type)]
    elif _is_list(found) and _is_list(kind):
        pairs = [(found.value_type, kind.value_type)]
    elif found == kind or pt.is_null(found):
        return
    else:
        families = {_family(found), _family(kind)}
        if pt.is_timestamp(found) and pt.is_timestamp(kind) and not kind.tz and found.tz not in (None, "UTC"):
            raise ValueError(f"found {found}, and the column has no time zone: convert it in the function")
        if "" in families or (len(families) > 1 and families not in _RELATED):
            raise ValueError(f"found {found}, which is of another kind: convert it in the function")
        return
    for one, other in pairs:
        _require_related(one, other)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _family(kind: pa.DataType) -> str:
    return next((name for name, tests in _FAMILIES if any(test(kind) for test in tests)), "")


def _require_equal(before: pa.Array, after: pa.Array) -> None:
    """Raise ValueError where a safe cast has changed a value all the same."""
    found, kind = before.type, after.type
    if pt.is_struct(kind):
        for i in range(kind.num_fields):
            _require_equal(pc.struct_field(before, kind.field(i).name), pc.struct_field(after, i))
    elif pt.is_map(kind):
        _require_equal(before.keys, after.keys)
        _require_equal(before.items, after.items)
    elif pt.is_list(kind):
        _require_equal(before.flatten(), after.flatten())
    elif pt.is_floating(found) and pt.is_floating(kind):
        is_lost = pc.and_not(pc.is_inf(after), pc.is_inf(before))
        _refuse_first(before, is_lost)
    elif _is_rounded(found, kind):
        _refuse_first(before, pc.not_equal(after.cast(found), before))


def _is_rounded(found: pa.DataType, kind: pa.DataType) -> bool:
    """Report whether a safe cast may change values, so that the way back tells."""
    is_of_float = pt.is_floating(found) and pt.is_decimal(kind)
    is_float = pt.is_decimal(found) and pt.is_floating(kind)
    return bool(is_of_float or is_float or (pt.is_timestamp(found) and pt.is_date(kind)))


def _refuse_first(values: pa.Array, is_lost: pa.Array) -> None:
    if pc.any(is_lost).as_py():
        raise ValueError(f"it does not hold {values.filter(is_lost)[0].as_py()!r}")

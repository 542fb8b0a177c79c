"""Columns of a version in PostgreSQL: their types, whether an existing table takes them, and their rows as CSV.

Invariant: what a table would refuse, or change silently, is refused here by the name of the column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from weir.dataflow.ranges import Form, fits
from weir.errors import Message, Misconfigured
from weir.sinks.rows import jsonable

EPOCH_COLUMN: Final = "_epoch"

_TYPES: Final = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "binary": "bytea",
}
_INTEGERS: Final = ("smallint", "integer", "bigint")
_TAKEN_BY: Final = {
    "real": ("real", "double precision"),
    "text": ("text", "character varying"),
    "jsonb": ("jsonb", "json"),
}
"""The types of existing columns that hold all values of a type, besides the type itself."""

_NUL_IN_JSON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON has it, after an even number of backslashes: after an odd one it is a text of six characters."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a version: its name, and the type that PostgreSQL has for it."""

    name: str
    type: str

    @property
    def is_text(self) -> bool:
        """Report whether its values are texts, which PostgreSQL stores without NUL."""
        return self.type == "text"

    @property
    def is_time(self) -> bool:
        """Report whether its values are days or moments, of which PostgreSQL and Arrow's text hold fewer than Spark."""
        return self.type.startswith(("date", "timestamp"))

    @property
    def is_json(self) -> bool:
        """Report whether its values are nested, and become JSON, which has neither NaN nor infinity."""
        return self.type == "jsonb"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table, as information_schema describes it."""

    name: str
    type: str
    precision: int | None
    scale: int | None
    length: int | None
    is_nullable: bool
    has_default: bool
    fraction: int | None
    is_generated: bool
    is_identity: bool

    @classmethod
    def made_for(cls, column: Column) -> TableColumn:
        """Return the column of a table that was made for one of a version."""
        kind, _, size = column.type.rstrip(")").partition("(")
        precision, scale = map(int, size.split(",")) if size else (None, None)
        return cls(
            name=column.name,
            type=kind,
            precision=precision,
            scale=scale,
            length=None,
            is_nullable=True,
            has_default=False,
            fraction=None,
            is_generated=False,
            is_identity=False,
        )


def columns_of(spark_schema: str) -> list[Column]:
    """Return the columns of a version. Raises Misconfigured for a type that a table cannot have."""
    return [Column(each["name"], _type(each["name"], each["type"])) for each in json.loads(spark_schema)["fields"]]


def _type(column: str, kind: Any) -> str:
    if isinstance(kind, dict) and kind["type"] in ("struct", "array", "map"):
        return "jsonb"
    if isinstance(kind, str) and kind.startswith("decimal("):
        return kind.replace("decimal", "numeric")
    plain = "string" if isinstance(kind, str) and kind.startswith(("char(", "varchar(", "string ")) else kind
    if not isinstance(plain, str) or plain not in _TYPES:
        raise Misconfigured.of("sinks.postgres_type_missing", column=column, kind=kind)
    return _TYPES[plain]


def require_taken(table: str, columns: Sequence[Column], existing: Mapping[str, TableColumn], epoch: str) -> None:
    """Require that an existing table takes all values of the columns. Raises Misconfigured with all that differs."""
    problems = [
        f"{column.name} is {_described(existing[column.name])}, expected {column.type}"
        for column in columns
        if not takes(existing[column.name], column)
    ]
    given = {column.name for column in columns} | {EPOCH_COLUMN}
    problems += [
        f"{name} is not null, has no default, and is no column of the data set"
        for name, found in existing.items()
        if name not in given and not found.is_nullable and not found.has_default
    ]
    of_epoch = existing[EPOCH_COLUMN]
    if of_epoch.type not in ("text", "character varying"):
        problems.append(Message("sinks.postgres_epoch_not_text", epoch_column=EPOCH_COLUMN, found=of_epoch.type))
    elif of_epoch.length is not None and of_epoch.length < len(epoch):
        problems.append(
            Message(
                "sinks.postgres_epoch_too_short", epoch_column=EPOCH_COLUMN, length=of_epoch.length, needed=len(epoch)
            )
        )
    if problems:
        raise Misconfigured.of("sinks.postgres_table_unfit", table=table, problems=problems)


def takes(found: TableColumn, column: Column) -> bool:
    """Report whether a column of a table holds all values of a column as they are."""
    if column.type in _INTEGERS:
        wide = _INTEGERS[_INTEGERS.index(column.type) :]
        return found.type in wide or (found.type == "numeric" and found.precision is None)
    if column.type.startswith("numeric("):
        precision, scale = (int(each) for each in column.type.removeprefix("numeric(").rstrip(")").split(","))
        if found.type != "numeric" or found.precision is None:
            return found.type == "numeric"
        left = found.scale or 0
        return left >= scale and found.precision - left >= precision - scale
    return found.type in _TAKEN_BY.get(column.type, (column.type,))


def _described(found: TableColumn) -> str:
    return (
        f"{found.type}({found.precision},{found.scale})" if found.type == "numeric" and found.precision else found.type
    )


def require_storable(
    table: str, columns: Sequence[Column], existing: Mapping[str, TableColumn], batches: Iterable[pa.RecordBatch]
) -> dict[str, int]:
    """Require that each value can be stored: no NUL, no text too long, no null where none may be, no NaN in JSON.

    Returns the bytes of the longest text, JSON or binary by its column. Raises Misconfigured with the column of the
    first that cannot.
    """
    longest: dict[str, int] = {}
    for batch in batches:
        for column in columns:
            found, values = existing[column.name], batch.column(column.name)
            problem = _problem(found, column, values)
            if problem:
                raise Misconfigured.of("sinks.postgres_value_unfit", table=table, column=column.name, problem=problem)
            if column.is_text or column.is_json or column.type == "bytea":
                longest[column.name] = max(longest.get(column.name, 0), _bytes(column, values))
    return longest


def _bytes(column: Column, values: pa.Array) -> int:
    return pc.max(pc.binary_length(_plain(column, values) if column.is_json else values)).as_py() or 0


def _problem(found: TableColumn, column: Column, values: pa.Array) -> str | None:
    if values.null_count and not found.is_nullable:
        return Message("sinks.postgres_null")
    if column.is_text and pc.any(pc.match_substring(values, "\0")).as_py():
        return Message("sinks.postgres_nul")
    if column.is_json:
        return _json_problem(values)
    if column.is_time:
        return _time_problem(found, column, values)
    longest = found.length
    if column.is_text and longest is not None and (pc.max(pc.utf8_length(values)).as_py() or 0) > longest:
        return Message("sinks.postgres_too_long", longest=longest)
    return None


def _time_problem(found: TableColumn, column: Column, values: pa.Array) -> str | None:
    is_day = column.type == "date"
    whole = values.cast(pa.int32()).cast(pa.int64()) if is_day else values.cast(_micros(values.type)).cast(pa.int64())
    ends = pc.min_max(whole).as_py()
    if not holds_times(column, ends["min"], ends["max"]):
        return Message("sinks.postgres_year_out_of_range")
    step = 10 ** (6 - (6 if is_day or found.fraction is None else found.fraction))
    if step > 1 and pc.any(pc.not_equal(pc.multiply(pc.divide(whole, step), step), whole)).as_py():
        return Message("sinks.postgres_fraction_too_fine", fraction=found.fraction)
    return None


def _micros(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz)


def holds_times(column: Column, least: int | None, greatest: int | None) -> bool:
    """Report whether PostgreSQL gets days or moments unchanged: days or microseconds since 1970, None for no value."""
    kind = {"date": "date", "timestamp with time zone": "timestamp"}.get(column.type, "timestamp_ntz")
    return all(fits(form, kind, least, greatest) for form in (Form.POSTGRES, Form.ARROW_TEXT))


def _json_problem(values: pa.Array) -> str | None:
    try:
        encoded = _as_json(values)
    except (ValueError, OverflowError) as error:
        return Message("sinks.postgres_not_json", error=error)
    if any(each is not None and _NUL_IN_JSON.search(each) for each in encoded):
        return Message("sinks.postgres_nul_in_json")
    return None


def as_csv(columns: Sequence[Column], batches: Iterable[pa.RecordBatch], epoch: str | None) -> Iterator[bytes]:
    """Encode rows for COPY: null is an empty field, an empty text is quoted. `epoch` becomes the last column."""
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in batches:
        arrays = [_plain(column, batch.column(column.name)) for column in columns]
        names = [column.name for column in columns]
        if epoch is not None:
            arrays.append(pa.array([epoch] * len(batch)))
            names.append(EPOCH_COLUMN)
        out = pa.BufferOutputStream()
        csv.write_csv(pa.RecordBatch.from_arrays(arrays, names=names), out, options)
        yield out.getvalue().to_pybytes()


def _plain(column: Column, values: pa.Array) -> pa.Array:
    if column.is_json:
        return pa.array(_as_json(values), pa.string())
    if pa.types.is_float32(values.type):
        return values.cast(pa.float64())  # in a column of double precision, its shortest text is another number
    if column.type == "bytea":
        return pa.array([None if each is None else f"\\x{each.hex()}" for each in values.to_pylist()], pa.string())
    return values


def _as_json(values: pa.Array) -> list[str | None]:
    return [None if each is None else _json(each, values.type) for each in values.to_pylist()]


def _json(value: Any, kind: pa.DataType) -> str:
    return json.dumps(jsonable(value, kind, _leaf), ensure_ascii=False, allow_nan=False)


def _leaf(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)

"""Compares the types that a schema declares with those of the columns of Parquet files, at every depth.

Invariant: a column is read as what its file says it is, or widened without loss; any other pair is found, by name.
Spark refuses most of these pairs, and reads the others as other values: it makes days of a DATE, microseconds of a
TIMESTAMP, negative numbers of large ones without a sign, bytes of a DECIMAL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.state_schema import Fields, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)", re.IGNORECASE)

_READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "BOOLEAN": ("boolean",),
    **dict.fromkeys(("INT_8", "INT_16", "INT_32", "INT32"), ("int", "bigint", "smallint", "tinyint", "double")),
    **dict.fromkeys(("UINT_8", "UINT_16"), ("int", "bigint", "smallint", "tinyint", "double")),
    **dict.fromkeys(("INT_64", "INT64", "UINT_32"), ("bigint",)),
    "UINT_64": (),
    "FLOAT": ("float", "double"),
    "DOUBLE": ("double",),
    "DECIMAL": (),
    "DATE": ("date", "timestamp_ntz"),
    **dict.fromkeys(("TIMESTAMP(milliseconds)", "TIMESTAMP(microseconds)", "INT96"), ("timestamp", "timestamp_ntz")),
    **dict.fromkeys(("STRING", "ENUM", "JSON"), ("string", "binary")),
    **dict.fromkeys(("BYTE_ARRAY", "BSON"), ("binary", "string")),
    **dict.fromkeys(("FIXED_LEN_BYTE_ARRAY", "UUID"), ("binary",)),
    "UNKNOWN": ("int", "bigint", "smallint", "tinyint", "double", "date"),
}
"""What Spark reads a stored type as, with each value unchanged; decimals are a matter of digits: see `_DIGITS`."""

_DIGITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("INT_8", "INT_16", "INT_32", "INT32"), 10),
    **dict.fromkeys(("INT_64", "INT64", "UINT_64"), 20),
}
"""How many digits before the point Spark asks of a decimal that whole numbers are read as."""

_WRAPPED: Final[Mapping[str, tuple[str, ...]]] = {
    "tinyint": ("INT_8",),
    "smallint": ("INT_8", "INT_16", "UINT_8"),
}
"""The stored types of which a narrow one has all values; Spark wraps those of others."""

_DECLARED: Final = frozenset({each for kinds in _READ_AS.values() for each in kinds} | {"decimal"})
_NESTED: Final = ("struct", "array", "map")
_ADVICE: Final[Mapping[str, str]] = {
    "UINT_64": "write DECIMAL(20,0)",
    "UNKNOWN": "the file has only nulls there: have its writer give the column a type, or write INT",
    "TIMESTAMP(nanoseconds)": "Spark has no nanoseconds: have the file written with microseconds",
    "TIME": "Spark has no such values here: leave the column out, or have it written as text or as a number",
}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A declared column that its file has as a type of which the declared one is not made."""

    name: str
    declared: Kind
    stored: Kind

    def __str__(self) -> str:
        return (
            f"the column {self.name} is {self.stored}, and schema= says {str(self.declared).upper()}: {self._advice()}"
        )

    def _advice(self) -> str:
        stored = self.stored.name
        if decimal := _DECIMAL.fullmatch(stored):
            return f"write DECIMAL({decimal[1]},{decimal[2]}), or one with more digits"
        kinds = _READ_AS.get(stored, ())
        if stored in _ADVICE or stored.startswith("TIME("):
            return _ADVICE.get(stored, _ADVICE["TIME"])
        if self.declared.name in _WRAPPED and "int" in kinds:
            kinds = ("int",)
        return f"write {kinds[0].upper()}" if kinds else "leave the column out, or have the file written otherwise"


def unreadable(declared: Fields, stored: Mapping[str, Kind]) -> Iterator[Unreadable]:
    """Yield the declared columns, or parts of them, that a file has as a type of which they are not made."""
    by_name = {name.casefold(): kind for name, kind in stored.items()}
    for name, field in declared.items():
        if (found := by_name.get(name.casefold())) is not None:
            yield from _unreadable(name, field.kind, found, is_column=True)


def _unreadable(name: str, declared: Kind, stored: Kind, *, is_column: bool = False) -> Iterator[Unreadable]:
    if declared.name in _NESTED and declared.name == stored.name:
        parts = {part.casefold(): kind for part, kind in stored.parts}
        for part, kind in declared.parts:
            if (found := parts.get(part.casefold())) is not None:
                yield from _unreadable(f"{name}.{part}", kind, found)
    elif stored.name and _is_of_table(declared) and not _is_read(declared.name, stored.name, is_column=is_column):
        yield Unreadable(name, declared, stored)


def _is_of_table(declared: Kind) -> bool:
    return declared.name.partition("(")[0] in {*_DECLARED, *_NESTED}


def _is_read(declared: str, stored: str, *, is_column: bool) -> bool:
    if decimal := _DECIMAL.fullmatch(declared):
        digits, places = _room(stored)
        return digits is not None and int(decimal[1]) - int(decimal[2]) >= digits and int(decimal[2]) >= places
    # A column's values are looked at when they are read, those within it are not.
    is_held = is_column or stored in _WRAPPED.get(declared, (stored,))
    return is_held and declared in _READ_AS.get(stored, ())


def _room(stored: str) -> tuple[int | None, int]:
    """Return how many digits a decimal needs before the point and after it; None if a type is no number of these."""
    if decimal := _DECIMAL.fullmatch(stored):
        return int(decimal[1]) - int(decimal[2]), int(decimal[2])
    return _DIGITS.get(stored), 0


def stored_types(schema: pq.ParquetSchema) -> dict[str, Kind]:
    """Return the types of a file's columns: Parquet's names, nested as Spark's; no name where they are not known."""
    leaves = iter([_stored(schema.column(at)) for at in range(len(schema))])
    try:
        columns = schema.to_arrow_schema()
    except NotImplementedError:  # a type that Arrow does not have; pyarrow's error is one of these, too
        flat = [schema.column(at) for at in range(len(schema))]
        return {each.path.partition(".")[0]: _stored(each) if "." not in each.path else Kind("") for each in flat}
    return {each.name: _nested(each.type, leaves) for each in columns}


def _nested(kind: pa.DataType, leaves: Iterator[Kind]) -> Kind:
    """Return a type whose leaves are the next ones: both schemas have them in the same order."""
    from pyarrow import types  # noqa: PLC0415  slow to import

    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return Kind("struct", tuple((each.name, _nested(each.type, leaves)) for each in fields))
    if types.is_map(kind):
        return Kind("map", (("key", _nested(kind.key_type, leaves)), ("value", _nested(kind.item_type, leaves))))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return Kind("array", (("element", _nested(kind.value_type, leaves)),))
    return next(leaves)


def _stored(column: Any) -> Kind:
    logical = column.logical_type.type
    if logical == "NONE":
        return Kind(column.physical_type)
    if logical == "INT":
        return Kind(column.converted_type)
    if logical == "DECIMAL":
        return Kind(f"DECIMAL({column.precision},{column.scale})")
    if logical in ("TIMESTAMP", "TIME"):
        return Kind(f"{logical}({json.loads(column.logical_type.to_json())['timeUnit']})")
    return Kind(logical)

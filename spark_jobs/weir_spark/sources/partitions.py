"""The partition of a table that a source declares.

Invariant: a declared text and the value of a file are compared as values of the column's type, never as texts: month
`01` is the month 1. A text that is no value of that type is an error, and never a partition without files.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.ranges import Form, fits, fits_decimal
from weir.dataflow.sources import filled
from weir.errors import Misconfigured
from weir_spark.sources.folders import NULL
from weir_spark.sources.splits import LiveFile

if TYPE_CHECKING:
    from weir.dataflow.resolving import ResolveContext

_WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_DAY: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})|(\d{4})(\d\d)(\d\d)", re.ASCII)
_TOO_FINE: Final = re.compile(r"[.,]\d{6}0*[1-9]", re.ASCII)
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_WORDS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""Boolean values as Spark casts them."""


def of_partition(
    files: Sequence[LiveFile], columns: Mapping[str, str], ctx: ResolveContext, table: str
) -> tuple[list[LiveFile], str]:
    """Return the files of the partition that the source declares, all without one, and its name for people.

    `columns` are those by whose values the table is partitioned, with Spark's names of their types. Raises
    Misconfigured for a column that is none of them, for a text that is no value of its type, and where a file has no
    value for it, as one from before the table was partitioned so.
    """
    declared = ctx.options.get("partition", {})
    texts = {column: filled(f"source of {table}", text, ctx.interval, ctx.zone) for column, text in declared.items()}
    for column in texts:
        _require_partitioned(column, columns, table)
    wanted = {column: _wanted(column, columns[column], text, table) for column, text in texts.items()}
    found = [each for each in files if _values(each, wanted, columns, table) == wanted]
    return found, "".join(f", {column} = {text}" for column, text in texts.items())


def _require_partitioned(column: str, columns: Mapping[str, str], table: str) -> None:
    if column not in columns:
        names = ", ".join(columns)
        raise Misconfigured.of(
            "sources.table_not_partitioned",
            table=table,
            column=column,
            by=f", but by {names}" if names else "",
            otherwise=f", or write partition={{{next(iter(columns))!r}: ...}}" if names else "",
        )


def _wanted(column: str, kind: str, text: str, table: str) -> Any:
    try:
        return value_of(kind, text)
    except ValueError as error:
        raise Misconfigured.of(
            "sources.partition_value_unfit",
            table=table,
            column=column,
            kind=kind,
            text=text,
            error=f": {error}" if str(error) else "",
        ) from error


def _values(file: LiveFile, wanted: Mapping[str, Any], columns: Mapping[str, str], table: str) -> dict[str, Any]:
    values = dict(file.values)
    for column in wanted:
        if column not in values:
            raise Misconfigured.of("sources.partition_not_everywhere", table=table, column=column, file_path=file.path)
    texts = {column: values[column] for column in wanted}
    try:
        return {column: None if text is None else value_of(columns[column], text) for column, text in texts.items()}
    except ValueError as error:
        raise Misconfigured.of(
            "sources.partition_not_comparable", table=table, file_path=file.path, texts=texts, error=error
        ) from error


def value_of(kind: str, text: str) -> Any:
    """Return the value of a text in a type of Spark, such that equal values are equal; None for Hive's name of null.

    Times with a zone are in UTC; a date may be written with hyphens or as eight digits. Raises ValueError.
    """
    if text == NULL:
        return None
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        return _decimal(text.strip(), int(decimal[1]), int(decimal[2]))
    if kind in _WHOLE_NUMBERS:
        return _whole(text.strip(), kind)
    read = _READ.get(kind)
    return text if read is None else read(text.strip())


def _whole(text: str, kind: str) -> int:
    number = int(text) if _WHOLE.fullmatch(text) else None
    if number is None or not fits(Form.SPARK, kind, number):
        raise ValueError
    return number


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    number = Decimal(text) if _NUMBER.fullmatch(text) else Decimal("NaN")
    if not number.is_finite():
        raise ValueError
    if not fits_decimal(number, precision, scale):
        raise ValueError(f"it has {precision - scale} digits before the point, and {scale} after it")
    return number


def _double(text: str) -> float | str:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    number = float(text)
    return "NaN" if number != number else number  # noqa: PLR0124  NaN is equal to itself in Spark


def _float(text: str) -> float | str:
    number = _double(text)
    if isinstance(number, str):
        return number
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise ValueError("it has 32 bits") from None
    return rounded


def _boolean(text: str) -> bool:
    found = _WORDS.get(text.lower())
    if found is None:
        raise ValueError
    return found


def _date(text: str) -> date:
    day = _DAY.fullmatch(text)
    if day:
        year, month, of_month = (int(part) for part in day.groups() if part)
        return date(year, month, of_month)
    at = _utc(text)
    if at.time() != at.min.time():
        raise ValueError("it has no time of day")
    return at.date()


def _utc(text: str) -> datetime:
    """Return a time in UTC, or as it stands where it has no zone."""
    if _TOO_FINE.search(text):
        raise ValueError("it has microseconds")
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp": _utc,
    "timestamp_ntz": _utc,
}

"""The arguments of an expectation, as Great Expectations reads them.

Invariant: arguments that GX would read otherwise, or would refuse, are NotPlain, so that GX itself is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weir.errors import Message
from weir.formats.expectation_types import ABSENT_IF_NULL
from weir.formats.suite import Expectation
from weir_spark.checks.typed_numbers import above, below, is_number
from weir_spark.results.digest import quoted

Bound = float | date | datetime
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?")


class NotPlain(Exception):
    """An expectation that GX is to answer."""


class NoColumn(Exception):
    """An expectation of a column that the rows do not have."""


@dataclass(frozen=True, slots=True)
class Kwargs:
    """The arguments of one expectation of rows of a schema."""

    expectation: Expectation
    schema: StructType
    given: dict[str, Any]

    @classmethod
    def of(cls, expectation: Expectation, schema: StructType) -> Kwargs:
        """Return those of an expectation; None has the meaning that GX gives it."""
        given = {
            key: value for key, value in expectation.kwargs.items() if value is not None or key not in ABSENT_IF_NULL
        }
        return cls(expectation, schema, given)

    def column(self, argument: str = "column") -> StructField:
        """The column that an argument names, in whatever case."""
        return self._field(self.given[argument])

    def columns(self, argument: str = "column_list") -> list[StructField]:
        """The columns that an argument names, two or more."""
        names = self.texts(argument)
        if len(names) < 2:
            raise NotPlain
        return [self._field(name) for name in names]

    def texts(self, argument: str) -> list[str]:
        """A list of texts."""
        given = self.given[argument]
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise NotPlain
        return given

    def scalars(self, argument: str) -> list[Any]:
        """A list of JSON's plain values."""
        given = self.given[argument]
        if not isinstance(given, list) or not all(
            each is None or isinstance(each, str | int | float) for each in given
        ):
            raise NotPlain
        return given

    def text(self, argument: str, default: str | None = None) -> str:
        """A text."""
        found = self.given.get(argument, default)
        if not isinstance(found, str):
            raise NotPlain
        return found

    def flag(self, argument: str, *, default: bool = False) -> bool:
        """True or false."""
        found = self.given.get(argument, default)
        if not isinstance(found, bool):
            raise NotPlain
        return found

    def number(self, argument: str) -> float:
        """A number, as a float."""
        found = self.given[argument]
        if not is_number(found):
            raise NotPlain
        return float(found)

    def whole(self, argument: str) -> int | None:
        """A whole number, or None."""
        found = self.given.get(argument)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise NotPlain
        return found

    @property
    def mostly(self) -> float:
        """The share of rows that has to be as expected."""
        found = self.number("mostly") if "mostly" in self.given else 1.0
        if not 0 <= found <= 1:
            raise NotPlain
        return found

    def bounds(self, kind: DataType) -> tuple[Bound | None, Bound | None]:
        """The least and the greatest value of a column of this type; at least one of them is given."""
        low, high = (_bound(self.given.get(name), kind) for name in ("min_value", "max_value"))
        if low is None and high is None:
            raise NotPlain
        return low, high

    def _field(self, name: Any) -> StructField:
        if not isinstance(name, str) or not name or "." in name or "`" in name or '"' in name or "[" in name:
            raise NotPlain
        found = [each for each in self.schema.fields if each.name.casefold() == name.casefold()]
        if not found:
            raise NoColumn(Message("checks.column_unknown", name=name, columns=self.schema.fieldNames()))
        if len(found) > 1:
            raise NotPlain
        return found[0]


def value_of(field: StructField) -> Column:
    """A column of the rows."""
    return F.col(quoted(field.name))


def compared(value: Column, kind: DataType, kwargs: Kwargs, low: Bound | None, high: Bound | None) -> Column:
    """Return the condition that a value of this type is between bounds, each of which may be excluded."""
    conditions = []
    if low is not None:
        conditions.append(_above(value, kind, low, is_strict=kwargs.flag("strict_min")))
    if high is not None:
        conditions.append(_below(value, kind, high, is_strict=kwargs.flag("strict_max")))
    return conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]


def _above(value: Column, kind: DataType, low: Bound, *, is_strict: bool) -> Column:
    if not isinstance(low, date):
        return above(value, kind, low, is_strict=is_strict)
    return value > _literal(low) if is_strict else value >= _literal(low)


def _below(value: Column, kind: DataType, high: Bound, *, is_strict: bool) -> Column:
    if not isinstance(high, date):
        return below(value, kind, high, is_strict=is_strict)
    return value < _literal(high) if is_strict else value <= _literal(high)


def _literal(bound: date) -> Column:
    """A bound as Spark compares it; a time is in UTC, as a session of Weir's is."""
    return F.lit(bound.isoformat(" ")).cast("timestamp") if isinstance(bound, datetime) else F.lit(bound)


def column_names(schema: StructType) -> Iterator[tuple[str, DataType]]:
    """All names that GX knows columns by, those of fields within structs too, and their types."""
    yield from _names(schema.fields, "")


def _names(fields: Sequence[StructField], parent: str) -> Iterator[tuple[str, DataType]]:
    for field in fields:
        is_bare = "." in field.name and not (field.name.startswith("`") and field.name.endswith("`"))
        yield parent + (f"`{field.name}`" if is_bare else field.name), field.dataType
        if isinstance(field.dataType, StructType):
            yield from _names(field.dataType.fields, f"{parent}{field.name}.")


def _bound(given: Any, kind: DataType) -> Bound | None:
    if given is None:
        return None
    if isinstance(kind, NumericType) and is_number(given):
        return given  # type: ignore[no-any-return]  # a number, as it is
    if isinstance(kind, DateType | TimestampType | TimestampNTZType) and isinstance(given, str):
        return _time(given)
    raise NotPlain


def _time(text: str) -> date | datetime:
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise NotPlain


def is_text(field: StructField) -> bool:
    """Report whether a column holds texts."""
    return isinstance(field.dataType, StringType)

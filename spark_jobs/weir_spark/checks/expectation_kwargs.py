"""The arguments of an expectation, as Great Expectations reads them.

Invariant: arguments that GX would read otherwise, or would refuse, are NotPlain, so that GX itself is run. What follows
from an argument alone, `is_plain` has found before; here are those that depend on the type of a column.
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weir.errors import Message
from weir.formats.expectation_types import ABSENT_IF_NULL
from weir.formats.suite import Expectation
from weir_spark.checks.typed_numbers import above, is_number
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

    def columns(self) -> list[StructField]:
        """The columns of the list, two or more."""
        names = self.given["column_list"]
        if len(names) < 2:
            raise NotPlain
        return [self._field(name) for name in names]

    def is_strict(self, argument: str) -> bool:
        """Report whether a bound is itself no value that is expected."""
        return bool(self.given.get(argument))

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """The least and the greatest count."""
        return self.given.get("min_value"), self.given.get("max_value")

    @property
    def mostly(self) -> float:
        """The share of rows that has to be as expected."""
        return float(self.given.get("mostly", 1.0))

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


def value_of(field: StructField, *kinds: type[DataType]) -> Column:
    """A column of the rows. Raises NotPlain if it is of none of the types, where some are given."""
    if kinds and not isinstance(field.dataType, kinds):
        raise NotPlain
    return F.col(quoted(field.name))


def compared(value: Column, kind: DataType, kwargs: Kwargs, low: Bound | None, high: Bound | None) -> Column:
    """Return the condition that a value of this type is between bounds, each of which may be excluded."""
    conditions = []
    if low is not None:
        conditions.append(_above(value, kind, low, is_strict=kwargs.is_strict("strict_min")))
    if high is not None:
        conditions.append(~_above(value, kind, high, is_strict=not kwargs.is_strict("strict_max")))
    return conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]


def _above(value: Column, kind: DataType, low: Bound, *, is_strict: bool) -> Column:
    if not isinstance(low, date):
        return above(value, kind, low, is_strict=is_strict)
    return value > _literal(low) if is_strict else value >= _literal(low)


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

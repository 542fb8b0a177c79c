"""Expectations of a column as a whole, of the number of rows, and of the columns themselves.

Invariant: their results are those of Great Expectations; so an aggregate of no rows fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyspark.sql.types
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NumericType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from weir.errors import Message
from weir.formats.suite import Expectation
from weir_spark.checks.expectation_kwargs import Kwargs, NoColumn, NotPlain, column_names, value_of
from weir_spark.checks.typed_numbers import INTEGRAL, above, below, comparable, exact

_TIMES = (DateType, TimestampType, TimestampNTZType)
_MEANS = (DecimalType, IntegerType, DoubleType, FloatType, LongType)
_MEDIAN = "expect_column_median_to_be_between"
_WHOLE = "decimal(20, 0)"
_EXACT_IN_FLOATS = 2**53


@dataclass(frozen=True, slots=True)
class Found:
    """The result of an expectation; the fields are those of ExpectationResult."""

    success: bool
    observed: Any = None
    rows: int | None = None
    unexpected: int | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An expectation of all rows: `result` takes their number and the values of `measures`."""

    expectation: Expectation
    measures: tuple[Column, ...]
    result: Callable[[int, Sequence[Any]], Found]


def aggregate(kwargs: Kwargs) -> Aggregate:
    """Return an expectation as an aggregate. Raises NotPlain, and NoColumn."""
    kind = kwargs.expectation.type
    if kind == _MEDIAN and isinstance(kwargs.column().dataType, (*INTEGRAL, DecimalType)):
        return _exact_median(kwargs)
    if kind in _OF_A_COLUMN:
        return _of_a_column(kwargs, _OF_A_COLUMN[kind])
    if kind == "expect_column_proportion_of_non_null_values_to_be_between":
        return _share_of_non_null(kwargs)
    if kind in _OF_THE_TABLE:
        return Aggregate(kwargs.expectation, (), _OF_THE_TABLE[kind](kwargs))
    raise NotPlain


def _of_a_column(kwargs: Kwargs, measure: Callable[[StructField], Column]) -> Aggregate:
    field = kwargs.column()
    measured, kind = measure(field), field.dataType
    if isinstance(kind, _TIMES):
        low, high = kwargs.bounds(kind)
        is_whole_day = all(type(each) is date for each in (low, high) if each is not None)
        if not is_whole_day and any(type(each) is date for each in (low, high)):
            raise NotPlain
        # As text, since a client would show times in its own time zone.
        return Aggregate(
            kwargs.expectation,
            (measured.cast("string"),),
            lambda _, values: _judge_time(kwargs, kind, values[0], is_whole_day=is_whole_day),
        )
    kwargs.bounds(kind)
    return Aggregate(kwargs.expectation, (measured,), lambda _, values: _judge_number(kwargs, kind, values[0]))


def _share_of_non_null(kwargs: Kwargs) -> Aggregate:
    number, measured = DoubleType(), F.count(value_of(kwargs.column()))
    kwargs.bounds(number)
    return Aggregate(
        kwargs.expectation,
        (measured,),
        lambda rows, values: _judge_number(kwargs, number, values[0] / rows if rows else 0),
    )


def _judge_number(kwargs: Kwargs, kind: DataType, value: Any) -> Found:
    """Judge a number, or the sum and the number of values that a mean is of."""
    found = value
    if isinstance(value, tuple):
        found = Fraction(int(value[0]), value[1]) if value[1] else None
    if found is None or (isinstance(found, float) and math.isnan(found)):
        return Found(success=False)
    compared = (None if each is None else comparable(each, kind, found) for each in (found, *kwargs.bounds(kind)))
    return Found(_is_between(kwargs, *compared), _shown(found))


def _shown(number: Any) -> Any:
    """A number as JSON has it: whole, or a text, where a float would not tell it from its neighbour."""
    if not isinstance(number, Decimal | Fraction):
        return number
    if abs(Fraction(number)) <= _EXACT_IN_FLOATS:
        return float(number)
    return int(number) if Fraction(number).denominator == 1 else str(number)


def _judge_time(kwargs: Kwargs, kind: DataType, value: str | None, *, is_whole_day: bool) -> Found:
    if value is None:
        return Found(success=False)
    time = datetime.fromisoformat(value)
    found = time.date() if is_whole_day else time
    return Found(_is_between(kwargs, found, *kwargs.bounds(kind)), found.isoformat())


def _is_between(kwargs: Kwargs, found: Any, low: Any, high: Any) -> bool:
    is_above = low is None or (found > low if kwargs.is_strict("strict_min") else found >= low)
    is_below = high is None or (found < high if kwargs.is_strict("strict_max") else found <= high)
    return bool(is_above and is_below)


def _mean(field: StructField) -> Column:
    value = value_of(field, *_MEANS)
    if isinstance(field.dataType, INTEGRAL):
        return F.struct(F.sum(value.cast(_WHOLE)), F.count(value))
    return F.mean(value)


def _sum(field: StructField) -> Column:
    value = value_of(field, NumericType)
    return F.sum(value.cast(_WHOLE) if isinstance(field.dataType, INTEGRAL) else value)


def _median(field: StructField) -> Column:
    """The mean of the two middle values; NaN is not one."""
    value = value_of(field, NumericType).cast("double")
    return F.median(F.nanvl(value, F.lit(None).cast("double")))


def _exact_median(kwargs: Kwargs) -> Aggregate:
    """The median of whole numbers or decimals, which Spark has as DOUBLE, is compared by how many values are less."""
    field = kwargs.column()
    value, kind = value_of(field), field.dataType
    low, high = kwargs.bounds(kind)
    given = list(dict.fromkeys(bound for bound in (low, high) if bound is not None))
    about = [each for bound in given for each in _about(value, kind, bound)]

    def result(_: int, values: Sequence[Any]) -> Found:
        shown, number, *found = values
        if not number:
            return Found(success=False)
        signs = {bound: side_of_median(number, bound, *found[4 * at : 4 * at + 4]) for at, bound in enumerate(given)}
        is_above = low is None or signs[low] > (0 if kwargs.is_strict("strict_min") else -1)
        is_below = high is None or signs[high] < (0 if kwargs.is_strict("strict_max") else 1)
        return Found(is_above and is_below, shown)

    return Aggregate(kwargs.expectation, (_median(field), F.count(value), *about), result)


def _about(value: Column, kind: DataType, bound: Any) -> tuple[Column, ...]:
    """How many values are less than a bound, and at most it; the last one below it, and the first one above."""
    less, more = below(value, kind, bound, is_strict=True), above(value, kind, bound, is_strict=True)
    at_most = F.count(F.when(below(value, kind, bound, is_strict=False), value))
    return F.count(F.when(less, value)), at_most, F.max(F.when(less, value)), F.min(F.when(more, value))


def side_of_median(number: int, bound: Any, less: int, at_most: int, last: Any, first: Any) -> int:
    """Return -1, 0 or 1 where the median of so many values is less than a bound, equal, or greater; see `_about`."""
    sides = [(place > less) + (place > at_most) - 1 for place in ((number + 1) // 2, number // 2 + 1)]
    if sides != [-1, 1]:
        return max(min(sum(sides), 1), -1)
    twice = Fraction(last) + Fraction(first) - 2 * Fraction(exact(bound))
    return (twice > 0) - (twice < 0)


_OF_A_COLUMN: dict[str, Callable[[StructField], Column]] = {
    "expect_column_min_to_be_between": lambda field: F.min(value_of(field, NumericType, *_TIMES)),
    "expect_column_max_to_be_between": lambda field: F.max(value_of(field, NumericType, *_TIMES)),
    "expect_column_mean_to_be_between": _mean,
    "expect_column_sum_to_be_between": _sum,
    "expect_column_stdev_to_be_between": lambda field: F.stddev_samp(value_of(field, NumericType)),
    _MEDIAN: _median,
}

ResultOf = Callable[[int, Sequence[Any]], Found]


def _row_count_between(kwargs: Kwargs) -> ResultOf:
    if kwargs.counts == (None, None):
        raise NotPlain
    return lambda rows, _: Found(_is_between(kwargs, rows, *kwargs.counts), rows)


def _row_count_equal(kwargs: Kwargs) -> ResultOf:
    return lambda rows, _: Found(rows == kwargs.given["value"], rows)


def _column_count_between(kwargs: Kwargs) -> ResultOf:
    found = len(_names(kwargs))
    return _known(Found(_is_between(kwargs, found, *kwargs.counts), found))


def _column_count_equal(kwargs: Kwargs) -> ResultOf:
    found = len(_names(kwargs))
    return _known(Found(found == kwargs.given["value"], found))


def _column_exists(kwargs: Kwargs) -> ResultOf:
    names, name, index = _names(kwargs), kwargs.given["column"], kwargs.given.get("column_index")
    if not index:
        return _known(Found(name in names))
    return _known(Found(-len(names) <= index < len(names) and names[index] == name))


def _columns_in_order(kwargs: Kwargs) -> ResultOf:
    names = _names(kwargs)
    return _known(Found(names == kwargs.given["column_list"], names))


def _columns_as_set(kwargs: Kwargs) -> ResultOf:
    expected, names = set(kwargs.given["column_set"]), set(_names(kwargs))
    is_exact = kwargs.given.get("exact_match", True)
    return _known(Found(expected == names if is_exact else expected <= names, sorted(names)))


def _names(kwargs: Kwargs) -> list[str]:
    return [name for name, _ in column_names(kwargs.schema)]


def _typed(kwargs: Kwargs, expected: Sequence[str]) -> ResultOf:
    known = [getattr(pyspark.sql.types, each, None) for each in expected]
    types = tuple(each for each in known if isinstance(each, type) and issubclass(each, DataType))
    if len(types) != len(known) or not types:
        raise NotPlain
    name = kwargs.given["column"]
    found = [kind for each, kind in column_names(kwargs.schema) if each == name]
    if not found:
        raise NoColumn(Message("checks.column_unknown", name=name, columns=kwargs.schema.fieldNames()))
    return _known(Found(isinstance(found[0], types), type(found[0]).__name__))


def _known(found: Found) -> ResultOf:
    """Return a result that follows from the schema alone."""
    return lambda *_: found


_OF_THE_TABLE: dict[str, Callable[[Kwargs], ResultOf]] = {
    "expect_table_row_count_to_be_between": _row_count_between,
    "expect_table_row_count_to_equal": _row_count_equal,
    "expect_table_column_count_to_be_between": _column_count_between,
    "expect_table_column_count_to_equal": _column_count_equal,
    "expect_table_columns_to_match_ordered_list": _columns_in_order,
    "expect_table_columns_to_match_set": _columns_as_set,
    "expect_column_to_exist": _column_exists,
    "expect_column_values_to_be_of_type": lambda kwargs: _typed(kwargs, [kwargs.given["type_"]]),
    "expect_column_type_to_be": lambda kwargs: _typed(kwargs, [kwargs.given["type_"]]),
    "expect_column_values_to_be_in_type_list": lambda kwargs: _typed(kwargs, kwargs.given["type_list"]),
}

"""Expectations that are plain aggregates. Invariant: their results are those of Great Expectations.

All of a suite's are computed together, by one pass over the rows. The conditions are those of GX 1.24's own metrics for
Spark, with its handling of nulls: test_quality_conformance.py compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from itertools import combinations
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from weir.formats.expectation_types import is_plain
from weir.formats.suite import Expectation
from weir_spark.checks import plain_aggregates
from weir_spark.checks.expectation_kwargs import Kwargs, NotPlain, compared, value_of
from weir_spark.checks.plain_aggregates import Aggregate, Found
from weir_spark.checks.typed_numbers import FLOATING, INTEGRAL, greater, is_number, is_one_of, same
from weir_spark.results.digest import quoted

_MISSING = ("all_values_are_missing", "any_value_is_missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An expectation of each row: of those that `counts`, `mostly` are to be such as `violates` does not hold for.

    `shown` are the columns whose values are kept as examples. Where `unique` names columns, rows violate it that have
    the same values in them as another row.
    """

    expectation: Expectation
    shown: tuple[str, ...]
    counts: Column | None = None
    violates: Column | None = None
    mostly: float = 1.0
    unique: tuple[str, ...] = ()

    @property
    def measures(self) -> tuple[Column, ...]:
        """The aggregates: the number of rows that count, and of those that violate it."""
        return _number(self.counts), F.lit(0) if self.violates is None else _number(self.violates)

    def result(self, _: int, measured: Sequence[Any]) -> Found:
        """Return the result, given the values of `measures`."""
        counted, unexpected = (int(each or 0) for each in measured)
        is_success = counted == 0 or (float(counted) - float(unexpected)) / float(counted) >= self.mostly
        return Found(is_success, None, counted, unexpected)


def plain(expectation: Expectation, schema: StructType) -> Rows | Aggregate:
    """Return an expectation of rows of this schema as an aggregate. Raises NotPlain, and NoColumn."""
    kwargs = Kwargs.of(expectation, schema)
    if not is_plain(expectation.type, expectation.kwargs):
        if "column" in kwargs.given and expectation.type.startswith("expect_column_values_"):
            kwargs.column()  # GX would fail with "list index out of range" for a missing one
        raise NotPlain
    of_column = _OF_A_COLUMN.get(expectation.type)
    if of_column is not None:
        return _of_a_column(kwargs, of_column)
    if expectation.type in _OF_COLUMNS:
        return _OF_COLUMNS[expectation.type](kwargs)
    return plain_aggregates.aggregate(kwargs)


def _of_a_column(kwargs: Kwargs, expected: OfAColumn) -> Rows:
    """Nulls do not count, unless it is about nulls."""
    field = kwargs.column()
    counts = None if kwargs.expectation.type in _ABOUT_NULLS else value_of(field).isNotNull()
    return _counted(kwargs, [field], counts, expected(kwargs, field))


def _between(kwargs: Kwargs, field: StructField) -> Column:
    low, high = kwargs.bounds(field.dataType)
    if isinstance(low, date) and isinstance(high, date) and type(low) is not type(high):
        raise NotPlain
    if low is not None and high is not None and low > high:  # type: ignore[operator]  # both numbers or both times
        raise NotPlain
    return compared(value_of(field), field.dataType, kwargs, low, high)


def _length_between(kwargs: Kwargs, field: StructField) -> Column:
    return compared(F.length(value_of(field, StringType)), IntegerType(), kwargs, *kwargs.counts)


def _length_equal(kwargs: Kwargs, field: StructField) -> Column:
    return F.length(value_of(field, StringType)) == F.lit(float(kwargs.given["value"]))


def _matches(kwargs: Kwargs, field: StructField) -> Column:
    return value_of(field, StringType).rlike(kwargs.given["regex"])


def _patterns(kwargs: Kwargs) -> list[str]:
    found: list[str] = kwargs.given["regex_list"]
    if not found:
        raise NotPlain
    return found


def _matches_list(kwargs: Kwargs, field: StructField) -> Column:
    patterns, match_on = _patterns(kwargs), kwargs.given.get("match_on", "any")
    if match_on not in {"any", "all"}:
        raise NotPlain
    value = value_of(field, StringType)
    return value.rlike("|".join(patterns)) if match_on == "any" else _all(value.rlike(each) for each in patterns)


def _matches_none(kwargs: Kwargs, field: StructField) -> Column:
    value = value_of(field, StringType)
    return _all(~value.rlike(each) for each in _patterns(kwargs))


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one & other, conditions)


def _in_set(kwargs: Kwargs, field: StructField) -> Column:
    # Spark answers null for a value that is not in a set with a null, and only other values count.
    members = [each for each in kwargs.given["value_set"] if each is not None]
    if not all(isinstance(each, str | int | float) for each in members):
        raise NotPlain
    if isinstance(field.dataType, NumericType) and all(map(is_number, members)):
        return is_one_of(value_of(field), field.dataType, members)
    return value_of(field).isin(members)


OfAColumn = Callable[[Kwargs, StructField], Column]
"""Makes the condition that a value of a column is as expected."""

_ABOUT_NULLS = frozenset({"expect_column_values_to_not_be_null", "expect_column_values_to_be_null"})
_OF_A_COLUMN: dict[str, OfAColumn] = {
    "expect_column_values_to_not_be_null": lambda _, field: value_of(field).isNotNull(),
    "expect_column_values_to_be_null": lambda _, field: value_of(field).isNull(),
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": lambda *given: ~_in_set(*given),
    "expect_column_value_lengths_to_be_between": _length_between,
    "expect_column_value_lengths_to_equal": _length_equal,
    "expect_column_values_to_match_regex": _matches,
    "expect_column_values_to_not_match_regex": lambda *given: ~_matches(*given),
    "expect_column_values_to_match_regex_list": _matches_list,
    "expect_column_values_to_not_match_regex_list": _matches_none,
}


def _unique(kwargs: Kwargs) -> Rows:
    field = kwargs.column()
    return _counted(kwargs, [field], value_of(field).isNotNull())


def _compound_unique(kwargs: Kwargs) -> Rows:
    fields = kwargs.columns()
    return _counted(kwargs, fields, _counting(kwargs, fields))


def _sum_equal(kwargs: Kwargs) -> Rows:
    fields = kwargs.columns()
    total, kind = F.expr("+".join(_operand(each) for each in fields)), _type_of_sum(fields)
    if kind is not None:
        total = total.cast(kind)
    return _of_columns(kwargs, fields, is_one_of(total, kind or DoubleType(), [kwargs.given["sum_total"]]))


def _operand(field: StructField) -> str:
    if not isinstance(field.dataType, NumericType):
        raise NotPlain
    value = f"coalesce({quoted(field.name)}, 0)"
    return f"cast({value} as decimal(38, 0))" if isinstance(field.dataType, INTEGRAL) else value


def _type_of_sum(fields: Sequence[StructField]) -> DataType | None:
    """Return the type in which a sum of columns is compared; None: as Spark adds them."""
    kinds = [each.dataType for each in fields]
    if all(isinstance(each, FloatType) for each in kinds):
        return FloatType()
    if any(isinstance(each, FLOATING) for each in kinds):
        return None
    return DecimalType(38, max(each.scale if isinstance(each, DecimalType) else 0 for each in kinds))


def _all_equal(kwargs: Kwargs) -> Rows:
    first, *others = kwargs.columns()
    return _of_columns(kwargs, [first, *others], _all(_same(first, each) for each in others))


def _all_different(kwargs: Kwargs) -> Rows:
    fields = kwargs.columns()
    equal = reduce(lambda one, other: one | other, [_same(*each) for each in combinations(fields, 2)])
    return _of_columns(kwargs, fields, ~equal)


def _same(one: StructField, other: StructField) -> Column:
    return same(value_of(one), value_of(other), (one.dataType, other.dataType))


def _of_columns(kwargs: Kwargs, fields: Sequence[StructField], expected: Column) -> Rows:
    return _counted(kwargs, fields, _counting(kwargs, fields), expected)


def _greater(kwargs: Kwargs) -> Rows:
    one, other = kwargs.column("column_A"), kwargs.column("column_B")
    expected = greater(value_of(one), value_of(other), (one.dataType, other.dataType))
    if kwargs.given.get("or_equal"):
        expected = expected | _same(one, other)
    return _of_columns(kwargs, [one, other], expected)


def _pair_equal(kwargs: Kwargs) -> Rows:
    fields = [kwargs.column("column_A"), kwargs.column("column_B")]
    return _of_columns(kwargs, fields, _same(*fields))


def _counting(kwargs: Kwargs, fields: Sequence[StructField]) -> Column | None:
    """Return the condition of rows that count, None for all rows; a pair of columns has other keywords for it."""
    is_pair = "column_A" in kwargs.given
    every, some = ("both_values_are_missing", "either_value_is_missing") if is_pair else _MISSING
    ignored = kwargs.given.get("ignore_row_if", every)
    if ignored == ("neither" if is_pair else "never"):
        return None
    if ignored not in (every, some):
        raise NotPlain
    nulls = [value_of(each).isNull() for each in fields]
    return ~(_all(nulls) if ignored == every else reduce(lambda one, other: one | other, nulls))


def _counted(
    kwargs: Kwargs, fields: Sequence[StructField], counts: Column | None, expected: Column | None = None
) -> Rows:
    """Return an expectation of the rows that count; without a condition, that the values of the columns are unique."""
    names = tuple(each.name for each in fields)
    violates = None if expected is None else ~expected if counts is None else counts & ~expected
    return Rows(
        expectation=kwargs.expectation,
        shown=names,
        counts=counts,
        violates=violates,
        mostly=kwargs.mostly,
        unique=names if expected is None else (),
    )


_OF_COLUMNS: dict[str, Callable[[Kwargs], Rows]] = {
    "expect_column_values_to_be_unique": _unique,
    "expect_compound_columns_to_be_unique": _compound_unique,
    "expect_multicolumn_sum_to_equal": _sum_equal,
    "expect_multicolumn_values_to_be_equal": _all_equal,
    "expect_select_column_values_to_be_unique_within_record": _all_different,
    "expect_column_pair_values_a_to_be_greater_than_b": _greater,
    "expect_column_pair_values_to_be_equal": _pair_equal,
}


def _number(condition: Column | None) -> Column:
    return F.count(F.lit(1)) if condition is None else F.count(F.when(condition, F.lit(1)))

"""Compares numbers of a suite with a column's, in the column's type. Invariant: no number of a column is rounded.

A suite's JSON says 0.1, which a FLOAT has and a DOUBLE has otherwise, and 9007199254740992, which BIGINT tells from its
neighbours and DOUBLE does not. So whole numbers and decimals are compared exactly, and a bound is rounded to FLOAT.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
)

INTEGRAL = (ByteType, ShortType, IntegerType, LongType)
FLOATING = (FloatType, DoubleType)

_EXACT = Context(prec=5_000)
"""More digits than Python reads in a whole number of JSON."""


def is_number(given: Any) -> bool:
    """Report whether a value of JSON is a number, a finite one."""
    is_whole = isinstance(given, int) and not isinstance(given, bool)
    return is_whole or (isinstance(given, float) and math.isfinite(given))


def exact(given: float) -> Decimal:
    """Return the number that a suite says: a float of JSON is the shortest decimal that it is read from."""
    return Decimal(given) if isinstance(given, int) else Decimal(repr(float(given)))


def above(value: Column, kind: DataType, bound: float, *, is_strict: bool) -> Column:
    """Return the condition that a value of this type is at least a bound, or greater."""
    limit = _limit(kind, exact(bound), ROUND_FLOOR if is_strict else ROUND_CEILING)
    if isinstance(limit, bool):
        return F.lit(not limit)
    of = _compared(value, kind, bound)
    return of > limit if is_strict else of >= limit


def below(value: Column, kind: DataType, bound: float, *, is_strict: bool) -> Column:
    """Return the condition that a value of this type is at most a bound, or less."""
    return ~above(value, kind, bound, is_strict=not is_strict)


def is_one_of(value: Column, kind: DataType, members: Sequence[float]) -> Column:
    """Return the condition that a value of this type is one of these numbers."""
    literals = [literal for literal in (_member(kind, each) for each in members) if literal is not None]
    return value.isin(literals) if literals else F.lit(False)  # noqa: FBT003  # a literal


def same(one: Column, other: Column, kinds: tuple[DataType, DataType]) -> Column:
    """Return the condition that values of two columns are equal, null to null; Spark compares BIGINT as DOUBLE."""
    found = one.eqNullSafe(other)
    if not _is_mixed(kinds):
        return found
    return found & (one.isNull() | F.coalesce(_whole(one, kinds[0]) == _whole(other, kinds[1]), F.lit(False)))  # noqa: FBT003


def greater(one: Column, other: Column, kinds: tuple[DataType, DataType]) -> Column:
    """Return the condition that a value is greater than that of another column; rounding keeps their order."""
    found = one > other
    if not _is_mixed(kinds):
        return found
    # A DOUBLE that equals a BIGINT and is none is 2**63.
    exactly = F.coalesce(_whole(one, kinds[0]) > _whole(other, kinds[1]), F.lit(isinstance(kinds[0], FLOATING)))
    return found | ((one == other) & exactly)


def _is_mixed(kinds: tuple[DataType, DataType]) -> bool:
    return any(isinstance(each, INTEGRAL) for each in kinds) and any(isinstance(each, FLOATING) for each in kinds)


def _whole(value: Column, kind: DataType) -> Column:
    """A value as BIGINT, which Spark would make of 2**63, too; then null."""
    return F.when(value < F.lit(2.0**63), value.try_cast("bigint")) if isinstance(kind, FLOATING) else value


def comparable(number: Any, kind: DataType, found: Any) -> Any:
    """Return a number as it is compared: exactly, or in the type of the column, where the measure is a float."""
    if not isinstance(found, float):
        return Fraction(exact(number) if isinstance(number, float) else number)
    rounded = _single(number) if isinstance(kind, FloatType) else None
    return _double(number) if rounded is None else rounded


def in_python(value: Any, kind: DataType) -> Any:
    """Return a value of JSON, or a list of such, with its numbers as Python has those of a column of this type."""
    if isinstance(value, list):
        return [in_python(each, kind) for each in value]
    if not is_number(value):
        return value
    if isinstance(kind, DecimalType):
        return exact(value)
    single = _single(value) if isinstance(kind, FloatType) else None
    return value if single is None else single


def _single(number: float | Decimal) -> float | None:
    """Return the closest FLOAT; None where there is none but infinity."""
    try:
        return float(struct.unpack("f", struct.pack("f", _double(number)))[0])
    except OverflowError:
        return None


def _double(number: float | Decimal) -> float:
    """Return the closest DOUBLE, which may be infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _compared(value: Column, kind: DataType, bound: float) -> Column:
    """A value in the type in which it is compared: DOUBLE where the bound is beyond all FLOATs."""
    return value.cast("double") if isinstance(kind, FloatType) and _single(bound) is None else value


def _limit(kind: DataType, bound: Decimal, rounding: str) -> Column | bool:
    """A bound as a literal of the type; true where all values are less than it, false where all are greater."""
    if isinstance(kind, FLOATING):
        is_single = isinstance(kind, FloatType) and _single(bound) is not None
        return F.lit(_double(bound)).cast("float" if is_single else "double")
    rounded = bound.quantize(_unit(kind), rounding, _EXACT)
    return _literal(rounded, kind) if _has(kind, rounded) else bound > 0


def _member(kind: DataType, number: float) -> Column | None:
    """A number as a literal of the type; None where the type does not have it."""
    if isinstance(kind, FLOATING):
        is_beyond = isinstance(kind, FloatType) and _single(number) is None
        return None if is_beyond else F.lit(_double(number)).cast(kind)
    wanted = exact(number)
    is_there = _has(kind, wanted) and wanted.quantize(_unit(kind), ROUND_FLOOR, _EXACT) == wanted
    return _literal(wanted, kind) if is_there else None


def _unit(kind: DataType) -> Decimal:
    return Decimal(1).scaleb(-kind.scale if isinstance(kind, DecimalType) else 0)


def _has(kind: DataType, number: Decimal) -> bool:
    """Report whether a number is in the range of a type; all integers are compared as BIGINT."""
    if isinstance(kind, DecimalType):
        return bool(abs(number) < Decimal(10) ** (kind.precision - kind.scale))
    return math.floor(number) >= -(2**63) and math.ceil(number) < 2**63


def _literal(number: Decimal, kind: DataType) -> Column:
    return F.lit(f"{number:f}").cast(kind) if isinstance(kind, DecimalType) else F.lit(int(number))

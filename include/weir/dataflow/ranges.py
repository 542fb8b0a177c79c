"""The values of Spark's types that other forms of a value hold: the one table by which conversions decide.

Invariant: a conversion gives the same value, or it is refused; no library is trusted to refuse. A type that the table
does not name for a form is held whole there.

Values are asked for as whole numbers where Python cannot have them: days since 1970-01-01 of a date, microseconds since
1970-01-01T00:00:00Z of a timestamp. Sources: PostgreSQL's manual, 8.1 and 8.5; IEEE 754; `datetime`; NumPy's
`datetime64`, which keeps its lowest number for NaT.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Final

MOST_DIGITS: Final = 38
"""The digits of a decimal of Spark, of Parquet, Delta Lake and Iceberg."""

DAY: Final = 86_400_000_000
"""The microseconds of a day."""


class Form(Enum):
    """A form of values besides Spark's own."""

    SPARK = "Spark, Parquet, Delta Lake, Iceberg"
    PYTHON = "Python"
    PANDAS_NS = "pandas, in nanoseconds"
    PANDAS_US = "pandas, in microseconds"
    FLOAT32 = "float"
    FLOAT64 = "double"
    ARROW_TEXT = "text that Arrow writes"
    POSTGRES = "PostgreSQL"


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers from `low` to `high`, both of them held."""

    low: int
    high: int

    def holds(self, *values: int) -> bool:
        """Report whether all are held; of a column, its least and its greatest are enough."""
        return all(self.low <= each <= self.high for each in values)

    def within(self, other: Range) -> Range:
        """Return what both hold."""
        return Range(max(self.low, other.low), min(self.high, other.high))


def _bits(count: int) -> Range:
    return Range(-(2 ** (count - 1)), 2 ** (count - 1) - 1)


def _year(number: int) -> int:
    """Return the days from 1970-01-01 to the first day of a year, 0 being 1 BC."""
    before = number - 1
    return before * 365 + before // 4 - before // 100 + before // 400 - 719_162


def _instants(days: Range) -> dict[str, Range]:
    whole = Range(days.low * DAY, (days.high + 1) * DAY - 1)
    return {"date": days, "timestamp": whole, "timestamp_ntz": whole}


_INTEGERS: Final = {"byte": _bits(8), "short": _bits(16), "integer": _bits(32), "long": _bits(64)}
_NANOSECONDS: Final = Range(-(2**63 - 1) // 1000 + 1, (2**63 - 1) // 1000)
_BEFORE_CHRIST: Final = _year(-4713) + 327
"""The day 0 of Julian dates, 4714-11-24 BC, with which PostgreSQL's begin."""

_RANGES: Final[Mapping[Form, Mapping[str, Range]]] = {
    Form.SPARK: {**_INTEGERS, "date": _bits(32), "timestamp": _bits(64), "timestamp_ntz": _bits(64)},
    Form.PYTHON: _instants(Range(_year(1), _year(10_000) - 1)),
    Form.PANDAS_NS: {
        "date": Range(-(-_NANOSECONDS.low // DAY), _NANOSECONDS.high // DAY),
        "timestamp": _NANOSECONDS,
        "timestamp_ntz": _NANOSECONDS,
    },
    Form.PANDAS_US: {"timestamp": Range(1 - 2**63, 2**63 - 1), "timestamp_ntz": Range(1 - 2**63, 2**63 - 1)},
    Form.FLOAT32: dict.fromkeys(_INTEGERS, Range(-(2**24), 2**24)),
    Form.FLOAT64: dict.fromkeys(_INTEGERS, Range(-(2**53), 2**53)),
    Form.ARROW_TEXT: _instants(Range(_year(1), _year(32_768) - 1)),
    Form.POSTGRES: {
        **_instants(Range(_BEFORE_CHRIST, _year(294_277) - 1)),
        "date": Range(_BEFORE_CHRIST, _year(5_874_898) - 1),
    },
}


def range_of(form: Form, spark_type: str) -> Range | None:
    """Return what a form holds of whole numbers, dates or timestamps of Spark; None for a type that has no range.

    `spark_type` is as in Spark's JSON: "long", "integer", "date", "timestamp".
    """
    whole = _RANGES[Form.SPARK].get(spark_type)
    held = _RANGES[form].get(spark_type)
    return whole if held is None or whole is None else held.within(whole)


def measured(value: int | date | timedelta) -> int:
    """Return a value as the whole number by which the table has it: days of a date, microseconds of a time."""
    if isinstance(value, datetime):
        since = value - datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
        return since // timedelta(microseconds=1)
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return value.toordinal() - date(1970, 1, 1).toordinal() if isinstance(value, date) else value


def fits(form: Form, spark_type: str, *values: object) -> bool:
    """Report whether a form holds these values of a type of Spark, unchanged.

    Of a column of whole numbers, dates or timestamps its least and its greatest value are enough, as Parquet's
    statistics have them; floats, decimals and texts are asked for one by one. Null is held everywhere.
    """
    return all(each is None or _fits(form, spark_type, each) for each in values)


def _fits(form: Form, spark_type: str, value: object) -> bool:
    if isinstance(value, float):
        return form is not Form.FLOAT32 or spark_type == "float" or is_float32(value)
    if isinstance(value, Decimal):
        return _fits_decimal(form, value)
    if isinstance(value, str):
        return form is not Form.POSTGRES or "\0" not in value
    held = range_of(form, spark_type)
    return held is None or not isinstance(value, int | date | timedelta) or held.holds(measured(value))


def _fits_decimal(form: Form, value: Decimal) -> bool:
    if form is Form.SPARK:
        return value.is_finite() and sum(_digits(value)) <= MOST_DIGITS
    if form not in (Form.FLOAT32, Form.FLOAT64):
        return True
    near = float(value)
    return Decimal(near) == value and (form is Form.FLOAT64 or is_float32(near))


def fits_decimal(value: Decimal, precision: int, scale: int) -> bool:
    """Report whether `decimal(precision, scale)` of Spark holds a number unchanged."""
    if not value.is_finite():
        return False
    before, after = _digits(value)
    return before <= precision - scale and after <= scale


def _digits(value: Decimal) -> tuple[int, int]:
    """Return how many digits a number needs before and after the point; zeros at its ends are none."""
    _, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    if not text:
        return 0, 0
    power = int(exponent)
    return max(len(text) + power, 0), max(-power - (len(text) - len(text.rstrip("0"))), 0)


def is_float32(value: float) -> bool:
    """Report whether a float of 32 bits has this value, NaN and the infinities too."""
    try:
        return value != value or struct.unpack("f", struct.pack("f", value))[0] == value  # noqa: PLR0124  NaN
    except OverflowError:
        return False

"""Reads values of csv and JSON exactly. Invariant: a value is what its text says, or is found to be lost.

Spark's readers round numbers to the scale of a DECIMAL, cut a timestamp after six places, a date before its time, take
`10:00` for today's, make infinity of numbers beyond a float's range, and in JSON -56 of a TINYINT 200. So columns of
such types are read as text, from which each value is made here. Where a source gives formats of its own, Spark reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

_MIDNIGHT: Final = r"[T ]\s*(?:0{1,2}:0{1,2}(?::0{1,2}(?:\.0*)?)?\s*(?:Z|[+-]\d{1,2}(?::?\d{2})?)?)?"
_DATE: Final = rf"^\s*(?:\d{{4}}|[+-]?\d{{4,7}}-\d{{1,2}}(?:-\d{{1,2}}(?:{_MIDNIGHT})?)?)\s*$"
"""A date, of which nothing is cut: a time is midnight. Spark takes 15706 for a year, too."""

_SECONDS: Final = r"\d{1,2}(?::\d{1,2}(?::\d{1,2}(?:\.\d{0,6}0*)?)?)?"
_LOCAL_TIME: Final = rf"^\s*[+-]?\d{{4,7}}(?:-\d{{1,2}}(?:-\d{{1,2}}(?:[T ](?:{_SECONDS})?)?)?)?\s*$"
"""A timestamp without a zone, which a cast would drop."""

_MORE_PLACES: Final = r"\.\d{6}\d*[1-9]"
_NO_TIME: Final = rf"^\s*T?\d{{1,3}}(?:\D|$)|{_MORE_PLACES}"
"""A text that is no timestamp of its own: a time without a date, or of more than six places."""

_NUMBER: Final = r"^[+-]?(?:(?:\d+|\d{1,3}(?:,\d{3})+)\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
"""A number; Spark's readers take commas between any digits, so that 1,5 would be 15: here between thousands only."""

_ZERO: Final = r"^[+-]?[0.]+(?:[eE].*)?$"
_MOST_DIGITS: Final = 38
_LARGEST_SECOND: Final = 2**63 // 10**6


@dataclass(frozen=True, slots=True)
class ExactReading:
    """How the values of a source's files are read."""

    format: str
    options: frozenset[str]
    """The options that the source gives, in lower case."""
    infinities: frozenset[str] | None
    """Spark's words for infinity and for no number, where lines may have such; None where no line has."""
    has_digits: bool = True
    """False where Spark makes a text of a number by way of a DOUBLE: in JSON, unless it has the bytes of one line."""

    def schema(self, schema: StructType) -> StructType:
        """Return the schema with which Spark reads, of the same names."""
        return StructType([StructField(each.name, self.kind(each.dataType)) for each in schema.fields])

    def kind(self, kind: DataType) -> DataType:
        """Return the type as which Spark reads values of a type."""
        if isinstance(kind, ArrayType):
            return ArrayType(self.kind(kind.elementType))
        if isinstance(kind, MapType):
            return MapType(kind.keyType, self.kind(kind.valueType))
        return self.schema(kind) if isinstance(kind, StructType) else self._simple(kind)

    def _simple(self, kind: DataType) -> DataType:
        own = next((options for each, options in _FORMATS if isinstance(kind, each)), None)
        if own is None or (own | {"locale"}) & self.options or (self.format == "csv" and isinstance(kind, ByteType)):
            return kind
        if isinstance(kind, (FloatType, DoubleType)):
            return kind if self.infinities is None else StringType()
        if isinstance(kind, ByteType):
            return ShortType()
        if isinstance(kind, DecimalType) and not self.has_digits:
            return DecimalType(_MOST_DIGITS, _MOST_DIGITS - kind.precision + kind.scale)
        return VariantType() if self.format == "json" and isinstance(kind, TimestampType) else StringType()

    def value(self, column: Column, kind: DataType) -> Column:
        """Return the value of a type; null where it is lost."""
        if self._is_plain(kind):
            return column
        if isinstance(kind, ArrayType):
            return F.transform(column, lambda each: self.value(each, kind.elementType))
        if isinstance(kind, MapType):
            return F.transform_values(column, lambda _, each: self.value(each, kind.valueType))
        if isinstance(kind, StructType):
            fields = [self.value(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
            return F.when(column.isNotNull(), F.struct(*fields))
        return self._simple_value(column, kind)

    def lost(self, column: Column, kind: DataType) -> Column | None:
        """Return the condition that a value is not what the lines say; None for types that Spark reads exactly."""
        if self._is_plain(kind):
            return None
        if isinstance(kind, ArrayType):
            return _any(column, lambda each: self.lost(each, kind.elementType))
        if isinstance(kind, MapType):
            return _any(F.map_values(column), lambda each: self.lost(each, kind.valueType))
        if isinstance(kind, StructType):
            found = [self.lost(column.getField(each.name), each.dataType) for each in kind.fields]
            return reduce(Column.__or__, [each for each in found if each is not None])
        is_there = column.isNotNull()
        if isinstance(self.kind(kind), VariantType):
            is_there &= ~F.is_variant_null(column)
        return is_there & self._simple_value(column, kind).isNull()

    def _is_plain(self, kind: DataType) -> bool:
        if isinstance(kind, ArrayType):
            return self._is_plain(kind.elementType)
        if isinstance(kind, MapType):
            return self._is_plain(kind.valueType)
        if isinstance(kind, StructType):
            return all(self._is_plain(each.dataType) for each in kind.fields)
        if isinstance(kind, (FloatType, DoubleType)):
            return bool(_OF_FLOATS & self.options)
        return bool(self.kind(kind) == kind)

    def _simple_value(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, (FloatType, DoubleType)):
            return self._float(column, kind)
        if isinstance(kind, DecimalType):
            return self._decimal(column, kind)
        if isinstance(kind, TimestampType):
            return _timestamp(column) if self.format == "csv" else _timestamp_of_json(column)
        written = {DateType: column.rlike(_DATE), TimestampNTZType: column.rlike(_LOCAL_TIME)}
        is_whole = written.get(type(kind), ~column.cast("string").rlike(_MORE_PLACES))
        return F.when(is_whole, column.try_cast(kind))

    def _decimal(self, column: Column, kind: DecimalType) -> Column:
        if self.has_digits:
            return _decimal(column, kind)
        number = column.try_cast(kind)
        return F.when(number == column, number)

    def _float(self, column: Column, kind: DataType) -> Column:
        number = column if self.infinities is None else column.try_cast(kind)
        is_beyond = F.abs(number) == F.lit(float("inf"))
        if self.infinities is None:
            return F.when(~is_beyond, number)
        no_number = F.when(column.isin(sorted(self.infinities)), number)
        return F.when(~(is_beyond | F.isnan(number)), number).otherwise(no_number)


def has_floats(kind: DataType) -> bool:
    """Report whether values of a type may be infinite."""
    if isinstance(kind, ArrayType):
        return has_floats(kind.elementType)
    if isinstance(kind, MapType):
        return has_floats(kind.valueType)
    if isinstance(kind, StructType):
        return any(has_floats(each.dataType) for each in kind.fields)
    return isinstance(kind, (FloatType, DoubleType))


_OF_FLOATS: Final = frozenset({"positiveinf", "negativeinf", "nanvalue", "locale"})

_FORMATS: Final[tuple[tuple[type[DataType], frozenset[str]], ...]] = (
    (DecimalType, frozenset()),
    (DateType, frozenset({"dateformat"})),
    (TimestampType, frozenset({"timestampformat", "timezone"})),
    (TimestampNTZType, frozenset({"timestampntzformat"})),
    (DayTimeIntervalType, frozenset()),
    (FloatType, _OF_FLOATS),
    (DoubleType, _OF_FLOATS),
    (ByteType, frozenset()),
)
"""Types that Spark may not read exactly, and the options with which Spark is asked to read them in a way of its own."""


def _any(values: Column, lost: Callable[[Column], Column | None]) -> Column:
    def is_lost(value: Column) -> Column:
        found = lost(value)
        return F.lit(False) if found is None else found  # noqa: FBT003

    return F.coalesce(F.exists(values, is_lost), F.lit(False))  # noqa: FBT003


def _decimal(text: Column, kind: DecimalType) -> Column:
    number = F.replace(text, F.lit(","), F.lit(""))
    places = F.length(F.regexp_extract(number, r"\.(\d*?)0*(?:[eE]|$)", 1))
    zeros = F.length(F.regexp_extract(number, r"(0*)\.?0*[eE]", 1))
    power = F.regexp_extract(number, r"[eE]([+-]?\d+)$", 1).try_cast("int")
    fits = F.when(places > 0, places).otherwise(-zeros) - power <= kind.scale
    is_exact = number.rlike(rf"^[+-]?\d*\.?\d{{0,{kind.scale}}}0*$") | number.rlike(_ZERO) | fits
    return F.when(text.rlike(_NUMBER) & is_exact, number.try_cast(kind))


def _timestamp(text: Column) -> Column:
    moment = F.coalesce(text.try_cast("timestamp"), F.replace(text, F.lit("GMT"), F.lit("")).try_cast("timestamp"))
    return F.when(~text.rlike(_NO_TIME), moment)


def _timestamp_of_json(value: Column) -> Column:
    """Return a timestamp: JSON has a text, or a whole number of seconds; as text they could not be told apart."""
    text = F.try_variant_get(value, "$", "string")
    seconds = F.try_variant_get(value, "$", "bigint")
    moment = F.when(seconds.between(-_LARGEST_SECOND, _LARGEST_SECOND), F.timestamp_seconds(seconds))
    is_number = text.rlike(r"^-?\d+$") & (F.schema_of_variant(value) == "BIGINT")
    return F.when(is_number, moment).otherwise(_timestamp(text))

"""Reads values of csv and JSON exactly. Invariant: a value is what its text says, or is found to be lost.

Spark's readers round numbers to the scale of a DECIMAL, cut a timestamp after six places, a date before its time, take
`10:00` for today's, make infinity of numbers beyond a float's range, and in JSON -56 of a TINYINT 200. So columns of
such types are read as text, from which each value is made here. Where a source gives formats of its own, Spark reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
)

from weir.dataflow.state_schema import Kind

_MIDNIGHT: Final = r"[T ]\s*(?:0{1,2}:0{1,2}(?::0{1,2}(?:\.0*)?)?\s*(?:Z|[+-]\d{1,2}(?::?\d{2})?)?)?"
_DATE: Final = rf"^\s*(?:\d{{4}}|[+-]?\d{{4,7}}-\d{{1,2}}(?:-\d{{1,2}}(?:{_MIDNIGHT})?)?)\s*$"
"""A date, of which nothing is cut: a time is midnight. Spark takes 15706 for a year, too."""

_SECONDS: Final = r"\d{1,2}(?::\d{1,2}(?::\d{1,2}(?:\.\d{0,6}0*)?)?)?"
_LOCAL_TIME: Final = rf"^\s*[+-]?\d{{4,7}}(?:-\d{{1,2}}(?:-\d{{1,2}}(?:[T ](?:{_SECONDS})?)?)?)?\s*$"
"""A timestamp without a zone, which a cast would drop."""

_MORE_PLACES: Final = r"\.\d{6}\d*[1-9]"
_NO_TIME: Final = rf"^\s*T?\d{{1,3}}(?:\D|$)|{_MORE_PLACES}"
"""A text that is no timestamp of its own: a time without a date, or of more than six places."""

_BARE_NUMBER: Final = r"^\s*[+-]?[\d.]+(?:[eE][+-]?\d+)?\s*$"
_NUMBER: Final = r"^[+-]?(?:(?:\d+|\d{1,3}(?:,\d{3})+)\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
"""A number; Spark's readers take commas between any digits, so that 1,5 would be 15: here between thousands only."""

_FLOAT: Final = r"^\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*$"
"""A float; Java takes `12d`, `12f` and `0x1p3` for numbers, too."""

_ZERO: Final = r"^[+-]?[0.]+(?:[eE].*)?$"
_MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class ExactReading:
    """How the values of a source's files are read."""

    format: str
    options: frozenset[str]
    """The options that the source gives, in lower case."""
    infinities: frozenset[str] | None
    """Spark's words for infinity and for no number, where lines may have such, or other words; None where none has."""
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
        return StringType()

    def value(self, column: Column, kind: DataType) -> Column:
        """Return the value of a type; null where it is lost."""
        if self.is_plain(kind):
            return column
        if isinstance(kind, ArrayType):
            return F.transform(column, lambda each: self.value(each, kind.elementType))
        if isinstance(kind, MapType):
            return F.transform_values(column, lambda _, each: self.value(each, kind.valueType))
        if isinstance(kind, StructType):
            fields = [self.value(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
            return F.when(column.isNotNull(), F.struct(*fields))
        return self._simple_value(column, kind)

    def lost(self, column: Column, kind: DataType) -> Column:
        """Return the condition that a value is not what the lines say, of a type that Spark does not read exactly."""
        if isinstance(kind, ArrayType):
            return _any(column, lambda each: self.lost(each, kind.elementType))
        if isinstance(kind, MapType):
            return _any(F.map_values(column), lambda each: self.lost(each, kind.valueType))
        if isinstance(kind, StructType):
            parts = [each for each in kind.fields if not self.is_plain(each.dataType)]
            return reduce(Column.__or__, (self.lost(column.getField(each.name), each.dataType) for each in parts))
        return column.isNotNull() & self._simple_value(column, kind).isNull()

    def is_plain(self, kind: DataType) -> bool:
        """Report whether Spark reads a type exactly."""
        floats = (FloatType, DoubleType)
        return all(
            bool(_OF_FLOATS & self.options) if isinstance(leaf, floats) else self._simple(leaf) == leaf
            for leaf in _leaves(kind, has_keys=False)
        )

    def _simple_value(self, column: Column, kind: DataType) -> Column:
        if isinstance(kind, (FloatType, DoubleType)):
            return self._float(column, kind)
        if isinstance(kind, DecimalType):
            return self._decimal(column, kind)
        if isinstance(kind, ByteType):
            return column.try_cast(kind)
        value = self._time(column, kind)
        # In JSON a number may be seconds, milliseconds or a year: it is no day of a calendar.
        return value if self.format == "csv" else F.when(~column.rlike(_BARE_NUMBER), value)

    @staticmethod
    def _time(text: Column, kind: DataType) -> Column:
        if isinstance(kind, TimestampType):
            return _timestamp(text)
        near = text.try_cast(kind)
        if isinstance(kind, DateType):
            return F.when((near.cast("string") == text) | text.rlike(_DATE), near)
        is_whole = text.rlike(_LOCAL_TIME) if isinstance(kind, TimestampNTZType) else ~text.rlike(_MORE_PLACES)
        return F.when(is_whole, near)

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
        is_said = column.rlike(_FLOAT) & ~is_beyond
        return F.when(is_said | column.isin(sorted(self.infinities)), number)


def _leaves(kind: DataType, *, has_keys: bool) -> Iterator[DataType]:
    """Yield the types that a type is made of, at every depth; of maps those of the keys, too, if wanted."""
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [*([kind.keyType] if has_keys else []), kind.valueType]
    elif isinstance(kind, StructType):
        parts = [each.dataType for each in kind.fields]
    else:
        yield kind
        return
    for part in parts:
        yield from _leaves(part, has_keys=has_keys)


def has_floats(kind: DataType) -> bool:
    """Report whether values of a type may be infinite."""
    return any(isinstance(leaf, (FloatType, DoubleType)) for leaf in _leaves(kind, has_keys=False))


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


def is_no_text(column: Column, kind: DataType) -> Column | None:
    """Return the condition that a text is made of bytes that are none; None for types without texts.

    It is flat where a struct has many parts: the depth of a plan is limited.
    """
    if isinstance(kind, StringType):
        return ~F.is_valid_utf8(column)
    if isinstance(kind, ArrayType):
        found = [_has_no_text(column, kind.elementType)]
    elif isinstance(kind, MapType):
        found = [_has_no_text(F.map_keys(column), kind.keyType), _has_no_text(F.map_values(column), kind.valueType)]
    elif isinstance(kind, StructType):
        found = [is_no_text(column.getField(each.name), each.dataType) for each in kind.fields]
    else:
        return None
    wrong = [each for each in found if each is not None]
    return F.greatest(*wrong, *wrong[:1]) if wrong else None


def _has_no_text(values: Column, kind: DataType) -> Column | None:
    has_text = any(isinstance(leaf, StringType) for leaf in _leaves(kind, has_keys=True))
    return _any(values, lambda each: is_no_text(each, kind)) if has_text else None


def has_null(column: Column, kind: DataType) -> Column | None:
    """Return the condition that a part of a value is null that is declared NOT NULL; None where no part is."""
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return None if has_null(column, inner) is None else _any(column, lambda each: has_null(each, inner))
    if isinstance(kind, MapType):
        value = kind.valueType
        return (
            None if has_null(column, value) is None else _any(F.map_values(column), lambda each: has_null(each, value))
        )
    if not isinstance(kind, StructType):
        return None
    found = []
    for each in kind.fields:
        part = column.getField(each.name)
        found += [] if each.nullable else [column.isNotNull() & part.isNull()]
        found += [F.coalesce(inside, F.lit(False)) for inside in [has_null(part, each.dataType)] if inside is not None]  # noqa: FBT003
    return reduce(Column.__or__, found) if found else None


def loses_digits(declared: Kind, found: Kind) -> bool:
    """Report whether a STRING has numbers in lines, of which Spark makes texts by way of a DOUBLE."""
    if declared.name == "string":
        return found.name.startswith(_INEXACT) or any(loses_digits(declared, part) for _, part in found.parts)
    if found.name == "variant":
        return any(loses_digits(part, found) for _, part in declared.parts)
    if found.name == "array" != declared.name:  # an array of records
        return any(loses_digits(declared, part) for _, part in found.parts)
    if declared.name == "map":
        return any(loses_digits(declared.parts[1][1], part) for _, part in found.parts)
    parts = dict(found.parts)
    return any(name in parts and loses_digits(part, parts[name]) for name, part in declared.parts)


_INEXACT: Final = ("decimal", "double", "float", "variant")
"""Kinds of variants that may be numbers with a point; a variant is of several kinds."""


def _any(values: Column, lost: Callable[[Column], Column | None]) -> Column:
    def is_lost(value: Column) -> Column:
        found = lost(value)
        return F.lit(False) if found is None else found  # noqa: FBT003

    return F.coalesce(F.exists(values, is_lost), F.lit(False))  # noqa: FBT003


def _decimal(text: Column, kind: DecimalType) -> Column:
    near = text.try_cast(kind)
    # Most numbers are written as Spark writes them: what else there may be is looked for in the others only.
    return F.when(near.cast("string") == text, near).otherwise(_decimal_of_other_form(text, kind))


def _decimal_of_other_form(text: Column, kind: DecimalType) -> Column:
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

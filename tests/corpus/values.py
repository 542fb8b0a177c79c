"""Awkward values of each type of Spark, as a function of a stage makes them, and who refuses them.

A line is a type, what the value is, how SQL writes it, and what a reader must find: dates as days and timestamps as
microseconds since 1970, since Python knows neither the year 0 nor 10000; floats as their `repr`. `refused` names those
that must refuse it, before anything is published; everybody else must give it back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

REGION = "region"
"""Refuses a type of which no digest can be taken: it is in no result at all."""

STATE, FILES, POSTGRESQL, DELTA, ICEBERG = "state", "files", "PostgreSQL", "Delta", "Iceberg"
TARGETS: Final = (FILES, POSTGRESQL, DELTA, ICEBERG)


@dataclass(frozen=True)
class Value:
    """A value of a type; `refused` has by place why it is refused there, as the page says it."""

    type: str
    what: str
    sql: str
    found: Any
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def no(reason, *places):
    return dict.fromkeys(places, reason)


NO_DIGEST = no("has no canonical value", REGION)
NO_YEAR_0 = no("before year 1", POSTGRESQL) | no("not of years 1 to 9999", ICEBERG)
FAR = no("not of years 1 to 9999", ICEBERG)
FURTHER = no("after year 32767", POSTGRESQL) | FAR
_DAY_0 = -719162
"""Days from 1970 back to the first of January of the year 1."""
_DAY_9999 = 2932896
_US = 86_400_000_000

VALUES: Final = (
    Value("boolean", "null", "cast(null as boolean)", None),
    Value("boolean", "true", "true", True),
    Value("tinyint", "the least", "-128Y", -128),
    Value("smallint", "the least", "-32768S", -32768),
    Value("int", "the greatest", "2147483647", 2147483647),
    Value("bigint", "beyond 2^53", "9007199254740993L", 9007199254740993),
    Value("bigint", "the least", "-9223372036854775807L - 1L", -(2**63)),
    Value("float", "0.1", "float('0.1')", repr(0.10000000149011612)),
    Value("float", "NaN", "float('NaN')", "nan"),
    Value("float", "infinity", "float('-Infinity')", "-inf"),
    Value("double", "negative zero", "-0.0D", "-0.0"),
    Value("double", "NaN", "double('NaN')", "nan"),
    Value("double", "infinity", "double('Infinity')", "inf"),
    Value("double", "the least above zero", "4.9E-324D", "5e-324"),
    Value("double", "beyond 2^53", "9007199254740992D", "9007199254740992.0"),
    Value("decimal(38,0)", "38 digits", "-99999999999999999999999999999999999999BD", Decimal("-" + "9" * 38)),
    Value(
        "decimal(38,38)",
        "38 places",
        "cast(0.00000000000000000000000000000000000001 as decimal(38,38))",
        Decimal("1E-38"),
    ),
    Value("decimal(10,2)", "trailing zero", "cast(1.10 as decimal(10,2))", Decimal("1.10")),
    Value("string", "empty", "''", ""),
    Value("string", "quotes, line ends", r"'say \"\"hi\"\", it\'s\r\n\tok\\'", 'say ""hi"", it\'s\r\n\tok\\'),
    Value("string", "beyond 16 bits, combining", r"'\U0001F600 e\u0301'", "\U0001f600 e\u0301"),
    Value("string", "looks like null", r"'\\N'", "\\N"),
    Value("string", "the word NULL", "'NULL'", "NULL"),
    Value("string", "NUL", r"concat('a', char(0), 'b')", "a\0b", no("the character NUL", POSTGRESQL)),
    Value("binary", "no text", "X'00FF5C'", b"\x00\xff\\"),
    Value("binary", "empty", "X''", b""),
    Value("date", "the first of Python", "date'0001-01-01'", _DAY_0),
    Value("date", "the last of Python", "date'9999-12-31'", _DAY_9999),
    Value("date", "before the Gregorian calendar", "date'1500-02-28'", -171606),
    Value("date", "year 10000", "date'+10000-01-01'", _DAY_9999 + 1, FAR),
    Value("date", "year 0", "date'0001-01-01' - 1", _DAY_0 - 1, NO_YEAR_0),
    Value("timestamp", "microseconds", "timestamp'2013-01-01 12:00:00.123456'", 1357041600123456),
    Value("timestamp", "before 1900", "timestamp'1883-11-18 12:03:57.999999'", -2717668562000001),
    Value("timestamp", "before nanoseconds of 64 bits", "timestamp'1500-01-01 00:00:00'", -14831769600 * 10**6),
    Value("timestamp", "the last of Python", "timestamp'9999-12-31 23:59:59.999999'", (_DAY_9999 + 1) * _US - 1),
    Value("timestamp", "year 10000", "timestamp'+10000-01-01 00:00:00'", (_DAY_9999 + 1) * _US, FAR),
    Value("timestamp", "year 32768", "timestamp'+32768-01-01 00:00:00'", 971890963200 * 10**6, FURTHER),
    Value("timestamp", "year 0", "timestamp'0000-12-31 23:59:59'", _DAY_0 * _US - 10**6, NO_YEAR_0),
    Value("timestamp", "the greatest", "timestamp_micros(9223372036854775807L)", 2**63 - 1, FURTHER),
    Value("timestamp_ntz", "microseconds", "timestamp_ntz'2013-01-01 12:00:00.123456'", 1357041600123456),
    Value("timestamp_ntz", "year 10000", "timestamp_ntz'+10000-01-01 00:00:00'", (_DAY_9999 + 1) * _US, FAR),
    Value("timestamp_ntz", "year 0", "timestamp_ntz'0000-12-31 23:59:59'", _DAY_0 * _US - 10**6, NO_YEAR_0),
    Value("array<int>", "empty", "cast(array() as array<int>)", []),
    Value("array<int>", "null inside", "array(1, null)", [1, None]),
    Value("array<double>", "NaN inside", "array(double('NaN'))", ["nan"], no("JSON has no NaN", POSTGRESQL)),
    Value("struct<a:int,b:string>", "null", "cast(null as struct<a: int, b: string>)", None),
    Value(
        "struct<a:int,b:string>", "of nulls", "named_struct('a', int(null), 'b', string(null))", {"a": None, "b": None}
    ),
    Value("map<string,int>", "empty", "cast(map() as map<string, int>)", {}),
    Value("map<string,int>", "null value", "map('a', 1, 'b', int(null))", {"a": 1, "b": None}),
    Value("map<int,array<string>>", "nested", "map(1, array('x', null))", {1: ["x", None]}),
    Value(
        "struct<a:struct<b:array<bigint>>>",
        "nested",
        "named_struct('a', named_struct('b', array(9007199254740993L)))",
        {"a": {"b": [9007199254740993]}},
    ),
    Value("void", "null", "null", None, NO_DIGEST),
    Value("interval day to second", "a second", "interval '1' second", None, NO_DIGEST),
    Value("interval year to month", "a month", "interval '1' month", None, NO_DIGEST),
    Value("variant", "a number", "parse_json('1')", None, NO_DIGEST),
    Value("time(6)", "noon", "time'12:00:00'", None, NO_DIGEST),
)


def by_type():
    """All values by type, in their order."""
    found: dict[str, list[Value]] = {}
    for value in VALUES:
        found.setdefault(value.type, []).append(value)
    return found

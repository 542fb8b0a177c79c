"""Rows of PostgreSQL, and partitions of Delta and Iceberg tables, as strangers have them, with what is right."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa


@dataclass(frozen=True)
class Selected:
    """A query of PostgreSQL; its rows, or `names`, which the refusal must have."""

    query: str
    rows: list[tuple[Any, ...]] | None = None
    names: str = ""


@dataclass(frozen=True)
class Partition:
    """A column by which a table is partitioned, the values that it has, and the text that a source declares.

    On 2013-01-01. `found` are the values whose rows are read; None if the text is refused.
    """

    type: pa.DataType
    values: tuple[Any, ...]
    declared: str
    found: tuple[Any, ...] | None


def one(expression, value):
    return Selected(f"select {expression} v", [(value,)])


SELECTED: Final = (
    Selected("select 1::int8 v;  -- the end", [(1,)]),
    Selected("select 1::int8 v /* the end */ ;", [(1,)]),
    Selected("select ';--' v -- the end", [(";--",)]),
    one("12345678901234567890.5::numeric(38,1)", Decimal("12345678901234567890.5")),
    one("9007199254740993::int8", 9007199254740993),
    one("'2013-01-01 12:00:00.123456+05:45'::timestamptz", datetime(2013, 1, 1, 6, 15, 0, 123456, tzinfo=UTC)),
    one("'2013-01-01 12:00:00.123456'::timestamp", datetime.fromisoformat("2013-01-01T12:00:00.123456")),
    one("'0001-01-01'::date", date(1, 1, 1)),
    one("'9999-12-31'::date", date(9999, 12, 31)),
    one("E'a\\\\b\\n,\"c\"'::text", 'a\\b\n,"c"'),
    one("''::text", ""),
    one("null::text", None),
    one("'\\x00ff'::bytea", b"\x00\xff"),
    one("true", True),
    one("0.1::float4", 0.10000000149011612),
    one("1.10::numeric(10,2)", Decimal("1.10")),
    Selected("select 1::int8 v; select 2", names="statements"),
    Selected("select 'infinity'::timestamptz v", names="infinity"),
    Selected("select '-infinity'::date v", names="infinity"),
    Selected("select '0044-03-15 BC'::date v", names="BC"),
    Selected("select 'NaN'::numeric(10,2) v", names="NaN"),
    Selected("select 12345678901234567890123456789012345678901::numeric v", names="v"),
)

PARTITIONS: Final = (
    Partition(pa.int32(), (1, 2), "{start:%m}", (1,)),
    Partition(pa.int64(), (20130101, 20130102), "{start:%Y%m%d}", (20130101,)),
    Partition(pa.date32(), (date(2013, 1, 1), date(2013, 1, 2)), "{start:%Y-%m-%d}", (date(2013, 1, 1),)),
    Partition(pa.string(), ("01", "1"), "{start:%m}", ("01",)),
    Partition(pa.string(), ("a b/c%d", "a"), "a b/c%d", ("a b/c%d",)),
    Partition(pa.bool_(), (True, False), "true", (True,)),
    Partition(pa.int32(), (1, 2), "{start:%Y-%m}", None),
    Partition(pa.int32(), (1, 2), "9999999999", None),
    Partition(pa.date32(), (date(2013, 1, 1),), "{start:%d.%m.}", None),
)

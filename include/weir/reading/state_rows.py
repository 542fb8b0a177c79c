"""The rows that files of keyed state come to. Invariant: of all rows of a key the one of the latest epoch counts.

A deleted row hides the older ones, and so does one that has expired: what it replaced is older, and has expired, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from weir.results.layout import KEY_GROUP_COLUMN

DELETED = "_weir_deleted"
UPDATED = "_weir_updated"
"""The columns that the files have besides the user's, as `weir_spark.state_reader` names them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rows of a state look like: the user's columns, its keys, and since when rows have expired.

    A row is visible if its last update is above `expired_until`, in seconds since 1970; None: nothing expires.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    expired_until: int | None

    @property
    def stored(self) -> pa.Schema:
        """The columns that are read of a file."""
        own = [pa.field(KEY_GROUP_COLUMN, pa.int32()), pa.field(DELETED, pa.bool_())]
        if self.expired_until is not None:
            own.append(pa.field(UPDATED, pa.int64()))
        return pa.schema([*self.columns, *own])


def as_stored(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A file's columns in the types of the state: those that it was given later are null in older files."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def of_key_groups(table: pa.Table, key_groups: tuple[int, int]) -> pa.Table:
    """The rows of an inclusive range of key groups."""
    first, last = key_groups
    group = table.column(KEY_GROUP_COLUMN)
    return table.filter(pc.and_(pc.greater_equal(group, first), pc.less_equal(group, last)))


def of_key(table: pa.Table, key: dict[str, Any]) -> pa.Table:
    """The rows of one key, given in the types of the key columns; null equals null."""
    found = []
    for name, value in key.items():
        column = table.column(name)
        is_equal = column.is_null() if value is None else pc.equal(column, pa.scalar(value, column.type))
        found.append(pc.fill_null(is_equal, fill_value=False))
    return table.filter(reduce(pc.and_, found))


def newest(tables: Sequence[pa.Table], shape: Shape) -> pa.Table:
    """The visible rows of tables of one schema, the oldest first: a row a key, with Weir's own columns."""
    table = pa.concat_tables([shape.stored.empty_table(), *tables])
    if len(tables) > 1:
        at = "_weir_at"
        keys = table.select(list(shape.keys)).append_column(at, pa.arange(0, table.num_rows))
        kept = keys.group_by(list(shape.keys)).aggregate([(at, "max")]).column(f"{at}_max")
        table = table.take(kept.combine_chunks().sort())
    return visible(table, shape)


def visible(table: pa.Table, shape: Shape) -> pa.Table:
    """Without the rows that are deleted or have expired."""
    kept = pc.invert(table.column(DELETED))
    if shape.expired_until is not None:
        kept = pc.and_(kept, pc.greater(table.column(UPDATED), shape.expired_until))
    return cast("pa.Table", table.filter(kept))

"""Reads and merges files of keyed state without Spark.

Invariants: only the needed row groups are fetched, and each byte is compared with its recorded digest. Of all rows of a
key the newest epoch's wins. A deleted or expired row hides the older ones: they have expired, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.errors import Internal, Message
from weir.formats.manifest import Segment, StateFile
from weir.state.file_rules import overlap
from weir.store.errors import NotFound
from weir.store.remote import Seekable
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN

_GAP: Final = 1 << 16
"""The most bytes between two parts of a file that are fetched at once."""


class Gone(Exception):
    """Raised for a damaged file, and for a missing one: then `is_there` is false."""

    def __init__(self, detail: str, *, is_there: bool) -> None:
        super().__init__(detail)
        self.detail, self.is_there = detail, is_there


def read_rows(store: Store, file: StateFile, schema: pa.Schema, key_groups: tuple[int, int]) -> pa.Table:
    """Return the rows of the inclusive key groups of `file`, with the columns of `schema`. Raises Gone."""
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    return of_key_groups(read_row_groups(store, file, schema, row_groups_of(file, (first, last))), (first, last))


def row_groups_of(file: StateFile, key_groups: tuple[int, int]) -> list[int]:
    """Return the numbers of the row groups that may hold rows of an inclusive range of key groups."""
    groups = [segment for segment in file.file.segments if not segment.is_tail]
    return [
        number
        for number, segment in enumerate(groups)
        if segment.key_groups is None or overlap(segment.key_groups, key_groups)
    ]


def read_row_groups(store: Store, file: StateFile, schema: pa.Schema, wanted: Sequence[int]) -> pa.Table:
    """Return the rows of some row groups of `file`, with the columns of `schema`. Raises Gone."""
    groups = [segment for segment in file.file.segments if not segment.is_tail]
    tails = [segment for segment in file.file.segments if segment.is_tail]
    source = _Fetched(store, file, [*(groups[number] for number in wanted), *tails])
    with pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us") as parquet:
        numbers = [number for number in range(parquet.num_row_groups) if parquet.metadata.row_group(number).num_rows]
        if len(numbers) != len(groups):
            raise Internal.of("state.row_groups_differ", file_path=file.path, found=len(numbers), recorded=len(groups))
        present = [name for name in schema.names if name in parquet.schema_arrow.names]
        table = parquet.read_row_groups([numbers[number] for number in wanted], columns=present)
    return as_stored(table, schema)


class _Fetched(Seekable):
    """A file of which only some segments were fetched, each compared with its recorded SHA-256."""

    def __init__(self, store: Store, file: StateFile, segments: Sequence[Segment]) -> None:
        super().__init__(file.file.bytes)
        self._parts = [part for near in _near(segments) for part in _checked(store, file, near)]

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        data, self._at = self._between(self._at, end), max(self._at, end)
        return data

    def _between(self, first: int, end: int) -> bytes:
        """Bytes of a segment that was not fetched are zeros: a reader that guesses may ask for them, and uses none."""
        found = bytearray(max(0, end - first))
        for offset, data in self._parts:
            begin, stop = max(first, offset), min(end, offset + len(data))
            if begin < stop:
                found[begin - first : stop - first] = data[begin - offset : stop - offset]
        return bytes(found)


def _near(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group segments that one request fetches: one more costs more than the few bytes between them."""
    found: list[list[Segment]] = []
    for each in sorted(segments, key=lambda segment: segment.offset):
        if found and each.offset - found[-1][-1].end <= _GAP:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _checked(store: Store, file: StateFile, near: Sequence[Segment]) -> list[tuple[int, bytes]]:
    """Return offset and bytes of segments that lie near each other."""
    first = near[0].offset
    try:
        data = store.read(file.path, first, near[-1].end - first)
    except NotFound:
        raise Gone(Message("state.file_gone", file_path=file.path, bytes=file.file.bytes), is_there=False) from None
    return [(each.offset, _as_recorded(file, each, data[each.offset - first : each.end - first])) for each in near]


def _as_recorded(file: StateFile, segment: Segment, data: bytes) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != segment.sha256:
        where = f"bytes {segment.offset} to {segment.end}"
        raise Gone(
            Message("state.file_damaged", file_path=file.path, where=where, sha256=segment.sha256, found=found),
            is_there=True,
        )
    return data


DELETED = "_weir_deleted"

UPDATED = "_weir_updated"
"""The columns that the files have besides the user's, as `weir_spark.state.reader` names them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The schema of a state's rows: the user's columns, its keys, and the time before which rows have expired.

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
    """Return a file's columns in the types of the state: columns that were added later are null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def of_key_groups(table: pa.Table, key_groups: tuple[int, int]) -> pa.Table:
    """Return the rows of an inclusive range of key groups."""
    first, last = key_groups
    group = table.column(KEY_GROUP_COLUMN)
    return table.filter(pc.and_(pc.greater_equal(group, first), pc.less_equal(group, last)))


def of_key(table: pa.Table, key: dict[str, Any]) -> pa.Table:
    """Return the rows of one key, given in the types of the key columns; null equals null."""
    found = []
    for name, value in key.items():
        column = table.column(name)
        is_equal = column.is_null() if value is None else pc.equal(column, pa.scalar(value, column.type))
        found.append(pc.fill_null(is_equal, fill_value=False))
    return table.filter(reduce(pc.and_, found))


def newest(tables: Sequence[pa.Table], shape: Shape) -> pa.Table:
    """Merge tables of one schema, oldest first, to the visible row of each key, with Weir's own columns."""
    table = pa.concat_tables([shape.stored.empty_table(), *tables])
    if len(tables) > 1:
        at = "_weir_at"
        keys = table.select(list(shape.keys)).append_column(at, pa.arange(0, table.num_rows))
        kept = keys.group_by(list(shape.keys)).aggregate([(at, "max")]).column(f"{at}_max")
        table = table.take(kept.combine_chunks().sort())
    return visible(table, shape)


def count_rows(store: Store, files: Sequence[StateFile], shape: Shape, key_groups: tuple[int, int]) -> int:
    """Count the visible rows of files, oldest first, of which only keys are read. Raises Gone."""
    keys = Shape(pa.schema([shape.columns.field(name) for name in shape.keys]), shape.keys, shape.expired_until)
    return int(newest([read_rows(store, each, keys.stored, key_groups) for each in files], keys).num_rows)


def visible(table: pa.Table, shape: Shape) -> pa.Table:
    """Without the rows that are deleted or have expired."""
    kept = pc.invert(table.column(DELETED))
    if shape.expired_until is not None:
        kept = pc.and_(kept, pc.greater(table.column(UPDATED), shape.expired_until))
    return cast("pa.Table", table.filter(kept))

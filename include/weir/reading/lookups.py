"""Looks up rows of an open state without Spark: by key, several keys, and by a prefix of the key in pages.

Invariants: each row group is read once, by file name, as long as the bound of the cache allows: files never change. Of
all rows of a key the newest file's wins, and a deleted or expired one hides the older ones. A null equals a null. What
a time limit ends has kept what it has read, so that asking again goes on.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import Misconfigured
from weir.formats.manifest import StateFile
from weir.reading.opened_state import OpenedState, OpenStatePartition
from weir.state.state_files import DELETED, UPDATED, row_groups_of
from weir.topology.partitions import KEY_GROUP_COLUMN

MOST_ROWS: Final = 10_000
"""The most rows of a page."""

CACHED_BYTES: Final = 1 << 30
"""The default bound of a cache, in bytes of rows as Arrow holds them."""

Row = dict[str, Any]
Look = Callable[[], None]
"""Is called before each row group and key; raises where the time for a request is over."""

_Ordered = tuple[tuple[bool, Any], ...]
"""Values of key columns as the files are sorted by them: nulls first."""


@dataclass(frozen=True, slots=True)
class Page:
    """Rows by key, and the key after which the next page begins; None where there is none."""

    rows: list[Row]
    next_after: tuple[Any, ...] | None


class CachedRows:
    """The rows of one row group, sorted by key group and key."""

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        names = (KEY_GROUP_COLUMN, *keys)
        valid = [pc.cast(table.column(name).is_valid(), pa.int8()) for name in names]  # nulls come first
        columns = [each for at, name in enumerate(names) for each in (valid[at], table.column(name))]
        order = pa.table(columns, names=[str(at) for at in range(len(columns))])
        by = [(name, "ascending") for name in order.column_names]
        sorted_ = table.take(pc.sort_indices(order, sort_keys=by))
        self._columns = {name: sorted_.column(name).combine_chunks() for name in sorted_.column_names}
        self._keys = [(_value_at(self._columns[name]), _comparable(self._columns[name].type)) for name in keys]
        self._group = _value_at(self._columns[KEY_GROUP_COLUMN])
        self._rows = range(sorted_.num_rows)
        self._bounds: dict[int, tuple[int, int]] = {}
        self.bytes = sorted_.nbytes

    def rows_of(self, group: int, key: Sequence[Any]) -> tuple[int, int]:
        """Return where the rows of a key group begin and end whose key begins with `key`, or where they would be."""
        found = self._bounds.get(group)
        if found is None:
            found = self._bounds[group] = self._within((0, len(self._rows)), self._group, (True, group))
        for (value_at, comparable), value in zip(self._keys, key, strict=False):
            wanted = (False, None) if value is None else (True, comparable(value))
            found = self._within(found, value_at, wanted)
        return found

    def row(self, at: int) -> Row:
        """Return a row, with Weir's own columns."""
        return {name: _as_python(column[at]) for name, column in self._columns.items()}

    def _within(
        self, rows: tuple[int, int], value_at: Callable[[int], tuple[bool, Any]], wanted: tuple[bool, Any]
    ) -> tuple[int, int]:
        begin, end = bisect_left(self._rows, wanted, *rows, key=value_at), rows[1]
        if begin == end or value_at(begin) != wanted:
            return begin, begin
        if begin + 1 == end or value_at(begin + 1) != wanted:
            return begin, begin + 1  # as for a whole key, of which there is one row
        return begin, bisect_right(self._rows, wanted, begin, end, key=value_at)


def _as_python(value: pa.Scalar) -> Any:
    """Return a value; a date or time beyond the years of Python as its number of days or microseconds since 1970."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value.value


def _comparable(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return how a value of a type is compared with those of `_value_at`."""
    return str.encode if pa.types.is_string(kind) else lambda value: value


def _value_at(array: pa.Array) -> Callable[[int], tuple[bool, Any]]:
    """Return what gives the value of a row as rows are sorted by it: nulls first, texts as their bytes."""
    is_text, form = pa.types.is_string(array.type), _FORMS.get(str(array.type))
    if array.null_count or (form is None and not is_text):
        values = array.cast(pa.binary()) if is_text else array

        def value_at(at: int) -> tuple[bool, Any]:
            value = values[at].as_py()
            return value is not None, value

        return value_at
    if form is None:
        ends, data = memoryview(array.buffers()[1]).cast("i")[array.offset :], memoryview(array.buffers()[2] or b"")
        return lambda at: (True, bytes(data[ends[at] : ends[at + 1]]))
    numbers = memoryview(array.buffers()[1]).cast(form)[array.offset :]
    return lambda at: (True, numbers[at])


_FORMS: Final[dict[str, Literal["b", "h", "i", "q"]]] = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
"""The formats of buffers by the types of Arrow."""


def ordered(values: Sequence[Any]) -> _Ordered:
    """Return key values that compare as the files are sorted."""
    return tuple((value is not None, value) for value in values)


@dataclass(slots=True)
class RowGroupCache:
    """Row groups that were read, up to a number of bytes; those that were not used for longest leave first."""

    most_bytes: int = CACHED_BYTES
    _held: OrderedDict[tuple[str, ...], CachedRows] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: tuple[str, ...], read: Callable[[], CachedRows]) -> CachedRows:
        """Return what is held, or read it."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
        found = read()
        with self._lock:
            if key not in self._held:
                self._held[key] = found
                self._bytes += found.bytes
            while self._bytes > self.most_bytes and self._held:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.bytes
        return found


class _RowGroup(NamedTuple):
    """A row group of a file of a partition, and the key by which its rows are cached."""

    key: tuple[str, ...]
    part: OpenStatePartition
    file: StateFile
    number: int


class Lookups:
    """Look-ups in one open state; the cache may be shared by all states and epochs of one store."""

    def __init__(self, opened: OpenedState, cache: RowGroupCache) -> None:
        self.opened = opened
        self._cache, self._shape = cache, opened.shape
        self._stored = self._shape.stored
        self._schema = str(self._stored)
        self._by_group: dict[int, list[list[_RowGroup]]] = {}
        self.version = _version_of(opened)
        """Differs where rows may."""

    def get(self, key: Sequence[Any], look: Look = lambda: None) -> Row | None:
        """Return the row of a key, its values in order, also as text. Raises Misconfigured, Unreadable, Retryable."""
        look()
        asked = self.opened.typed_key(key)
        group, wanted = self.opened.group_of(asked), tuple(asked.values())
        for rows in self._files(group, look):
            for each in rows:
                begin, end = each.rows_of(group, wanted)
                if begin < end:
                    row = each.row(begin)
                    return self._user_columns(row) if self._is_visible(row) else None
        return None

    def get_many(self, keys: Sequence[Sequence[Any]], look: Look = lambda: None) -> list[Row | None]:
        """Return the row of each key, in order; None where there is none. Raises as `get`."""
        return [self.get(key, look) for key in keys]

    def scan(
        self, prefix: Sequence[Any], limit: int, after: Sequence[Any] | None = None, look: Look = lambda: None
    ) -> Page:
        """Return up to `limit` rows whose key begins with `prefix`, by key, after that of the page before.

        A prefix has all columns that make the key group. Raises Misconfigured, Unreadable, Retryable.
        """
        if not 1 <= limit <= MOST_ROWS:
            raise Misconfigured.of("reading.page_limit_malformed", limit=limit, most=MOST_ROWS)
        asked = self.opened.typed_prefix(prefix)
        group, begins = self.opened.group_of(asked), tuple(asked.values())
        last = None if after is None else tuple(self.opened.typed_key(after).values())
        found: list[Row] = []
        while True:
            merged, bound = self._merged((group, begins), last, limit + 1, look)
            found += [merged[key] for key in sorted(merged) if self._is_visible(merged[key])]
            if bound is None or len(found) > limit:
                break
            last = tuple(value for _, value in bound)
        shown = [self._user_columns(row) for row in found[:limit]]
        more = tuple(shown[-1][name] for name in self.opened.keys) if len(found) > limit else None
        return Page(shown, more)

    def _merged(
        self, wanted: tuple[int, tuple[Any, ...]], last: tuple[Any, ...] | None, most: int, look: Look
    ) -> tuple[dict[_Ordered, Row], _Ordered | None]:
        """Return the newest rows after `last`, up to a key beyond which a file has more that was not read.

        `wanted` are a key group and the first values of keys.
        """
        group, begins = wanted
        merged: dict[_Ordered, Row] = {}
        bounds = []
        for rows in self._files(group, look):
            own: list[Row] = []
            for each in rows:
                begin, end = each.rows_of(group, begins)
                if last is not None:
                    begin = max(begin, each.rows_of(group, last)[1])
                own += [each.row(at) for at in range(begin, min(end, begin + most - len(own)))]
                if len(own) == most:
                    break
            for row in own:
                merged.setdefault(self._key(row), row)
            if len(own) == most:
                bounds.append(self._key(own[-1]))
        bound = min(bounds, default=None)
        return {key: row for key, row in merged.items() if bound is None or key <= bound}, bound

    def _files(self, group: int, look: Look) -> Iterator[Iterator[CachedRows]]:
        """Yield the row groups that may hold a key group, of each file, newest first."""
        found = self._by_group.get(group)
        if found is None:
            found = self._by_group[group] = [
                [_RowGroup((file.path, file.file.sha256, str(at), self._schema), part, file, at) for at in numbers]
                for part, file in self.opened.files_of(group)
                if (numbers := row_groups_of(file, (group, group)))
            ]
        for row_groups in found:
            yield (self._read(each, look) for each in row_groups)

    def _read(self, of: _RowGroup, look: Look) -> CachedRows:
        look()
        return self._cache.get(
            of.key,
            lambda: CachedRows(self.opened.row_group(of.part, of.file, of.number, self._stored), self.opened.keys),
        )

    def _key(self, row: Mapping[str, Any]) -> _Ordered:
        return ordered([row[name] for name in self.opened.keys])

    def _is_visible(self, row: Mapping[str, Any]) -> bool:
        until = self._shape.expired_until
        return not row[DELETED] and (until is None or (row[UPDATED] is not None and row[UPDATED] > until))

    def _user_columns(self, row: Mapping[str, Any]) -> Row:
        return {name: row[name] for name in self._shape.columns.names}


def _version_of(opened: OpenedState) -> str:
    """Return a digest of run, epoch, checkpoint, attempts, and whether it is stale."""
    parts = [(part.subtask, part.attempt, part.digest) for part in opened.partitions]
    named = repr((opened.name, opened.run, opened.epoch, opened.checkpoint, opened.stale, parts))
    return hashlib.sha256(named.encode()).hexdigest()[:32]

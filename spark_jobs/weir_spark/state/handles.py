"""The handle of one key's state for a function. Invariant: changes are written after the function has returned.

This module runs in Spark's Python workers, where there need be no Weir: it travels with the function, by its value, and
imports nothing but Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

VALUE, LIST, MAP = "value", "list", "map"


class KeyState:
    """The row that a keyed state has of one key, and how a function changes it.

    `columns` are those besides the key, by name: VALUE, LIST or MAP. A key without a row has `exists` False and None in
    all columns. What is updated in place is not seen: set it.
    """

    def __init__(self, columns: Mapping[str, str], row: dict[str, Any] | None) -> None:
        self._columns = columns
        self._row = None if row is None else {name: row[name] for name in columns}
        self._existed = row is not None
        self._is_changed = False
        self._is_whole = False
        self._own: set[str] = set()  # columns whose list or map was not handed out: only these are changed in place

    @property
    def exists(self) -> bool:
        """True if there is a row of this key now."""
        return self._row is not None

    def get(self) -> dict[str, Any] | None:
        """The columns besides the key, as they are now, or None where there is no row."""
        self._own.clear()
        return None if self._row is None else dict(self._row)

    def set(self, **columns: Any) -> None:
        """Set the whole row: a column that is not named becomes None."""
        for column in columns:
            self._kind(column)
        self._own.clear()
        self._row = {name: columns.get(name) for name in self._columns}
        self._is_changed = self._is_whole = True

    def clear(self) -> None:
        """Delete the row."""
        self._row = None
        self._is_changed = True

    def value(self, column: str) -> ValueState:
        """The value of a column of any type."""
        self._kind(column)
        return ValueState(self, column)

    def list(self, column: str) -> ListOfKey:
        """The list in a column of type ARRAY."""
        self._require(column, LIST, "ARRAY")
        return ListOfKey(self, column)

    def map(self, column: str) -> MapState:
        """The map in a column of type MAP."""
        self._require(column, MAP, "MAP")
        return MapState(self, column)

    def reducing(self, column: str, function: Callable[[Any, Any], Any]) -> ReducingState:
        """A value that each `add` reduces with what is added."""
        self._kind(column)
        return ReducingState(self, column, function)

    def aggregating(
        self,
        column: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
    ) -> AggregatingState:
        """An accumulator that takes up each value that is added, and a result that is computed from it.

        `create` makes an empty accumulator, `add` returns the one with a value more, and `result` what it comes to. The
        column has the accumulator, so its type is that of it: STRUCT<sum: DOUBLE, n: BIGINT> for a dictionary of both.
        """
        self._kind(column)
        return AggregatingState(self, column, create, add, result)

    def _kind(self, column: str) -> str:
        if column not in self._columns:
            there = ", ".join(self._columns) or "none"
            raise ValueError(f"the state has no column {column!r} besides its key; it has {there}")
        return self._columns[column]

    def _require(self, column: str, kind: str, name: str) -> None:
        if self._kind(column) != kind:
            raise ValueError(f"the column {column!r} of the state is no {name}: use state.value({column!r})")

    def _read(self, column: str) -> Any:
        return None if self._row is None else self._row[column]

    def _write(self, column: str, value: Any) -> None:
        if self._row is None:
            self._row = dict.fromkeys(self._columns)
            self._is_whole = False
        self._own.discard(column)
        self._row[column] = value
        self._is_changed = True

    def _in_place(self, column: str, empty: Any) -> Any:
        """The list or map of a column, to be changed in place."""
        if column not in self._own:
            self._write(column, type(empty)(self._read(column) or empty))
            self._own.add(column)
        return self._row[column] if self._row is not None else empty

    def _changes(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield, where a row is to be written, whether it is deleted, and its columns.

        A row all of whose columns were cleared is none, as a key in Flink has no state once its states are cleared.
        """
        if not self._is_changed:
            return
        is_cleared = not self._is_whole and self._columns and all(each is None for each in (self._row or {}).values())
        row = None if is_cleared else self._row
        if row is not None or self._existed:
            yield row is None, row or {}


class ColumnState:
    """One column of the row."""

    def __init__(self, state: KeyState, column: str) -> None:
        self._state, self._column = state, column

    def clear(self) -> None:
        """Leave nothing in the column."""
        self._state._write(self._column, None)  # noqa: SLF001  # its own


class ValueState(ColumnState):
    """A value, as Flink's ValueState."""

    def get(self, default: Any = None) -> Any:
        """The value as it is now; `default` where there is none."""
        self._state._own.discard(self._column)  # noqa: SLF001  # its own
        value = self._state._read(self._column)  # noqa: SLF001  # its own
        return default if value is None else value

    def set(self, value: Any) -> None:
        """Set the value; None clears it."""
        self._state._write(self._column, value)  # noqa: SLF001  # its own


class ReducingState(ValueState):
    """One value, reduced with each that is added, as Flink's ReducingState."""

    def __init__(self, state: KeyState, column: str, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(state, column)
        self._function = function

    def add(self, value: Any) -> None:
        """Reduce what is there with a value; the first one is taken as it is."""
        before = self.get()
        self.set(value if before is None else self._function(before, value))


class AggregatingState(ColumnState):
    """An accumulator of what is added, as Flink's AggregatingState: of other types than its values and its result."""

    def __init__(
        self,
        state: KeyState,
        column: str,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
    ) -> None:
        super().__init__(state, column)
        self._accumulator = ValueState(state, column)
        self._create, self._add, self._result = create, add, result

    def get(self, default: Any = None) -> Any:
        """The result of what was added; `default` where nothing was."""
        accumulated = self._accumulator.get()
        return default if accumulated is None else self._result(accumulated)

    def add(self, value: Any) -> None:
        """Add a value."""
        accumulated = self._accumulator.get()
        self._accumulator.set(self._add(self._create() if accumulated is None else accumulated, value))


class ListOfKey(ColumnState):
    """The elements in an ARRAY column, as Flink's ListState."""

    def get(self) -> list[Any]:
        """The elements as they are now, in a list of its own; none where there is no list."""
        return list(self._state._read(self._column) or ())  # noqa: SLF001  # its own

    def append(self, element: Any) -> None:
        """Add an element after the last one."""
        self.extend((element,))

    def extend(self, elements: Iterable[Any]) -> None:
        """Add elements after the last one."""
        self._state._in_place(self._column, []).extend(elements)  # noqa: SLF001  # its own

    def update(self, elements: Iterable[Any]) -> None:
        """Make these the elements."""
        self._state._write(self._column, list(elements))  # noqa: SLF001  # its own


class Entries:
    """How the entries of a map are read."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key as it is now; `default` where there is none."""
        return self._entries().get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def keys(self) -> list[Any]:
        """The keys as they are now."""
        return [*self._entries()]

    def values(self) -> list[Any]:
        """The values as they are now."""
        return [*self._entries().values()]

    def items(self) -> list[tuple[Any, Any]]:
        """The entries as they are now."""
        return [*self._entries().items()]

    def _entries(self) -> dict[Any, Any]:
        raise NotImplementedError


class MapState(Entries, ColumnState):
    """The entries in a MAP column, as Flink's MapState; it is cleared once it has none."""

    def put(self, key: Any, value: Any) -> None:
        """Put a value under a key."""
        self._state._in_place(self._column, {})[key] = value  # noqa: SLF001  # its own

    def remove(self, key: Any) -> None:
        """Take out a key; one that is not there does no harm."""
        if key in self:
            entries = self._state._in_place(self._column, {})  # noqa: SLF001  # its own
            del entries[key]
            if not entries:
                self.clear()

    def _entries(self) -> dict[Any, Any]:
        entries: dict[Any, Any] = self._state._read(self._column) or {}  # noqa: SLF001  # its own
        return entries


class MapOfKey(Entries):
    """The map that a keyed state with a `map_key` has of one key, as Flink's MapState: each entry is a row of its own.

    A key of the map is a value, or a tuple where `map_key` names several columns. A value is that of the one other
    column; a dictionary by column where there are several, and {} where there is none. What is updated in place is not
    seen: put it.
    """

    def __init__(
        self,
        map_key: Sequence[str],
        columns: Sequence[str],
        rows: Iterable[Mapping[str, Any]],
        named: Iterable[Mapping[str, Any]] | None,
    ) -> None:
        """Take the stored rows of the key; `named` are those of which the entries were loaded, None: all."""
        self._map_key, self._columns = map_key, columns
        self._now = {self._key_of(row): self._value_of(row) for row in rows}
        self._loaded = None if named is None else {self._key_of(row) for row in named}
        self._changed: dict[Any, bool] = {}
        """By key of what was changed, whether it was there before."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key as it is now; `default` where there is none."""
        self._require_loaded(key)
        return self._now.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        """Put a value under a key."""
        self._require_loaded(key)
        self._row(key, value)
        self._changed.setdefault(key, key in self._now)
        self._now[key] = value

    def remove(self, key: Any) -> None:
        """Take out a key; one that is not there does no harm."""
        if key in self:
            self._changed.setdefault(key, True)
            del self._now[key]

    def clear(self) -> None:
        """Take out all keys."""
        for key in self.keys():
            self.remove(key)

    def __contains__(self, key: object) -> bool:
        self._require_loaded(key)
        return key in self._now

    def _entries(self) -> dict[Any, Any]:
        if self._loaded is not None:
            raise ValueError('only entries that the rows name are loaded: write entries="key" to have all of the key')
        return self._now

    def _require_loaded(self, key: object) -> None:
        if self._loaded is not None and key not in self._loaded:
            raise ValueError(
                f'the entry {key!r} is not loaded, since no row names it: write entries="key" to have all of the key'
            )

    def _changes(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield of each entry to be written whether it is deleted, and its row: without the key, with the `map_key`."""
        for key, was_there in self._changed.items():
            if key in self._now:
                yield False, self._row(key, self._now[key])
            elif was_there:
                yield True, self._named(key)

    def _key_of(self, row: Mapping[str, Any]) -> Any:
        key = tuple(row[name] for name in self._map_key)
        return key[0] if len(key) == 1 else key

    def _value_of(self, row: Mapping[str, Any]) -> Any:
        if len(self._columns) == 1:
            return row[self._columns[0]]
        return {name: row[name] for name in self._columns}

    def _named(self, key: Any) -> dict[str, Any]:
        values = (key,) if len(self._map_key) == 1 else key
        if not isinstance(values, tuple) or len(values) != len(self._map_key):
            raise ValueError(f"a key of the map is a tuple of {', '.join(self._map_key)}, not {key!r}")
        return dict(zip(self._map_key, values, strict=True))

    def _row(self, key: Any, value: Any) -> dict[str, Any]:
        if len(self._columns) == 1:
            return {**self._named(key), self._columns[0]: value}
        if not isinstance(value, Mapping) or {*value} != {*self._columns}:
            there = ", ".join(self._columns) or "none: it is {}"
            raise ValueError(f"a value of the map is a dictionary of the columns {there}, not {value!r}")
        return {**self._named(key), **value}

"""Calls a function once for each key of sorted rows. Invariant: all rows of a key, and its state, come to one call.

This module runs in Spark's Python workers, where there need be no Weir: it travels with the function, by its value, and
imports nothing but Python, Arrow, its neighbours and, for functions of pandas, pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from weir_spark.state.exact_rows import NotHeld, of_arrow, of_dicts, of_pandas, to_pandas
from weir_spark.state.handles import KeyState, MapOfKey

KEY, ROW, STATE = "_weir_key", "_weir_row", "_weir_state"

RESULT, CHANGE, DELETED = "_weir_result", "_weir_change", "_weir_deleted"
"""Each row that comes out is a result, or a change of the state that may be a deletion."""

BATCH_ROWS = 10_000


class KeyedPass:
    """The pass over one partition: `rows` that are sorted by key, of each key its state first.

    `key_schema`, `state_schema` (without keys) and `result_schema` are Arrow's; `columns` has the kinds of the state's
    columns. `form` says what the function is given the rows as: pandas, arrow or rows. Where the state has a `map_key`,
    a key has a row of state for each entry, and with `is_of_rows` each row names its entry.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        form: str,
        columns: Mapping[str, str],
        key_schema: pa.Schema,
        state_schema: pa.Schema,
        result_schema: pa.Schema,
        *,
        map_key: tuple[str, ...] = (),
        is_of_rows: bool = False,
    ) -> None:
        self.map_key, self.is_of_rows = map_key, is_of_rows
        self.values = [name for name in columns if name not in map_key]
        self.function, self.form, self.columns = function, form, columns
        self.key_schema, self.state_schema, self.result_schema = key_schema, state_schema, result_schema
        self.change_schema = pa.schema([*key_schema, *state_schema])
        self.results: list[pa.Table] = []
        self.dicts: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.deletions: list[bool] = []
        self.pending = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of a partition; what comes out has the columns RESULT, CHANGE and DELETED."""
        groups = self._groups(batches)
        while True:
            try:
                found = next(groups, None)
            except (
                ValueError,
                OverflowError,
                TypeError,
            ) as error:  # a date of the year 10000, a map's key without hash
                raise NotHeld(f"the rows of a key, or its state, are not as Python has them: {error}") from error
            if found is None:
                break
            self._call(*found)
            if self.pending + len(self.dicts) + len(self.changes) >= BATCH_ROWS:
                yield from self._drained()
        yield from self._drained()

    def _groups(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[tuple[Any, ...], list[Any], list[Any], list[Any]]]:
        """Yield each key, the rows of its state, the entries that its rows name, and its rows in parts."""
        key: tuple[Any, ...] | None = None
        kept: list[Any] = []
        named: list[Any] = []
        parts: list[Any] = []
        for batch in batches:
            keys = list(zip(*(each.to_pylist() for each in batch.column(KEY).flatten()), strict=True))
            states = batch.column(STATE).to_pylist(maps_as_pydicts="strict")
            is_row = batch.column(ROW).is_valid().to_pylist()
            rows = self._rows(batch.column(ROW))
            first = 0
            for i, one in enumerate(keys):
                if one != key or key is None:
                    if key is not None:
                        if i > first:
                            parts.append(rows[first:i])
                        yield key, kept, named, parts
                    key, kept, named, parts, first = one, [], [], [], i
                if not is_row[i]:
                    kept.append(states[i])
                    first = i + 1
                elif self.is_of_rows:
                    named.append(states[i])
            if first < len(keys):
                parts.append(rows[first : len(keys)])
        if key is not None:
            yield key, kept, named, parts

    def _rows(self, column: pa.StructArray) -> Any:
        """Return the rows as a sequence that can be sliced: a list of dictionaries, or Arrow's rows."""
        if self.form == "rows":
            return column.to_pylist(maps_as_pydicts="strict")
        return pa.RecordBatch.from_arrays(column.flatten(), schema=pa.schema(list(column.type)))

    def _call(self, key: tuple[Any, ...], kept: list[Any], named: list[Any], parts: list[Any]) -> None:
        state: KeyState | MapOfKey
        if self.map_key:
            state = MapOfKey(self.map_key, self.values, kept, named if self.is_of_rows else None)
        else:
            state = KeyState(self.columns, kept[0] if kept else None)
        try:
            self._take(self.function(key, self._given(parts), state))
            of_key = dict(zip(self.key_schema.names, key, strict=True))
            for is_deletion, row in state._changes():  # noqa: SLF001  # its own
                self.changes.append({**dict.fromkeys(self.columns), **row, **of_key})
                self.deletions.append(is_deletion)
        except Exception as error:
            error.add_note(f"in per_key, for the key {key!r}")
            raise

    def _given(self, parts: list[Any]) -> Any:
        if self.form == "rows":
            return [row for part in parts for row in part]
        table = pa.Table.from_batches(parts)
        return to_pandas(table) if self.form == "pandas" else table

    def _take(self, result: Any) -> None:
        """Take the result of a call: nothing, a DataFrame of pandas, a table of Arrow, a row, or several of these."""
        if result is None:
            return
        if isinstance(result, dict):
            self._take_dict(result)
        elif isinstance(result, tuple):
            self._take_dict(dict(zip(self.result_schema.names, self._of_length(result), strict=True)))
        elif isinstance(result, pa.RecordBatch):
            self._take_table(pa.Table.from_batches([result]))
        elif isinstance(result, pa.Table):
            self._take_table(result)
        elif hasattr(result, "iloc") and hasattr(result, "columns"):
            self._take_pandas(result)
        elif hasattr(result, "__iter__") and not isinstance(result, str | bytes):
            for each in result:
                self._take(each)
        else:
            raise TypeError(
                f"expected a pandas DataFrame, an Arrow table, a dictionary, a tuple, or several of these, found "
                f"{type(result).__name__}"
            )

    def _take_dict(self, row: dict[str, Any]) -> None:
        self._require_names(row)
        self.dicts.append(row)

    def _take_table(self, table: pa.Table) -> None:
        self._require_names(table.column_names)
        self._add(of_arrow(table, self.result_schema))

    def _add(self, table: pa.Table) -> None:
        if table.num_rows:
            self._convert_dicts()
            self.results.append(table)
            self.pending += table.num_rows

    def _take_pandas(self, frame: Any) -> None:
        """By the names of its columns, or by their places where they have none, as Spark does."""
        if all(isinstance(name, str) for name in frame.columns):
            self._require_names(frame.columns)
        else:
            frame = frame.set_axis(self._of_length(self.result_schema.names, len(frame.columns)), axis="columns")
        self._add(of_pandas(frame, self.result_schema))

    def _of_length(self, values: Any, found: int | None = None) -> Any:
        found = len(values) if found is None else found
        if found != len(self.result_schema):
            raise ValueError(f"expected the {len(self.result_schema)} columns {self._expected()}, found {found}")
        return values

    def _require_names(self, names: Any) -> None:
        if sorted(map(str, names)) != sorted(self.result_schema.names):
            raise ValueError(f"expected the columns {self._expected()}, found {', '.join(map(str, names))}")

    def _expected(self) -> str:
        return ", ".join(self.result_schema.names)

    def _convert_dicts(self) -> None:
        if self.dicts:
            self.results.append(of_dicts(self.dicts, self.result_schema, "an answer of per_key"))
            self.pending += len(self.dicts)
            self.dicts = []

    def _drained(self) -> Iterator[pa.RecordBatch]:
        self._convert_dicts()
        for table in self.results:
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                yield self._packed(batch.to_struct_array(), None, pa.nulls(len(batch), pa.bool_()))
        if self.changes:
            changes = (
                of_dicts(self.changes, self.change_schema, "a row of the state").to_struct_array().combine_chunks()
            )
            yield self._packed(None, changes, pa.array(self.deletions))
        self.results, self.changes, self.deletions, self.pending = [], [], [], 0

    def _packed(self, results: Any, changes: Any, deleted: pa.Array) -> pa.RecordBatch:
        count = len(deleted)
        empty = pa.nulls(count, pa.struct(list(self.result_schema)))
        unchanged = pa.nulls(count, pa.struct(list(self.change_schema)))
        columns = [empty if results is None else results, unchanged if changes is None else changes, deleted]
        return pa.RecordBatch.from_arrays(columns, names=[RESULT, CHANGE, DELETED])

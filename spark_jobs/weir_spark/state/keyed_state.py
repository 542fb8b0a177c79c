"""The handle of keyed state that a stage's function is given. Invariant: nothing is written before the stage returns.

The function's updates are a list of changes, of which a later one wins; `writer` writes their result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from weir.errors import Misconfigured
from weir_spark.results.digest import computed_once, quoted
from weir_spark.state.per_key import per_key
from weir_spark.state.reader import BROADCAST_ROWS, LookUp, StoredState


@dataclass(frozen=True, slots=True)
class Change:
    """Rows to be set, or keys to be deleted; of two rows of a key the row that is highest in `order_by` wins."""

    rows: DataFrame
    is_deletion: bool = False
    only_changed: bool = False
    order_by: tuple[str, ...] = ()
    is_blind: bool = False


@dataclass(slots=True)
class KeyedState:
    """Rows by key that are kept from epoch to epoch; reads return the rows of the epoch before."""

    stored: StoredState
    changes: list[Change] = field(default_factory=list)
    look_ups: list[LookUp] = field(default_factory=list)
    """What the function has had looked up: changes of these keys need no look-up of their own."""
    counted_by: tuple[str, ...] = ()
    """The expectations of the number of rows of the state."""
    _has_per_key: bool = False

    def read(self, keys: DataFrame | None = None) -> DataFrame:
        """The rows that the epoch before has left, without those that have expired; the columns of the schema.

        With `keys`, a DataFrame that has the key columns (and perhaps others, and a key more than once), only the rows
        of these keys; an INT finds a BIGINT, and a type of another kind is an error. What is joined with an input is
        cheaper when it is not all of the state. The keys are computed at once. Changes of these keys are cheaper then:
        the rows that they replace are known. Keys without the state's `map_key` name all of their entries.
        """
        if keys is None:
            return self._visible(self.stored.rows())
        by = self.stored.named_by(keys.columns)
        self.stored.require_keys(keys.schema, "read", by)
        count, known = computed_once(self.stored.keys_of(keys, by))
        if count > BROADCAST_ROWS:
            return self._visible(self.stored.rows(known, is_broadcast=False))
        return self._visible(self._looked_up(known))

    def _looked_up(self, keys: DataFrame) -> DataFrame:
        """Return the visible rows of keys, and keep what was found for the changes of the same keys."""
        found = self.stored.look_up(keys)
        self.look_ups.append(found)
        return self.stored.rows_in(found, keys)

    def _visible(self, rows: DataFrame) -> DataFrame:
        return rows.select(*map(quoted, self.stored.schema.fieldNames()))

    def upsert(
        self,
        rows: DataFrame,
        *,
        only_changed: bool = False,
        order_by: str | Sequence[str] | None = None,
        blind: bool = False,
    ) -> None:
        """Set the rows of these keys; `rows` has the columns of the schema, others are not kept.

        Two rows of one key are an error, unless `order_by` names columns: the row that is highest in them wins. With
        `only_changed` rows that are as the epoch before has left them are not written (and their time to live goes on).

        With `blind` nobody looks for the rows that these replace, nor for those that this epoch deletes: all changes of
        the epoch are written as they are, also deletions of unknown keys. The number of rows is known in bounds only,
        until a compaction that includes the oldest files (without `ttl`), an epoch without blind upserts, or a
        savepoint counts them; `weir verify --content` cannot compare them. It is an error beside `only_changed` and
        `per_key`, with `grows=True`, and with a suite that expects a number of rows. The first epoch is exact
        nevertheless, the first after a restore or after a change of parallelism, schema or `ttl`, and all with
        `incremental=False`; the first epoch without blind upserts reads all rows once.
        """
        names = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
        self._require_columns(rows, [*self.stored.schema.fieldNames(), *names], "upsert")
        if blind:
            self._require_uncounted()
        self.changes.append(Change(rows, only_changed=only_changed, order_by=names, is_blind=blind))
        if self.is_blind and (self._has_per_key or any(each.only_changed for each in self.changes)):
            raise Misconfigured.of("state.blind_and_compared", state=self.stored.read.state.name)

    @property
    def is_blind(self) -> bool:
        """True if the rows are not looked for that this epoch replaces and deletes."""
        return any(each.is_blind for each in self.changes)

    def _require_uncounted(self) -> None:
        state = self.stored.read.state
        counting = [*(["grows=True"] if state.grows else []), *self.counted_by]
        if counting:
            raise Misconfigured.of("state.blind_and_counted", state=state.name, counting=counting)

    def delete(self, keys: DataFrame) -> None:
        """Delete the rows of these keys; `keys` has the key columns, and may have others. Unknown keys do no harm."""
        self._require_columns(keys, self.stored.keys, "delete")
        self.changes.append(Change(keys, is_deletion=True))

    def per_key(
        self,
        rows: DataFrame,
        function: Callable[..., Any],
        schema: str,
        *,
        order_by: str | Sequence[str] = (),
        form: str = "pandas",
        entries: str = "key",
    ) -> DataFrame:
        """Call `function(key, rows, state)` once for each key in `rows`, and return what it answers.

        `key` is a tuple, `rows` all rows of the key as a DataFrame of pandas (`form="arrow"`: a table of Arrow;
        `form="rows"`: a list of dictionaries), in the order of the columns `order_by`, else in none. `state` is the
        KeyState of the key as the epoch before has left it: what is done to it is written. The function answers rows
        with the columns of `schema`, Spark DDL: a DataFrame of pandas, a table of Arrow, a dictionary, a tuple, several
        of these, or None; for one row a key a dictionary is the cheapest. Timestamps are aware, in UTC. Only the states
        of keys that occur are loaded. It is computed at once; all rows of a key have to fit into a worker's memory.

        Of a state with a `map_key` the key is without it, and `state` is the MapOfKey of the key's entries. All of them
        are loaded, and of these only those are written that were changed; with `entries="rows"` only those are loaded
        that `rows` name, which then have the `map_key`, too.
        """
        if self._has_per_key:
            raise Misconfigured.of("state.per_key_twice", state=self.stored.read.state.name)
        if self.is_blind:
            raise Misconfigured.of("state.per_key_and_blind", state=self.stored.read.state.name)
        names = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        passed = per_key(self.stored, self._looked_up, rows, function, schema, form, names, entries)
        self._has_per_key = True
        self.changes.append(Change(passed.set_rows, only_changed=not self.stored.has_end))
        self.changes.append(Change(passed.deleted_keys, is_deletion=True))
        return passed.results

    def fix(self, plan: Callable[[DataFrame], DataFrame]) -> None:
        """Plan all changes once and for all, before the names are dropped that the function has made."""
        self.changes = [replace(change, rows=plan(change.rows)) for change in self.changes]

    def _require_columns(self, rows: DataFrame, wanted: Sequence[str], what: str) -> None:
        missing = [name for name in wanted if name not in rows.columns]
        if missing:
            raise Misconfigured.of(
                "state.column_missing",
                state=self.stored.read.state.name,
                what=what,
                wanted=wanted,
                missing=missing,
                columns=rows.columns,
            )

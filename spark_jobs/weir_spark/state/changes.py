"""The changes that a stage's function makes to a keyed state, as rows. Invariant: the rows are computed once.

Changes are numbered in the order in which they were made, and the later one of a key wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.errors import Misconfigured
from weir.topology.partitions import KEY_GROUP_COLUMN, Layout
from weir_spark.results import digest, writer
from weir_spark.results.digest import computed_once, quoted
from weir_spark.state.keyed_state import Change, KeyedState
from weir_spark.state.reader import DELETED, UPDATED, WANTED, highest, key_hash, require_type

HASH = "_weir_hash"

CHANGE = "_weir_change"
"""The number of the change that a row belongs to."""

IS_ALONE = "_weir_is_alone"
"""True where a second row of the key in the same change is an error."""

ONLY_CHANGED = "_weir_only_changed"

_MOST = 60
"""The most changes in an epoch: those that name a key are bits of a 64-bit number."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows to be set and the keys to be deleted: the columns of the files, and those above."""

    rows: DataFrame
    count: int
    has_only_changed: bool
    looked_up: DataFrame | None
    """The rows of the files with these keys, and others, where the function has had all of these keys looked up."""


def incoming(state: KeyedState, name: str, layout: Layout) -> Incoming | None:
    """Compute the changes, once; None where there are none.

    Raises Misconfigured for columns of other types than were declared, and for more changes than are supported.
    """
    if len(state.changes) > _MOST:
        raise Misconfigured.of("state.too_many_changes", name=name, changes=len(state.changes), most=_MOST)
    parts = [_incoming(state, number, change, name, layout) for number, change in enumerate(state.changes)]
    if not parts:
        return None
    count, rows = computed_once(reduce(DataFrame.unionByName, parts))
    if not count:
        return None
    needs_old = not state.is_blind or state.stored.read.digest is None
    looked_up = _looked_up(rows, state) if needs_old and state.look_ups else None
    return Incoming(rows, count, any(each.only_changed for each in state.changes), looked_up)


def _looked_up(rows: DataFrame, state: KeyedState) -> DataFrame | None:
    """Return what the function has had looked up, if that was done for the keys of all of these rows."""
    unknown = rows
    for by in {each.by for each in state.look_ups}:
        hashes = reduce(DataFrame.unionByName, (each.hashes for each in state.look_ups if each.by == by))
        unknown = unknown.join(F.broadcast(hashes), key_hash(by) == F.col(WANTED), "left_anti")
    if not unknown.isEmpty():
        return None
    return reduce(DataFrame.unionByName, (each.versions for each in state.look_ups))


def is_twice() -> Column:
    """Return the aggregate, over the rows of a key, that is true where a change has several that may have one."""
    places = F.when(F.col(IS_ALONE), F.expr(f"shiftleft(1L, {CHANGE})"))
    return F.count(places) > F.bit_count(F.bit_or(places))


def error_of_several(changes: Incoming, keys: Sequence[str], name: str) -> Misconfigured:
    """Return the error that names keys with several rows in one change."""
    found = (
        changes.rows.where(F.col(IS_ALONE))
        .groupBy(CHANGE, *map(quoted, keys))
        .agg(F.count(F.lit(1)).alias("_weir_rows"))
        .where("_weir_rows > 1")
        .orderBy(F.desc("_weir_rows"), *map(quoted, keys))
        .limit(_SHOWN)
        .collect()
    )
    shown = "; ".join(f"{_shown(row, keys)} ({row['_weir_rows']} rows)" for row in found)
    return Misconfigured.of("state.upsert_key_twice", name=name, shown=shown)


def is_foreign(key_groups: tuple[int, int] | None) -> Column:
    """Return the condition that a key is of another subtask's key groups."""
    return F.expr("false") if key_groups is None else ~F.col(KEY_GROUP_COLUMN).between(*key_groups)


def error_of_foreign(
    changes: Incoming, key_groups: tuple[int, int] | None, keys: Sequence[str], name: str
) -> Misconfigured:
    """Return the error that names keys of another subtask."""
    found = changes.rows.where(~F.col(DELETED) & is_foreign(key_groups)).select(*map(quoted, keys)).distinct()
    shown = "; ".join(_shown(row, keys) for row in found.orderBy(*map(quoted, keys)).limit(_SHOWN).collect())
    return Misconfigured.of("state.upsert_of_other_subtask", name=name, shown=shown, keys=keys)


def _shown(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={row[key]!r}" for key in keys)


def _incoming(state: KeyedState, number: int, change: Change, name: str, layout: Layout) -> DataFrame:
    """The rows of a change with the columns of the files, in the declared types."""
    stored = state.stored
    schema = stored.schema
    _require_types(state, change, name)
    columns = [
        F.col(quoted(field.name))
        if not change.is_deletion or field.name in stored.keys
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in schema.fields
    ]
    order = [F.col(quoted(each)).alias(f"_weir_by_{i}") for i, each in enumerate(change.order_by)]
    rows = change.rows.select(*columns, *order)
    rows = rows.withColumns(
        {
            KEY_GROUP_COLUMN: writer.key_group(schema, name, layout),
            DELETED: F.lit(change.is_deletion),
            CHANGE: F.lit(number),
            IS_ALONE: F.lit(not change.is_deletion and not change.order_by),
            ONLY_CHANGED: F.lit(change.only_changed),
            **({UPDATED: F.lit(stored.read.updated).cast("bigint")} if stored.has_end else {}),
        }
    )
    rows = digest.hashed(rows, stored.counted, HASH)
    if not order:
        return rows
    by = [f"_weir_by_{i}" for i in range(len(order))]
    return highest(rows, stored.keys, F.struct(*by, HASH), without=by)  # of equals the one with the highest hash


def _require_types(state: KeyedState, change: Change, name: str) -> None:
    types = {field.name: field.dataType for field in change.rows.schema.fields}
    keys = set(state.stored.keys)
    for field in state.stored.schema.fields:
        found = types.get(field.name) if field.name in keys or not change.is_deletion else None
        if found is not None:
            require_type(name, field, found)

"""Writes what an epoch changes in keyed state. Invariant: one row a key, and the digest is that of the whole state.

The digest is known without reading the state: hashes of the rows that are set are added to those of the epoch before,
and hashes of the rows that they replace are taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

from weir.errors import Internal, Misconfigured
from weir.results.layout import KEY_GROUP_COLUMN
from weir.results.manifest import ContentDigest, StateTally
from weir.results.region_job import OutputReport, OutputToWrite, StateReport
from weir.state.files import added, visible
from weir.store.seal import seal
from weir.store.store import Store
from weir_spark import digest, writer
from weir_spark.digest import quoted
from weir_spark.keyed_state import Change, KeyedState
from weir_spark.state_reader import DELETED, UPDATED, same_key

_NUMBER = "_weir_number"
_OLD = "_weir_old"
_HAS_OLD = "_weir_has_old"
_ONLY_CHANGED = "_weir_only_changed"
_SHOWN = 3


def write_state(state: KeyedState, name: str, output: OutputToWrite, store: Store) -> OutputReport:
    """Write the changes that were made to a state into the output's folder, which must not exist.

    Raises Misconfigured for two rows of one key, and for columns of other types than were declared.
    """
    stored = state.stored
    before = stored.read.tallies
    if before is None:
        before = _tallies(stored.rows(), stored.schema)
    more: tuple[StateTally, ...] = ()
    less: tuple[StateTally, ...] = ()
    changed = 0
    changes = _changes(state, name, output)
    if changes is not None:
        changes = changes.localCheckpoint(eager=True)
        more = _tallies(changes.where(~F.col(DELETED)), stored.schema)
        less = _tallies(changes.where(F.col(_HAS_OLD)).select(f"{_OLD}.*"), stored.schema)
        changed = changes.count()
    is_whole = stored.read.is_full
    if is_whole:
        _write(_whole(state, changes), output)
    elif changes is not None and changed:
        _write(changes.select(*stored.stored_schema.fieldNames()), output)
    files = seal(store, output.folder)
    tallies = visible(added(before, more, less), stored.read.expired_until)
    if any(each.rows < 0 for each in tallies):
        raise Internal(f"the state {name} has fewer rows than none: {tallies}; report this")
    content = _digest(stored.schema, tallies)
    if not is_whole and sum(file.rows for file in files) != changed:
        raise Internal(f"the files of the state {name} hold other rows than the {changed} that were written")
    report = StateReport(tallies, changed, is_whole)
    return OutputReport(name, output.layout, output.folder, stored.schema.json(), content, files, report)


def _digest(schema: StructType, tallies: Sequence[StateTally]) -> ContentDigest:
    xor = 0
    for each in tallies:
        xor ^= each.xor
    return ContentDigest(
        digest.schema_fingerprint(schema),
        sum(each.rows for each in tallies),
        xor,
        sum(each.low_sum for each in tallies),
        sum(each.high_sum for each in tallies),
        digest.VERSION,
    )


def _tallies(rows: DataFrame, schema: StructType) -> tuple[StateTally, ...]:
    """Count rows that have the columns of a state, by their last update."""
    by = F.col(UPDATED) if UPDATED in rows.columns else F.lit(0)
    names = [*schema.fieldNames(), *([UPDATED] if UPDATED in rows.columns else [])]
    counted = rows.select(*map(quoted, names), by.alias(_NUMBER))
    found = digest.measured_by(counted, names, _NUMBER)
    return tuple(StateTally(*each) for each in found)


def _changes(state: KeyedState, name: str, output: OutputToWrite) -> DataFrame | None:
    """What is to be written, beside what it replaces: a row a key."""
    stored = state.stored
    keys = stored.read.state.keys
    newest: DataFrame | None = None
    for change in state.changes:
        rows = _one_a_key(_as_stored(state, change, name, output), change, keys, name)
        if newest is None:
            newest = rows
        else:
            newest = newest.join(rows, same_key(newest, rows, keys), "left_anti").unionByName(rows)
    if newest is None:
        return None
    newest = newest.localCheckpoint(eager=True)
    old = stored.rows(newest.select(*map(quoted, keys)))
    packed = old.select(
        *[F.col(quoted(key)).alias(f"_weir_key_{i}") for i, key in enumerate(keys)],
        F.struct(*map(quoted, old.columns)).alias(_OLD),
        F.expr("true").alias(_HAS_OLD),
    )
    condition = F.expr("true")
    for i, key in enumerate(keys):
        condition = condition & newest[quoted(key)].eqNullSafe(packed[f"_weir_key_{i}"])
    joined = newest.join(packed, condition, "left").withColumn(_HAS_OLD, F.coalesce(_HAS_OLD, F.expr("false")))
    values = [each for each in stored.schema.fieldNames() if each not in keys]
    is_same = F.col(_HAS_OLD) & ~F.col(DELETED)
    for value in values:
        is_same = is_same & F.col(quoted(value)).eqNullSafe(F.col(f"{_OLD}.{quoted(value)}"))
    is_needless = (F.col(_ONLY_CHANGED) & is_same) | (F.col(DELETED) & ~F.col(_HAS_OLD))
    return joined.where(~is_needless)


def _as_stored(state: KeyedState, change: Change, name: str, output: OutputToWrite) -> DataFrame:
    """The rows of a change with the columns of the files, in the declared types."""
    stored = state.stored
    schema, keys = stored.schema, stored.read.state.keys
    types = {field.name: field.dataType for field in change.rows.schema.fields}
    for field in schema.fields:
        is_there = field.name in types
        if is_there and digest.type_signature(types[field.name]) != digest.type_signature(field.dataType):
            raise Misconfigured(
                f"state {name!r}: the column {field.name!r} is declared as {field.dataType.simpleString()}, but the "
                f"rows have {types[field.name].simpleString()}: cast it in the stage"
            )
    columns = [
        F.col(quoted(field.name))
        if not change.is_deletion or field.name in keys
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in schema.fields
    ]
    order = [F.col(quoted(each)).alias(f"_weir_by_{i}") for i, each in enumerate(change.order_by)]
    rows = change.rows.select(*columns, *order)
    group = writer.key_group(schema, name, output.layout)
    rows = rows.withColumn(KEY_GROUP_COLUMN, group).withColumn(DELETED, F.lit(change.is_deletion))
    if stored.read.expired_until is not None:
        rows = rows.withColumn(UPDATED, F.lit(stored.read.updated).cast("bigint"))
    return rows.withColumn(_ONLY_CHANGED, F.lit(change.only_changed))


def _one_a_key(rows: DataFrame, change: Change, keys: Sequence[str], name: str) -> DataFrame:
    if change.is_deletion:
        return rows.dropDuplicates(list(keys))
    if change.order_by:
        by = [f"_weir_by_{i}" for i in range(len(change.order_by))]
        kept = [each for each in rows.columns if each not in by]
        newest = rows.groupBy(*[F.col(quoted(key)).alias(f"_weir_key_{i}") for i, key in enumerate(keys)]).agg(
            F.max_by(F.struct(*map(quoted, kept)), F.struct(*by)).alias("_weir_row")
        )
        return newest.select("_weir_row.*")
    twice = rows.groupBy(*map(quoted, keys)).count().where("count > 1").limit(_SHOWN).collect()
    if twice:
        shown = "; ".join(", ".join(f"{key}={row[key]!r}" for key in keys) for row in twice)
        raise Misconfigured(
            f"state {name!r}: an upsert has several rows of one key, as for {shown}: aggregate them first, or say "
            "which one wins with upsert(..., order_by=[columns])"
        )
    return rows


def _whole(state: KeyedState, changes: DataFrame | None) -> DataFrame:
    stored = state.stored
    names = stored.stored_schema.fieldNames()
    rows = stored.rows().withColumn(DELETED, F.expr("false"))
    if changes is None:
        return rows.select(*map(quoted, names))
    kept = rows.join(changes, same_key(rows, changes, stored.read.state.keys), "left_anti")
    return kept.select(*map(quoted, names)).unionByName(changes.where(~F.col(DELETED)).select(*map(quoted, names)))


def _write(rows: DataFrame, output: OutputToWrite) -> None:
    by_group = rows.hint("rebalance", F.col(KEY_GROUP_COLUMN))
    laid_out = by_group.sortWithinPartitions(KEY_GROUP_COLUMN, *map(quoted, output.layout.keys))
    laid_out.write.mode("error").options(**writer.OPTIONS).parquet(output.spark_folder)

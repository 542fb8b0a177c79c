"""Writes the changes of an epoch to keyed state. Invariant: one row a key, and the digest is that of the whole state.

The digest is known without reading the state: hashes of the rows that are set are added to those of the epoch before,
and hashes of the rows that they replace are subtracted. All of it is measured while the changes are written. So it is
the same whether the changes or all of the state are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

from weir.dataflow.state import Incremental
from weir.errors import Internal
from weir.formats.manifest import (
    ContentDigest,
    DataFile,
    StateFile,
    UpdateDigest,
    WriteEstimate,
    digest_schema,
    is_chain,
    parsed_digest,
)
from weir.formats.region_job import OutputReport, OutputToWrite, StateReport
from weir.state.chain_rules import chain, rows_after
from weir.state.file_rules import added, visible
from weir.state.full_rules import estimate
from weir.store.seal import seal
from weir.store.store import Store
from weir.topology.ids import Digest
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results import digest, writer
from weir_spark.results.digest import observed, quoted
from weir_spark.session import SPARK_ERRORS
from weir_spark.state.changes import (
    CHANGE,
    HASH,
    IS_ALONE,
    ONLY_CHANGED,
    Incoming,
    error_of_foreign,
    error_of_several,
    incoming,
    is_foreign,
    is_twice,
)
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import BROADCAST_ROWS, DELETED, RANK, UPDATED, StoredState

ROWS_A_FILE = 1_000_000
"""An epoch writes one file a subtask; above so many rows several, each of its own key groups."""

OBSERVED_UPDATES = 40
"""The most times of last updates by which replaced rows are counted while the changes are written."""

_NEW, _OLD, _PART, _TWICE = "_weir_new", "_weir_old", "_weir_part", "_weir_twice"
_IS_CHANGE, _WAS_THERE = "_weir_is_change", "_weir_was_there"


def write_state(state: KeyedState, name: str, output: OutputToWrite, store: Store) -> OutputReport:
    """Write the changes that were made to a state into the output's folder, which must not exist.

    Raises Misconfigured for two rows of one key, and for columns of other types than were declared.
    """
    stored = state.stored
    changes = incoming(state, name, output.layout)
    is_blind = _is_blind(state, changes)
    before = () if is_blind else stored.read.tallies
    if before is None:
        before = _counted(stored.rows(), stored)
    written = _Written()
    if changes is not None or (stored.read.is_full and stored.read.files):
        is_full = stored.read.is_full
        written = _Writing(stored, changes, output, before, name, is_blind=is_blind, is_full=is_full).run()
    files = _without_empty(seal(store, output.folder), output, store)
    in_files = sum(file.rows for file in files)
    if is_blind:
        _check((), in_files, written, name, is_full=False)
        report, content = _chained(stored, written)
    else:
        tallies = visible(added(before, written.more, written.less), stored.read.expired_until)
        is_full = stored.read.is_full or written.is_full
        _check(tallies, in_files, written, name, is_full=is_full)
        rows_before = sum(each.rows for each in before)
        report = StateReport(tallies, written.changed, is_full, rows_before, estimate=written.estimate)
        content = _digest(stored.schema, tallies)
    made = OutputReport(
        stage=name,
        layout=output.layout,
        folder=output.folder,
        spark_schema=stored.schema.json(),
        digest=content,
        files=files,
        state=report,
    )
    return _with_replaced_digest(made, stored, store)


def _with_replaced_digest(made: OutputReport, stored: StoredState, store: Store) -> OutputReport:
    """Give a partition the digest that it had before it was computed again, if its content is equal.

    Of chains only a scan of both contents tells. A replaced content that cannot be read counts as another one.
    """
    old, now = stored.read.replaced, made.state
    if old is None or now is None or old.digest == str(made.digest) or stored.read.epoch is None:
        return made
    if not (is_chain(old.digest) or is_chain(str(made.digest))) or digest_schema(old.digest) != made.digest.schema:
        return made
    try:
        tallies = now.tallies
        if tallies is None:
            tallies = _counted(stored.with_written(stored.read.epoch, made, store).rows(), stored)
        before = old.digest
        if is_chain(before):
            read = replace(stored.read, files=old.files, expired_until=old.expired_until)
            before = Digest(str(state_digest(replace(stored, read=read))))
    except SPARK_ERRORS:
        return made
    counted = replace(made, state=replace(now, tallies=tallies, rows=None))
    is_same = before == str(_digest(stored.schema, tallies))
    return replace(counted, digest=parsed_digest(old.digest)) if is_same else counted


def _is_blind(state: KeyedState, changes: Incoming | None) -> bool:
    """Report whether the epoch looks for no old rows; where it changes nothing, nothing is to be counted for it."""
    read = state.stored.read
    if read.digest is None or read.is_full or not read.files:
        return False
    return read.tallies is None and not read.state.grows if changes is None else state.is_blind


def _chained(stored: StoredState, written: _Written) -> tuple[StateReport, ContentDigest]:
    """Return what is known of a partition whose old rows were not looked for."""
    read, schema = stored.read, digest.schema_fingerprint(stored.schema)
    if read.rows is None or read.digest is None or read.epoch is None:
        raise Internal.of("state.blind_without_base", state=read.state.name)
    upserted = sum(each.rows for each in written.more)
    rows = rows_after(read.rows, upserted, sum(each.rows for each in written.gone), expires=stored.has_end)
    report = StateReport(None, written.changed, rows=rows)
    if not written.changed and not stored.has_end:
        return report, parsed_digest(read.digest)
    return report, chain(schema, read.digest, (read.epoch, read.expired_until), written.more, written.gone)


def state_digest(stored: StoredState) -> ContentDigest:
    """Return the digest of a state, by reading its files."""
    return _digest(stored.schema, _counted(stored.rows(), stored))


@dataclass(frozen=True, slots=True)
class _Written:
    """The number of changed rows, and the tallies of added and of removed rows."""

    changed: int = 0
    more: tuple[UpdateDigest, ...] = ()
    less: tuple[UpdateDigest, ...] = ()
    gone: tuple[UpdateDigest, ...] = ()
    """Of the deleted keys, in a blind epoch."""
    is_full: bool = False
    estimate: WriteEstimate | None = None


@dataclass(frozen=True, slots=True)
class _Writing:
    """One write of an epoch's changes to a state, or of all of it."""

    stored: StoredState
    changes: Incoming | None
    output: OutputToWrite
    before: tuple[UpdateDigest, ...]
    name: str
    is_blind: bool
    is_full: bool

    def run(self) -> _Written:
        """Write the changes or all of the state, and return the tallies of the written rows."""
        if self._is_chosen_for:
            return self._chosen()
        return self._run(self._merged())

    @property
    def _is_chosen_for(self) -> bool:
        """True if an estimate decides whether all of the state is written."""
        is_open = self.stored.read.state.incremental is Incremental.AUTO and not self.is_full and not self.is_blind
        return is_open and self.changes is not None and bool(self.stored.read.files)

    def _chosen(self) -> _Written:
        """Write what is estimated to be less: the changes are counted only where that may be all of the state."""
        assert self.changes is not None  # noqa: S101  else there is nothing to choose
        count, live = self.changes.count, sum(each.rows for each in self.before)
        guesses = [self._estimate(count, rows) for rows in (live, max(0, live - count))]
        if not any(each.is_full for each in guesses):
            return replace(self._run(self._merged()), estimate=guesses[0])
        merged = self._merged().localCheckpoint(eager=True)
        found = self._estimate(*_numbers(merged, live))
        if not found.is_full:
            return replace(self._run(merged), estimate=found)
        full = replace(self, is_full=True)
        return replace(full._run(full._merged()), is_full=True, estimate=found)  # noqa: SLF001  its own

    def _estimate(self, changed: int, live: int) -> WriteEstimate:
        """Estimate both ways to write, for so many changed rows and so many that are visible after the epoch."""
        read = self.stored.read
        assert read.epoch is not None  # noqa: S101  it is written
        files = [
            StateFile("", DataFile(each.path, each.rows, each.bytes, "", ()), each.epoch, each.key_groups)
            for each in read.files
        ]
        groups = self.stored.key_groups or (0, self.output.layout.max_parallelism - 1)
        return estimate(read.state, files, (read.epoch, groups), changed, live)

    def _run(self, merged: DataFrame) -> _Written:
        if len(self.before) > OBSERVED_UPDATES:
            merged = merged.localCheckpoint(eager=True)
        seen = observed(merged, self._measures())
        found = seen.measures(self._write(seen.rows))
        if self.changes is not None and found["twice"]:
            raise error_of_several(self.changes, self.stored.keys, self.name)
        if self.changes is not None and found["foreign"]:
            raise error_of_foreign(self.changes, self.stored.key_groups, self.stored.keys, self.name)
        more = self._tallies(found, "new", (self.stored.read.updated,))
        if len(self.before) > OBSERVED_UPDATES:
            replaced = merged.where(F.col(_IS_CHANGE) & F.col(_WAS_THERE)).select(f"{_OLD}.{UPDATED}", f"{_OLD}.{HASH}")
            less = _by_update(replaced)
        else:
            less = self._tallies(found, "old", [each.updated for each in self.before])
        if sum(each.rows for each in less) != found["replaced"]:
            raise Internal.of("state.ttl_row_too_old", name=self.name, before=[each.updated for each in self.before])
        gone = self._tallies(found, "gone", (0,)) if self.is_blind else ()
        return _Written(int(found["changed"]), more, less, gone)

    def _merged(self) -> DataFrame:
        """Return a row a key: its change, its row in the files, and whether the change is one.

        In the order of the files. Where changes are few, only their keys are read from the files.
        """
        rows = self._placed(self._candidates())
        merged = rows.groupBy(*self._order).agg(
            F.max_by(F.struct(*map(quoted, [*self._values, HASH, ONLY_CHANGED])), F.col(CHANGE)).alias(_NEW),
            F.max_by(F.struct(*map(quoted, self._old_columns)), F.col(RANK)).alias(_OLD),
            is_twice().alias(_TWICE),
        )
        was_there = F.coalesce(~F.col(f"{_OLD}.{DELETED}"), F.expr("false"))
        merged = merged.withColumn(_WAS_THERE, was_there)
        return merged.withColumn(_IS_CHANGE, F.col(_NEW).isNotNull() & ~self._is_needless())

    def _candidates(self) -> DataFrame:
        """All rows that there are of the keys: those of the changes have a number, those of the files have a rank."""
        old: DataFrame | None = None
        if self.stored.read.files and not self.is_blind:
            old = self._without_values(digest.hashed(self._old(), self.stored.counted, HASH))
        if self.changes is None:
            assert old is not None  # noqa: S101  # else there is nothing to write
            return old.select("*", *(F.lit(None).cast(kind).alias(each) for each, kind in _OF_CHANGES.items()))
        new = self.changes.rows.withColumn(RANK, F.lit(None).cast("int"))
        return new if old is None else new.unionByName(old, allowMissingColumns=True)

    def _old(self) -> DataFrame:
        """The rows of the files: of the changed keys, and others; all where there are many, or all are written."""
        if self.changes is None or self.is_full:
            return self.stored.versions()
        if self.changes.looked_up is not None:
            return self.changes.looked_up
        return self.stored.versions(self.changes.rows if self.changes.count <= BROADCAST_ROWS else None)

    def _without_values(self, old: DataFrame) -> DataFrame:
        """Return the rows, without values where only their hashes are needed."""
        if self._keeps_values:
            return old
        values = [each for each in self.stored.schema.fields if each.name not in self.stored.keys]
        if not values:  # Spark Connect refuses to add no columns
            return old
        return old.withColumns({each.name: F.lit(None).cast(each.dataType) for each in values})

    def _placed(self, rows: DataFrame) -> DataFrame:
        """Distribute rows to as many tasks as files are to be written, each a range of key groups."""
        parts = self._parts
        if parts == 1:
            return rows.repartition(1)
        place = F.col(KEY_GROUP_COLUMN) * parts / F.lit(self.output.layout.max_parallelism)
        return rows.withColumn(_PART, F.floor(place).cast("int")).repartitionById(parts, F.col(_PART))

    @property
    def _parts(self) -> int:
        count = 0 if self.changes is None else self.changes.count
        if self.is_full:
            count += sum(each.rows for each in self.before)
        return max(1, -(-count // ROWS_A_FILE))

    @property
    def _order(self) -> list[str]:
        """The order in the files. Spark compares the first column fastest: not one with the same value everywhere."""
        return [*([_PART] if self._parts > 1 else []), KEY_GROUP_COLUMN, *map(quoted, self.stored.keys)]

    def _is_needless(self) -> Column:
        """Return the condition that a change leaves its key as it is."""
        is_deletion = F.col(f"{_NEW}.{DELETED}")
        if self.is_blind:
            return F.expr("false")
        needless = is_deletion & ~F.col(_WAS_THERE)
        if not self._keeps_values:
            return needless
        kinds = {each.name: each.dataType for each in self.stored.schema.fields if each.name not in self.stored.keys}
        same = [
            digest.is_same(f"{_NEW}.{quoted(value)}", f"{_OLD}.{quoted(value)}", kind) for value, kind in kinds.items()
        ]
        is_same = reduce(lambda one, other: one & other, same, F.col(_WAS_THERE) & ~is_deletion)
        return needless | (F.col(f"{_NEW}.{ONLY_CHANGED}") & is_same)

    def _measures(self) -> list[Column]:
        is_set = F.col(_IS_CHANGE) & ~F.col(f"{_NEW}.{DELETED}")
        is_replaced = F.col(_IS_CHANGE) & F.col(_WAS_THERE)
        found = [
            F.count(F.when(F.col(_TWICE), F.lit(1))).alias("twice"),
            F.count(F.when(is_set & is_foreign(self.stored.key_groups), F.lit(1))).alias("foreign"),
            F.count(F.when(F.col(_IS_CHANGE), F.lit(1))).alias("changed"),
            F.count(F.when(is_replaced, F.lit(1))).alias("replaced"),
            *_named(digest.sums(F.when(is_set, F.col(f"{_NEW}.{HASH}"))), f"new {self.stored.read.updated}"),
        ]
        if self.is_blind:
            is_gone = F.col(_IS_CHANGE) & F.col(f"{_NEW}.{DELETED}")
            found += _named(digest.sums(F.when(is_gone, F.col(f"{_NEW}.{HASH}"))), "gone 0")
        if len(self.before) > OBSERVED_UPDATES:
            return found
        for each in self.before:
            is_of = (
                is_replaced & (F.col(f"{_OLD}.{UPDATED}") == F.lit(each.updated))
                if self.stored.has_end
                else is_replaced
            )
            found += _named(digest.sums(F.when(is_of, F.col(f"{_OLD}.{HASH}"))), f"old {each.updated}")
        return found

    def _tallies(self, found: Mapping[str, Any], whose: str, updates: Sequence[int]) -> tuple[UpdateDigest, ...]:
        values = [(each, digest.measures([found[f"{whose} {each} {i}"] for i in range(4)])) for each in updates]
        return tuple(UpdateDigest(updated, *measured) for updated, measured in values if measured[0])

    def _write(self, merged: DataFrame) -> DataFrame:
        """Write what is to be written of the merged rows, and return it."""
        if self.is_full:
            new, old = (F.struct(*[F.col(f"{side}.{quoted(each)}") for each in self._values]) for side in (_NEW, _OLD))
            kept = F.when(F.col(_IS_CHANGE), new).when(F.col(_WAS_THERE), old)
            rows = merged.withColumn(_NEW, kept).where(~F.col(f"{_NEW}.{DELETED}"))
        else:
            rows = merged.where(_IS_CHANGE)
        placed = [KEY_GROUP_COLUMN, *self.stored.keys]
        rows = rows.sortWithinPartitions(*self._order)
        columns = [
            F.col(quoted(each)) if each in placed else F.col(f"{_NEW}.{quoted(each)}").alias(each)
            for each in self.stored.stored_schema.fieldNames()
        ]
        written = rows.select(*columns)
        written.write.mode("error").options(**writer.OPTIONS).parquet(self.output.spark_folder)
        return written

    @property
    def _keeps_values(self) -> bool:
        """True if the values of the files are needed, not only their hashes."""
        return self.is_full or (self.changes is not None and self.changes.has_only_changed)

    @property
    def _values(self) -> list[str]:
        """The columns of a file besides key group and keys."""
        placed = {KEY_GROUP_COLUMN, *self.stored.keys}
        return [each for each in self.stored.stored_schema.fieldNames() if each not in placed]

    @property
    def _old_columns(self) -> list[str]:
        if self._keeps_values:
            return [*self._values, HASH]
        return [DELETED, *([UPDATED] if self.stored.has_end else []), HASH]


def _numbers(merged: DataFrame, live: int) -> tuple[int, int]:
    """Return how many rows are changed, and how many of the state are visible afterwards; `live` were before."""
    is_set = F.col(_IS_CHANGE) & ~F.col(f"{_NEW}.{DELETED}")
    found = merged.agg(*map(F.count_if, (F.col(_IS_CHANGE), is_set, F.col(_IS_CHANGE) & F.col(_WAS_THERE)))).head()
    changed, more, less = found or (0, 0, 0)
    return changed, live + more - less


_OF_CHANGES = {CHANGE: "int", IS_ALONE: "boolean", ONLY_CHANGED: "boolean"}


def _without_empty(files: Sequence[DataFile], output: OutputToWrite, store: Store) -> tuple[DataFile, ...]:
    """Delete the files without rows, which Spark writes where a partition is empty."""
    for each in files:
        if not each.rows:
            store.delete(f"{output.folder}/{each.name}")
    return tuple(each for each in files if each.rows)


def _named(measures: Sequence[Column], prefix: str) -> list[Column]:
    return [each.alias(f"{prefix} {i}") for i, each in enumerate(measures)]


def _counted(rows: DataFrame, stored: StoredState) -> tuple[UpdateDigest, ...]:
    """The tallies of all rows, by reading them."""
    return _by_update(digest.hashed(rows, stored.counted, HASH))


def _by_update(rows: DataFrame) -> tuple[UpdateDigest, ...]:
    by = F.col(UPDATED) if UPDATED in rows.columns else F.lit(0)
    found = rows.groupBy(by.alias("_weir_by")).agg(*digest.sums(F.col(HASH))).collect()
    return tuple(
        sorted((UpdateDigest(int(row[0]), *digest.measures(row[1:])) for row in found), key=lambda each: each.updated)
    )


def _digest(schema: StructType, tallies: Sequence[UpdateDigest]) -> ContentDigest:
    return ContentDigest(
        schema=digest.schema_fingerprint(schema),
        rows=sum(each.rows for each in tallies),
        xor=reduce(lambda xor, each: xor ^ each.xor, tallies, 0),
        low_sum=sum(each.low_sum for each in tallies),
        high_sum=sum(each.high_sum for each in tallies),
    )


def _check(tallies: Sequence[UpdateDigest], in_files: int, written: _Written, name: str, *, is_full: bool) -> None:
    """Raise Internal if what was counted cannot be."""
    if any(each.rows < 0 for each in tallies):
        raise Internal.of("state.fewer_rows_than_none", name=name, tallies=tallies)
    expected = sum(each.rows for each in tallies) if is_full else written.changed
    if in_files != expected:
        raise Internal.of("state.rows_differ", name=name, in_files=in_files, expected=expected)

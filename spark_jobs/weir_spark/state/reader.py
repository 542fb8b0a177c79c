"""Reads keyed state from its files. Invariant: of all rows of a key the one in the file of the latest epoch counts.

The plan: small runs are merged with each other, and keys that are not in them are read from the oldest files; so large
files are read once, and not shuffled. Where keys are given, only their rows are read from all files. Measurements and
refused alternatives: docs/decisions/0033.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructField, StructType

from weir.dataflow.key_types import require_key_of
from weir.dataflow.state_schema import fields_of_ddl, spark_json
from weir.errors import Misconfigured
from weir.formats.paths import name_of
from weir.formats.region_job import OutputReport, StateFileToRead, StateToRead
from weir.state.file_rules import overlap
from weir.store.store import Store
from weir.topology.ids import Epoch
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results.digest import quoted, type_signature
from weir_spark.results.reader import files_of, read_files, schema_of, with_key_groups

DELETED = "_weir_deleted"

UPDATED = "_weir_updated"
"""The start of the epoch of the last update, in seconds since 1970; only where the state has a time to live."""

RANK = "_weir_rank"
"""The place of a row's file among the epochs, oldest first."""

WANTED = "_weir_wanted"
"""The hash of a key that is looked up."""

_FILE = "_weir_file"

_WIDTHS = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}

BROADCAST_ROWS = 2_000_000
"""The most rows whose keys are broadcast; above it all rows are shuffled."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """The rows of some keys in all files, found by the hashes of the keys: those of keys with equal hashes, too."""

    hashes: DataFrame
    versions: DataFrame
    by: tuple[str, ...]
    """The columns that were looked up by: all of the keys, or those without the `map_key`."""


@dataclass(frozen=True)
class StoredState:
    """A keyed state in its files, read in a session."""

    session: SparkSession
    read: StateToRead
    key_groups: tuple[int, int] | None = None
    """The inclusive range that its subtask keeps; None: all."""

    @cached_property
    def schema(self) -> StructType:
        """The user's columns; parsed here, since Spark would be asked twice."""
        return schema_of(spark_json(fields_of_ddl(self.read.state.schema)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which there is one row each."""
        return self.read.state.keys

    def named_by(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The key columns that name rows of the state: all of them, or those without the `map_key`, of all entries."""
        whole, divided_by = self.keys, self.read.state.divided_by
        return divided_by if {*divided_by} <= {*columns} and not {*whole} <= {*columns} else whole

    @property
    def counted(self) -> StructType:
        """The columns that its digest is of: the user's, and where it has a time to live that of the last update."""
        fields = StructType([*self.schema.fields])
        return fields.add(UPDATED, LongType()) if self.has_end else fields

    @property
    def has_end(self) -> bool:
        """True if it has a time to live."""
        return self.read.expired_until is not None

    @cached_property
    def stored_schema(self) -> StructType:
        """The columns of its files."""
        stored = with_key_groups(self.schema).add(DELETED, BooleanType())
        return stored.add(UPDATED, LongType()) if self.has_end else stored

    def require_keys(self, given: StructType, what: str, by: Sequence[str]) -> None:
        """Check that rows have these key columns, of types that can equal the state's. Raises Misconfigured."""
        types = {field.name: field.dataType for field in given.fields}
        where = f"state {self.read.state.name!r}"
        missing = [name for name in by if name not in types]
        if missing:
            raise Misconfigured.of("state.key_missing", where=where, what=what, keys=by, missing=missing, types=types)
        try:
            for key in by:
                require_key_of(types[key].simpleString(), self.schema[key].dataType.simpleString(), key)
        except Misconfigured as error:
            raise Misconfigured.of("dataflow.columns_wrong", where=where, error=error) from error

    def keys_of(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        """The distinct keys of rows in the types of the state, whose hashes others have not; after `require_keys`.

        Without numbers that are out of the range of the state's type: no row has them.
        """
        outside = self.outside(rows.schema, by)
        found = rows if outside is None else rows.where(~outside)
        kinds = {key: self.schema[key].dataType for key in by}
        return found.select(*[F.col(quoted(key)).try_cast(kind).alias(key) for key, kind in kinds.items()]).distinct()

    def outside(self, given: StructType, by: Sequence[str]) -> Column | None:
        """The condition that a key is out of the range of the state's type; None where that is as wide."""
        kinds = {key: self.schema[key].dataType for key in by}
        conditions = [
            F.col(quoted(key)).isNotNull() & F.col(quoted(key)).try_cast(kind).isNull()
            for key, kind in kinds.items()
            if _WIDTHS.get(given[key].dataType.simpleString(), 0) > _WIDTHS.get(kind.simpleString(), 0)
        ]
        return reduce(lambda one, other: one | other, conditions) if conditions else None

    def rows(self, keys: DataFrame | None = None, *, is_broadcast: bool = True) -> DataFrame:
        """The visible rows: the user's columns, the key group and, where it has a time to live, the last update.

        With `keys`, a DataFrame that has the key columns (perhaps without the `map_key`), only those of these keys; it
        may name a key more than once, and is broadcast unless the caller knows that it is too large for that. Nulls are
        keys like others.
        """
        return self._merged(keys, is_broadcast=is_broadcast).where(~F.col(DELETED)).drop(DELETED)

    def versions(self, keys: DataFrame | None = None) -> DataFrame:
        """All rows of the files that have not expired, deleted ones too, with the rank of their epoch.

        With `keys`, which are broadcast, those of these keys and of few others: whose keys have the hash of one.
        """
        if keys is None:
            return self._files(self.read.files)
        by = self.named_by(keys.columns)
        hashes, key = F.broadcast(hashes_of(keys, by)), key_hash(by)  # a join by one number: half the work
        return self._files(self.read.files, lambda rows: rows.join(hashes, key == F.col(WANTED), "left_semi"))

    def with_written(self, epoch: Epoch, written: OutputReport, store: Store) -> StoredState:
        """Return the state with the files that an epoch has just written."""
        groups = self.key_groups or (0, written.layout.max_parallelism - 1)
        new = tuple(
            StateFileToRead(path, epoch, groups, each.rows, each.bytes)
            for path, each in zip(files_of(written, store), written.files, strict=True)
        )
        kept = () if written.state is not None and written.state.is_whole else self.read.files
        return replace(self, read=replace(self.read, files=(*kept, *new)))

    def look_up(self, keys: DataFrame) -> LookUp:
        """Find the rows of keys, which are broadcast, once for all who need them: when they are first needed."""
        by = self.named_by(keys.columns)
        return LookUp(hashes_of(keys, by), self.versions(keys).localCheckpoint(eager=False), by)

    def rows_in(self, found: LookUp, keys: DataFrame) -> DataFrame:
        """The visible rows of keys that were looked up, as `rows` gives them."""
        newest = _newest(_only(found.versions, keys, found.by, is_broadcast=True), self.keys)
        return newest.where(~F.col(DELETED)).drop(DELETED)

    def _merged(self, keys: DataFrame | None, *, is_broadcast: bool) -> DataFrame:
        bottom, upper = _layers(self.read.files)

        def wanted(rows: DataFrame) -> DataFrame:
            return rows if keys is None else _only(rows, keys, self.named_by(keys.columns), is_broadcast=is_broadcast)

        if not upper:
            return self._files(bottom, wanted).drop(RANK)
        if keys is not None:
            return _newest(self._files(self.read.files, wanted), self.keys)
        if sum(file.rows for file in upper) > BROADCAST_ROWS:
            return _newest(self._files(self.read.files), self.keys)
        newest = _newest(self._files(upper), self.keys)
        changed = newest.select(*map(quoted, self.keys))
        older = self._files(bottom).drop(RANK)
        untouched = older.join(F.broadcast(changed), same_key(older, changed, self.keys), "left_anti")
        return untouched.unionByName(newest)

    def _files(
        self, files: Sequence[StateFileToRead], wanted: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> DataFrame:
        """The rows of the wanted key groups in these files that have not expired, and that `wanted` leaves of them.

        A row that has is hidden by no older one, which would have expired before it.
        """
        ranks: dict[str, int] = {
            epoch: rank for rank, epoch in enumerate(sorted({file.epoch for file in self.read.files}))
        }
        parts = [_ranked(wanted(self._scan(scan)), scan, ranks) for scan in _scans(files)]
        if not parts:
            return self.session.createDataFrame([], StructType([*self.stored_schema.fields]).add(RANK, IntegerType()))
        rows = reduce(DataFrame.unionByName, parts)
        return rows.where(F.col(UPDATED) > F.lit(self.read.expired_until)) if self.has_end else rows

    def _scan(self, files: Sequence[StateFileToRead]) -> DataFrame:
        """Read files with different names, of the same key groups, at once, with the name of each row's file."""
        rows = read_files(self.session, [file.path for file in files], self.stored_schema)
        name = rows.metadataColumn("_metadata")["file_name"]
        return rows.select("*", name.alias(_FILE)).where(F.col(KEY_GROUP_COLUMN).between(*files[0].key_groups))


def _ranked(rows: DataFrame, files: Sequence[StateFileToRead], ranks: Mapping[str, int]) -> DataFrame:
    """Return rows with the ranks of their files, which Spark looks up by name for each row.

    So call it after the filters that remove most rows.
    """
    epochs = {file.epoch for file in files}
    if len(epochs) == 1:
        return rows.withColumn(RANK, F.lit(ranks[epochs.pop()])).drop(_FILE)
    known = F.create_map(*[F.lit(each) for file in files for each in (name_of(file.path), ranks[file.epoch])])
    unknown = F.raise_error(F.lit("a file of the state goes by another name in Spark")).cast("int")
    return rows.withColumn(RANK, F.coalesce(F.try_element_at(known, F.col(_FILE)), unknown)).drop(_FILE)


def _scans(files: Sequence[StateFileToRead]) -> Iterator[list[StateFileToRead]]:
    """Divide files into groups of the same key groups, in each of which no two have the same name."""
    groups: dict[tuple[tuple[int, int], int], list[StateFileToRead]] = {}
    seen: dict[tuple[tuple[int, int], str], int] = {}
    for file in files:
        number = seen.get((file.key_groups, name_of(file.path)), 0)
        seen[file.key_groups, name_of(file.path)] = number + 1
        groups.setdefault((file.key_groups, number), []).append(file)
    yield from groups.values()


def _layers(files: Sequence[StateFileToRead]) -> tuple[list[StateFileToRead], list[StateFileToRead]]:
    """The oldest files of their key groups, and those above them; files come oldest epoch first."""
    bottom: list[StateFileToRead] = []
    upper: list[StateFileToRead] = []
    for file in files:
        older = (each for each in (*bottom, *upper) if each.epoch < file.epoch)
        is_upper = any(overlap(each.key_groups, file.key_groups) for each in older)
        (upper if is_upper else bottom).append(file)
    return bottom, upper


def _newest(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return of each key the row of the highest rank, without the rank."""
    return highest(rows, keys, F.col(RANK), without=(RANK,))


def highest(rows: DataFrame, keys: Sequence[str], order: Column, *, without: Sequence[str]) -> DataFrame:
    """Return of each key the row that is highest in an order, without some columns."""
    kept = [quoted(name) for name in rows.columns if name not in without]
    by_key = rows.groupBy(*[F.col(quoted(key)).alias(f"_weir_key_{i}") for i, key in enumerate(keys)])
    return by_key.agg(F.max_by(F.struct(*kept), order).alias("_weir_row")).select("_weir_row.*")


def require_type(state: str, declared: StructField, found: DataType) -> None:
    """Raise Misconfigured if a column is of another type than was declared."""
    if type_signature(found) != type_signature(declared.dataType):
        raise Misconfigured.of(
            "state.type_differs",
            name=state,
            field=declared.name,
            declared=declared.dataType.simpleString(),
            found=found.simpleString(),
        )


def _only(rows: DataFrame, wanted: DataFrame, keys: Sequence[str], *, is_broadcast: bool) -> DataFrame:
    named = wanted.select(*map(quoted, keys))
    few = F.broadcast(named) if is_broadcast else named
    return rows.join(few, same_key(rows, named, keys), "left_semi")


def hashes_of(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the hashes of the keys of rows, in the column WANTED."""
    return rows.select(key_hash(keys).alias(WANTED))


def key_hash(keys: Sequence[str]) -> Column:
    """Return the number by which rows of keys are looked up."""
    return F.xxhash64(*[F.col(quoted(key)) for key in keys])


def same_key(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> Column:
    """The condition that rows of two DataFrames have equal keys; nulls equal nulls."""
    return reduce(lambda one, other: one & other, [left[quoted(key)].eqNullSafe(right[quoted(key)]) for key in keys])

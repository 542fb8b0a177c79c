"""Reads keyed state from its files. Invariant: of all rows of a key the one in the file of the latest epoch counts.

Which plan: the small runs are merged among themselves, and what they do not name is taken from the oldest files as it
is; so what is large is read once, and not shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import BooleanType, IntegerType, LongType, StructType

from weir.results.layout import KEY_GROUP_COLUMN
from weir.results.region_job import StateFileToRead, StateToRead
from weir.state.files import overlap
from weir_spark.digest import quoted
from weir_spark.reader import READ_OPTIONS

DELETED = "_weir_deleted"
UPDATED = "_weir_updated"
"""The start of the epoch of the last update, in seconds since 1970; only where the state has a time to live."""

_ORDER = "_weir_order"
BROADCAST_ROWS = 2_000_000
"""Of how many changed rows the keys are broadcast; above it all rows are shuffled."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A keyed state as its files have it, for a session."""

    session: SparkSession
    read: StateToRead

    @property
    def schema(self) -> StructType:
        """The user's columns."""
        return self.session.createDataFrame([], self.read.state.schema).schema

    @property
    def stored_schema(self) -> StructType:
        """The columns of its files."""
        stored = StructType([*self.schema.fields]).add(KEY_GROUP_COLUMN, IntegerType()).add(DELETED, BooleanType())
        return stored.add(UPDATED, LongType()) if self.read.expired_until is not None else stored

    def rows(self, keys: DataFrame | None = None) -> DataFrame:
        """The visible rows, with the key-group column and, where it has a time to live, that of the last update.

        With `keys`, a DataFrame of key columns without duplicates, only those of these keys.
        """
        merged = self._merged(keys)
        visible = merged.where(~F.col(DELETED)).drop(DELETED)
        if self.read.expired_until is None:
            return visible
        return visible.where(F.col(UPDATED) > F.lit(self.read.expired_until))

    def _merged(self, keys: DataFrame | None) -> DataFrame:
        bottom, upper = _layers(self.read.files)
        if not upper:
            return self._only(self._files(bottom), keys)
        ranks = {epoch: rank for rank, epoch in enumerate(sorted({file.epoch for file in upper}))}
        newest = _newest(
            [
                self._only(self._files([file for file in upper if file.epoch == epoch]), keys).withColumn(
                    _ORDER, F.lit(rank)
                )
                for epoch, rank in ranks.items()
            ],
            self.read.state.keys,
        )
        older = self._only(self._files(bottom), keys)
        if sum(file.rows for file in upper) > BROADCAST_ROWS and keys is None:
            ranked = [older.withColumn(_ORDER, F.lit(-1)), newest.withColumn(_ORDER, F.lit(0))]
            return _newest(ranked, self.read.state.keys)
        changed = newest.select(*map(quoted, self.read.state.keys))
        untouched = older.join(F.broadcast(changed), same_key(older, changed, self.read.state.keys), "left_anti")
        return untouched.unionByName(newest)

    def _only(self, rows: DataFrame, keys: DataFrame | None) -> DataFrame:
        if keys is None:
            return rows
        return rows.join(F.broadcast(keys), same_key(rows, keys, self.read.state.keys), "left_semi")

    def _files(self, files: Sequence[StateFileToRead]) -> DataFrame:
        """The rows of the wanted key groups in these files."""
        ranges: dict[tuple[int, int], list[str]] = {}
        for file in files:
            ranges.setdefault(file.key_groups, []).append(file.path)
        if not ranges:
            return self.session.createDataFrame([], self.stored_schema)
        parts = [
            self.session.read.options(**READ_OPTIONS)
            .schema(self.stored_schema)
            .parquet(*paths)
            .where(F.col(KEY_GROUP_COLUMN).between(*key_groups))
            for key_groups, paths in ranges.items()
        ]
        return reduce(DataFrame.unionByName, parts)


def _layers(files: Sequence[StateFileToRead]) -> tuple[list[StateFileToRead], list[StateFileToRead]]:
    """The oldest files of their key groups, and those above them; files come oldest epoch first."""
    bottom: list[StateFileToRead] = []
    upper: list[StateFileToRead] = []
    for file in files:
        older = (each for each in (*bottom, *upper) if each.epoch < file.epoch)
        is_upper = any(overlap(each.key_groups, file.key_groups) for each in older)
        (upper if is_upper else bottom).append(file)
    return bottom, upper


def _newest(parts: Sequence[DataFrame], keys: Sequence[str]) -> DataFrame:
    """Of each key the row of the highest order."""
    if len(parts) == 1:
        return parts[0].drop(_ORDER)
    rows = reduce(DataFrame.unionByName, parts)
    named = [F.col(quoted(name)) for name in rows.columns if name != _ORDER]
    newest = rows.groupBy(*[F.col(quoted(key)).alias(f"_weir_key_{i}") for i, key in enumerate(keys)]).agg(
        F.max_by(F.struct(*named), F.col(_ORDER)).alias("_weir_row")
    )
    return newest.select("_weir_row.*")


def same_key(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> Column:
    """The condition that rows of two DataFrames have equal keys; nulls equal nulls."""
    return reduce(lambda one, other: one & other, [left[quoted(key)].eqNullSafe(right[quoted(key)]) for key in keys])

"""What an epoch of keyed state costs: bytes and seconds of its run, against a full rewrite and Delta's MERGE.

    pytest tests/benchmarks/test_state.py --benchmark-only -s --state-keys 5000000

Delta's column needs `deltalake` (1.6.6 was measured), which Weir does not: `pip install deltalake`.
Seconds are those of one session that is there, so without the start of a task, and each changed row is there already.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.builders.state_chain import StateChain

from weir.dataflow.state import keyed_state
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results import writer
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState, same_key
from weir_spark.state.writer import write_state

SCHEMA = "key STRING, n BIGINT, delay DOUBLE"
SHARES = {0.0: 1, 0.001: 1, 0.01: 3, 0.1: 1}
"""Of changed keys, and for how many epochs."""
ALL = (0, 127)
NO_DELTA = "not installed"
JUDGED = 5_000_000
"""The number of keys for which seconds are judged; for others they are only printed."""


@dataclass
class Changes:
    """What one epoch changes, computed already; `deleted` has key columns only."""

    set: DataFrame
    deleted: DataFrame
    rows: int


def rows_of(ids: DataFrame, salt: int) -> DataFrame:
    """About 11 compressed bytes a row, of which hardly any repeat."""
    return ids.select(
        F.expr("concat('N', id)").alias("key"),
        F.expr(f"xxhash64(id, {salt}) & 4294967295").alias("n"),
        F.expr(f"(xxhash64(id, {salt} + 1) & 1048575) / 8.0D").alias("delay"),
    )


def changes_of(spark: SparkSession, keys: int, share: float, number: int) -> Changes:
    """A share of all keys is set, a tenth of that is deleted."""
    count = int(keys * share)
    ids = spark.range(0, count, 1, 2).select(F.expr(f"abs(xxhash64(id, {number})) % {keys}").alias("id")).distinct()
    gone = spark.range(0, count // 10, 1, 2).select(F.expr(f"abs(xxhash64(id, {number}, 7)) % {keys}").alias("id"))
    deleted = gone.distinct().join(ids, "id", "left_anti").select(F.expr("concat('N', id)").alias("key"))
    made = rows_of(ids, number).localCheckpoint(eager=True), deleted.localCheckpoint(eager=True)
    return Changes(*made, made[0].count() + made[1].count())


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Incremental:
    """Weir: a run of changes in each epoch, exact or blind."""

    def __init__(self, spark: SparkSession, store: Store, name: str, *, is_blind: bool = False) -> None:
        self.spark, self.chain, self.day = spark, StateChain(store, keyed_state(name, key="key", schema=SCHEMA)), 0
        self.is_blind = is_blind
        self.bytes, self.changed = 0, 0

    def epoch(self, changes: Changes | None, first: DataFrame | None = None) -> None:
        self.day += 1
        epoch = f"2013{1 + self.day // 28:02d}{1 + self.day % 28:02d}T000000Z"
        state = KeyedState(StoredState(self.spark, self.chain.read(epoch), ALL))
        if first is not None:
            state.upsert(first)
        if changes is not None and changes.rows:
            state.upsert(changes.set, blind=self.is_blind)
            state.delete(changes.deleted)
        name = self.chain.state.name
        report = write_state(state, name, self.chain.output(epoch), self.chain.store)
        assert report.state is not None
        self.chain.go_on(epoch, {ALL: report})
        self.bytes, self.changed = sum(file.bytes for file in report.files), report.state.changed


class Rewrite:
    """Without Weir: all rows are read, changed and written again, in the same layout."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.number = spark, folder, 0
        self.bytes = 0

    def write(self, rows: DataFrame) -> None:
        self.number += 1
        keyed = rows.withColumn(KEY_GROUP_COLUMN, F.expr("pmod(hash(key), 128)"))
        laid_out = keyed.hint("rebalance", F.col(KEY_GROUP_COLUMN)).sortWithinPartitions(KEY_GROUP_COLUMN, "key")
        laid_out.write.options(**writer.OPTIONS).parquet(f"file://{self.folder}/{self.number}")
        self.bytes = sum(each.stat().st_size for each in (self.folder / str(self.number)).glob("*.parquet"))

    def epoch(self, changes: Changes) -> None:
        before = self.spark.read.parquet(f"file://{self.folder}/{self.number}").drop(KEY_GROUP_COLUMN)
        changed = F.broadcast(changes.set.select("key").unionByName(changes.deleted))
        kept = before.join(changed, same_key(before, changed, ["key"]), "left_anti")
        self.write(kept.unionByName(changes.set))


class Delta:
    """Delta's MERGE, as delta-rs does it without Spark."""

    def __init__(self, folder: Path) -> None:
        self.delta, self.folder = importlib.import_module("deltalake"), folder
        self.bytes = 0

    def load(self, rows: DataFrame) -> None:
        properties = self.delta.WriterProperties(compression="ZSTD")
        self.delta.write_deltalake(str(self.folder), rows.toArrow(), writer_properties=properties)

    def epoch(self, source: object) -> None:
        before = {each.name for each in self.folder.glob("*.parquet")}
        merge = self.delta.DeltaTable(str(self.folder)).merge(
            source,
            "target.key = source.key",
            source_alias="source",
            target_alias="target",
            writer_properties=self.delta.WriterProperties(compression="ZSTD"),
        )
        merge.when_matched_delete("source.is_deleted").when_matched_update_all(
            "not source.is_deleted", except_cols=["is_deleted"]
        ).when_not_matched_insert_all("not source.is_deleted", except_cols=["is_deleted"]).execute()
        self.bytes = sum(each.stat().st_size for each in self.folder.glob("*.parquet") if each.name not in before)


def delta_in(folder: Path) -> Delta | None:
    try:
        return Delta(folder)
    except ModuleNotFoundError:
        return None


def source_of(changes: Changes) -> object:
    deleted = changes.deleted.selectExpr("key", "cast(null as bigint) n", "cast(null as double) delay")
    marked = changes.set.withColumn("is_deleted", F.expr("false"))
    return marked.unionByName(deleted.withColumn("is_deleted", F.expr("true"))).toArrow()


@pytest.mark.spark
def test_an_epoch_writes_what_has_changed(spark, store, tmp_path, benchmark, request) -> None:
    keys = request.config.getoption("--state-keys")
    first = rows_of(spark.range(0, keys, 1, 2), 0)
    weir, blind = Incremental(spark, store, "h"), Incremental(spark, store, "blind", is_blind=True)
    rewrite, delta = Rewrite(spark, tmp_path / "all"), delta_in(tmp_path / "delta")
    loaded = seconds(lambda: weir.epoch(None, first))
    blind.epoch(None, first)
    rewrite.write(first)
    if delta is not None:
        delta.load(first)
    a_row = weir.bytes / keys
    print(f"\n{keys} keys, {weir.bytes} bytes, loaded in {loaded:.1f} s")
    print(
        "| changed | rows | bytes | x the changed rows' share | s | blind: s | rewrite: bytes | s | MERGE: bytes | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    number, found = 0, {}
    for share, rounds in SHARES.items():
        taken: dict[str, list[float]] = {"weir": [], "blind": [], "rewrite": [], "delta": []}
        for _ in range(rounds):
            number += 1
            changes = changes_of(spark, keys, share, number)
            taken["weir"].append(seconds(lambda changes=changes: weir.epoch(changes)))
            taken["blind"].append(seconds(lambda changes=changes: blind.epoch(changes)))
            taken["rewrite"].append(seconds(lambda changes=changes: rewrite.epoch(changes)))
            if delta is not None:
                source = source_of(changes)
                taken["delta"].append(seconds(lambda source=source: delta.epoch(source)))
        times = {name: statistics.median(each) if each else 0.0 for name, each in taken.items()}
        ratio = weir.bytes / (a_row * weir.changed) if weir.changed else 0.0
        found[share] = (ratio, times)
        merged = f"{delta.bytes} | {times['delta']:.2f}" if delta is not None else f"{NO_DELTA} | "
        print(
            f"| {100 * share:g} % | {weir.changed} | {weir.bytes} | {ratio:.2f} | {times['weir']:.2f} "
            f"| {times['blind']:.2f} | {rewrite.bytes} | {times['rewrite']:.2f} | {merged} |"
        )
    assert_equal(weir, rewrite, spark)
    assert_equal(blind, rewrite, spark)
    benchmark.extra_info.update({f"{share}": {"bytes": ratio, **times} for share, (ratio, times) in found.items()})
    benchmark.pedantic(lambda: weir.epoch(None), rounds=1)
    ratio, times = found[0.01]
    assert ratio <= 1.3
    if keys == JUDGED:
        assert times["weir"] <= 0.45 * times["rewrite"]
        assert times["blind"] <= 0.25 * times["rewrite"]
        assert delta is None or times["blind"] <= times["delta"]


def assert_equal(weir: Incremental, rewrite: Rewrite, spark: SparkSession) -> None:
    """Both have come to the same rows, or the figures say nothing."""
    state = KeyedState(StoredState(spark, weir.chain.read("20141231T000000Z"), ALL)).read()
    other = spark.read.parquet(f"file://{rewrite.folder}/{rewrite.number}").drop(KEY_GROUP_COLUMN)
    totals = [each.selectExpr("count(*)", "bit_xor(xxhash64(*))").collect()[0] for each in (state, other)]
    assert totals[0] == totals[1]

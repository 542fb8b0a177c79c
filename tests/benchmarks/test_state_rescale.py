"""A changed parallelism: each new subtask reads its share of the old files, and no file is rewritten."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
from pyspark.sql import functions as F  # noqa: N812

from weir.dataflow import keyed_state
from weir.formats.manifest import StateFile
from weir.formats.region_job import StateFileToRead, StateToRead
from weir.state.file_rules import assigned_files
from weir.store.seal import seal
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results import writer
from weir_spark.state.reader import DELETED, StoredState

ROWS = 300_000
STATE = keyed_state("history", key="k", schema="k BIGINT, text STRING")


def written(spark, store, number, subtask, rows):
    """The files of an old subtask, one of two, for an epoch."""
    at, groups = f"2013010{number}T000000Z", key_group_range(128, 2, subtask)
    folder = f"flow/{at}/history/by-k/{subtask}/t0001"
    stored = rows.select("k", F.expr("uuid()").alias("text")).withColumn(KEY_GROUP_COLUMN, F.expr("pmod(hash(k), 128)"))
    stored = stored.withColumn(DELETED, F.lit(False)).where(F.col(KEY_GROUP_COLUMN).between(*groups))
    stored = stored.repartition(1).sortWithinPartitions(KEY_GROUP_COLUMN, "k")
    stored.write.options(**writer.OPTIONS).parquet(store.spark_url(folder))
    return [StateFile(folder, file, at, groups) for file in seal(store, folder)]


def to_read(store, files):
    told = [
        StateFileToRead(store.spark_url(each.path), each.epoch, each.key_groups, each.file.rows, each.file.bytes)
        for each in files
    ]
    return StateToRead(state=STATE, files=tuple(told), tallies=None, updated=0, expired_until=None, is_full=False)


def stages(server, spark):
    address = f"{server.ui_url}/api/v1/applications/{spark.conf.get('spark.app.id')}/stages?status=complete"
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310  # the loopback interface
        return json.load(answer)


def input_bytes(server, spark, df):
    """Spark's own metric of what the tasks of a query read; it misses what is read in several places at once."""
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    before = {stage["stageId"] for stage in stages(server, spark)}
    df.write.format("noop").mode("overwrite").save()
    deadline = time.monotonic() + 30
    while not (new := [stage for stage in stages(server, spark) if stage["stageId"] not in before]):
        assert time.monotonic() < deadline
    return sum(stage["inputBytes"] for stage in new)


@pytest.mark.spark
def test_from_two_subtasks_to_three_each_reads_a_third(server, spark, store, benchmark):
    every, some = spark.range(ROWS).withColumnRenamed("id", "k"), spark.range(0, ROWS, 37).withColumnRenamed("id", "k")
    files = [
        file
        for number, rows in ((1, every), (2, some), (3, some.where("k % 2 = 0")))
        for subtask in (0, 1)
        for file in written(spark, store, number, subtask, rows)
    ]
    stored = sum(file.file.bytes for file in files)
    whole = input_bytes(server, spark, StoredState(spark, to_read(store, files)).rows())
    counts, shares, read = [], [], []
    for subtask in range(3):
        share = assigned_files(files, key_group_range(128, 3, subtask), None)
        assert {each.path for each in share} <= {each.path for each in files}
        rows = StoredState(spark, to_read(store, share)).rows()
        read.append(rows)
        counts.append(rows.count())
        shares.append(input_bytes(server, spark, rows))
    told = [f"{100 * share / whole:.0f} %" for share in shares]
    print(f"\n{ROWS} rows in {stored} bytes, {len(files)} files: all {whole} bytes, each of three {told}")
    benchmark.extra_info.update(rows=ROWS, stored=stored, whole=whole, shares=shares)
    benchmark.pedantic(read[0].count, rounds=1)
    assert sum(counts) == ROWS
    assert all(0.25 < share / whole < 0.45 for share in shares)

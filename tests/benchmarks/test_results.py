"""What the digest costs a write, and what a reader of some key groups fetches."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from weir.formats.region_job import InputToRead, OutputToWrite, PartitionToRead
from weir.store.store import Store
from weir.topology.partitions import PLAIN, Layout
from weir_dev.servers.spark import TestServer
from weir_spark.results import writer
from weir_spark.results.reader import read_input

ROWS = 3_000_000
ROUNDS = 5
BY_KEY = Layout(("key",), 128)


@pytest.fixture(scope="session")
def rows(spark: SparkSession) -> DataFrame:
    made = spark.range(0, ROWS, 1, 2).select(
        F.expr("id * 7919 % 1000003").alias("key"),
        F.expr("uuid()").alias("text"),
        F.expr("if(id % 10 = 0, null, id / 3.0D)").alias("share"),
        F.expr("cast(id % 1000 as decimal(10, 2))").alias("price"),
        F.expr("timestamp_micros(id * 1000003)").alias("at"),
        F.expr("int(id % 24)").alias("hour"),
    )
    return made.localCheckpoint(eager=True)


def output(store: Store, layout: Layout) -> OutputToWrite:
    folder = f"bench/{layout.id}/{uuid.uuid4().hex}"
    return OutputToWrite(layout, folder, store.spark_url(folder))


@pytest.mark.spark
@pytest.mark.parametrize("layout", [PLAIN, BY_KEY], ids=lambda layout: layout.id)
def test_the_digest_costs_little_of_a_write(rows, store, benchmark, layout) -> None:
    def without() -> None:
        target = output(store, layout)
        laid_out = writer._laid_out(rows, "rows", layout)
        laid_out.write.mode("error").options(**writer._OPTIONS).parquet(target.spark_folder)

    def observed() -> None:
        writer.write(rows, "rows", output(store, layout))

    without()
    observed()
    pairs = [(seconds(without), seconds(observed)) for _ in range(ROUNDS)]
    # The fastest of each: what else the machine does only ever adds.
    plain, digested = (min(column) for column in zip(*pairs, strict=True))
    benchmark.extra_info.update(rows=ROWS, without=plain, digested=digested, ratio=digested / plain)
    print(f"\n{layout.id}: {plain:.2f} s without, {digested:.2f} s with the digest: {digested / plain:.2f}")
    benchmark.pedantic(observed, rounds=1)
    assert digested / plain < 1.3


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.spark
@pytest.mark.parametrize(("count", "most"), [(200_000, 0.38), (ROWS, 0.3)])
def test_a_reader_of_a_quarter_of_the_key_groups_reads_about_a_quarter_of_the_bytes(
    server, spark, rows, store, benchmark, count, most
) -> None:
    # What is read in parallel ranges is read by other threads than those whose bytes Spark counts.
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    target = output(store, BY_KEY)
    report = writer.report(writer.write(rows.limit(count), "rows", target), "rows", target, store)
    files = tuple(store.spark_url(f"{report.folder}/{file.name}") for file in report.files)
    stored = sum(file.bytes for file in report.files)
    segments = sum(len(file.segments) for file in report.files)

    def read(key_groups: tuple[int, int]) -> int:
        wanted = InputToRead(
            argument="rows",
            layout=BY_KEY,
            spark_schema=report.spark_schema,
            partitions=(PartitionToRead("rows", 0, files),),
            key_groups=key_groups,
        )
        return input_bytes(server, spark, read_input(spark, wanted))

    whole = read((0, 127))
    quarters = [read((first, first + 31)) for first in range(0, 128, 32)]
    shares = [f"{100 * quarter / whole:.0f} %" for quarter in quarters]
    print(f"\n{count} rows: {stored} bytes in {len(files)} file(s), {segments} segments; all {whole}, {shares}")
    benchmark.extra_info.update(rows=count, stored=stored, whole=whole, quarters=quarters)
    benchmark.pedantic(read, args=((0, 31),), rounds=1)
    assert all(0.2 < quarter / whole < most for quarter in quarters)


def input_bytes(server: TestServer, spark: SparkSession, df: DataFrame) -> int:
    """Spark's own metric of what the tasks of a query read."""
    before = {stage["stageId"] for stage in stages(server, spark)}
    df.write.format("noop").mode("overwrite").save()
    deadline = time.monotonic() + 30
    while not (new := [stage for stage in stages(server, spark) if stage["stageId"] not in before]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return sum(stage["inputBytes"] for stage in new)


def stages(server: TestServer, spark: SparkSession) -> list[dict]:
    address = f"{server.ui_url}/api/v1/applications/{spark.conf.get('spark.app.id')}/stages?status=complete"
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310  # the loopback interface
        return json.load(answer)

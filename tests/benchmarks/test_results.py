"""What the digest costs a write, what a reader of some key groups fetches, and what layouts cost."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass, field, replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.servers.spark import TestServer

from weir.formats.region_job import InputToRead, OutputReport, OutputToWrite, PartitionToRead
from weir.state.file_rules import overlap
from weir.store.store import Store
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import PLAIN, KeyFilter, Layout
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
        laid_out.write.mode("error").options(**writer.OPTIONS).parquet(target.spark_folder)

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


CONSUMERS = 3
SUBTASKS = 4


@pytest.mark.spark
@pytest.mark.parametrize("count", [10_000, 100_000, 1_000_000, 10_000_000])
def test_what_a_layout_by_keys_costs_and_saves(server, spark, store, tmp_path, benchmark, count) -> None:
    """Processor seconds of Spark, and bytes, of 1 to 3 consumers by different keys, of four subtasks each."""
    spark.conf.set("parquet.hadoop.vectored.io.enabled", "false")
    stored = str(tmp_path / "rows.parquet")
    spark.range(0, count, 1, 4).select(
        *[F.expr(f"id * {prime} % {count // 3 + 7}").alias(f"key{prime}") for prime in (7919, 7907, 7901)],
        F.expr("substring(sha2(string(id), 256), 1, 12)").alias("text"),
        F.expr("if(id % 10 = 0, null, id / 3.0D)").alias("share"),
        F.expr("cast(id % 1000 as decimal(10, 2))").alias("price"),
    ).write.parquet(stored)
    rows = spark.read.parquet(stored)
    layouts = [Layout((f"key{prime}",), 128) for prime in (7919, 7907, 7901)]
    costs = LayoutCosts(server, spark, store, rows)
    costs.write(PLAIN)  # what Spark compiles and loads once
    costs.write(layouts[0])
    source = costs.of(lambda: rows.write.format("noop").mode("overwrite").save())
    plain, one, keyed = costs.write(PLAIN), costs.write(layouts[0]), costs.write(layouts[1])
    in_place, filtered = costs.read(layouts[0], layouts[0]), costs.read(PLAIN, layouts[0])
    elsewhere = costs.read(layouts[0], layouts[1])
    print(f"\n{count} rows, {SUBTASKS} subtasks a consumer; the source of the rows costs {source}")
    for name, cost in (("plain", plain), ("by keys", one), ("by keys again", keyed)):
        print(f"  write {name}: {cost}")
    for name, cost in (("own key groups", in_place), ("filter plain", filtered), ("filter other keys", elsewhere)):
        print(f"  {SUBTASKS} subtasks, {name}: {cost}")
    for consumers in range(1, CONSUMERS + 1):
        each = (one + in_place) * consumers + source * (consumers - 1) * -1
        once = plain + filtered * consumers
        shared = one + in_place + elsewhere * (consumers - 1)
        print(f"  {consumers} consumer(s): a layout each {each}; plain {once}; one by keys {shared}")
    benchmark.extra_info.update(rows=count, plain=str(plain), keyed=str(one), read=str(in_place), kept=str(filtered))
    benchmark.pedantic(lambda: None, rounds=1)
    assert (in_place.written, filtered.written) == (0, 0)


@dataclass(frozen=True)
class Cost:
    """Processor seconds of tasks and of comparing bytes, and bytes written, read and shuffled."""

    seconds: float
    written: int = 0
    read: int = 0
    shuffled: int = 0

    def __add__(self, other: Cost) -> Cost:
        both = zip(astuple(self), astuple(other), strict=True)
        return Cost(*(one + two for one, two in both))

    def __mul__(self, times: int) -> Cost:
        return Cost(*(each * times for each in astuple(self)))

    def __str__(self) -> str:
        sizes = (f"{getattr(self, each) / 1e6:.2f} MB {each}" for each in ("written", "read", "shuffled"))
        return f"{self.seconds:.2f} s, {', '.join(sizes)}"


@dataclass
class LayoutCosts:
    """Measures writes and reads of one result; `written` are its layouts."""

    server: TestServer
    spark: SparkSession
    store: Store
    rows: DataFrame
    written: dict[Layout, OutputReport] = field(default_factory=dict)

    def write(self, layout: Layout) -> Cost:
        target = output(self.store, layout)

        def run() -> None:
            self.written[layout] = writer.report(writer.write(self.rows, "rows", target), "rows", target, self.store)

        cost = self.of(run)
        return replace(cost, written=sum(file.bytes for file in self.written[layout].files), read=0)

    def read(self, written: Layout, declared: Layout) -> Cost:
        return sum((self._of_subtask(written, declared, each) for each in range(SUBTASKS)), Cost(0.0))

    def _of_subtask(self, written: Layout, declared: Layout, subtask: int) -> Cost:
        report = self.written[written]
        groups = key_group_range(declared.max_parallelism, SUBTASKS, subtask)
        files = tuple(self.store.spark_url(f"{report.folder}/{file.name}") for file in report.files)
        wanted = InputToRead(
            argument="rows",
            layout=written,
            spark_schema=report.spark_schema,
            partitions=(PartitionToRead("rows", 0, files),),
            key_groups=groups if written == declared else None,
            filter=None if written == declared else KeyFilter(declared, groups),
        )
        rows = read_input(self.spark, wanted)
        spark = self.of(lambda: rows.write.format("noop").mode("overwrite").save())
        return replace(spark, seconds=spark.seconds + self._compared(report, wanted.key_groups))

    def _compared(self, report: OutputReport, groups: tuple[int, int] | None) -> float:
        """Compare the bytes that were read, as the commit does; return the processor seconds."""
        start = time.process_time()
        for file in report.files:
            for part in file.segments:
                if groups is None or part.key_groups is None or overlap(part.key_groups, groups):
                    data = self.store.read(f"{report.folder}/{file.name}", part.offset, part.length)
                    assert hashlib.sha256(data).hexdigest() == part.sha256
        return time.process_time() - start

    def of(self, run: Callable[[], None]) -> Cost:
        before = {stage["stageId"] for stage in stages(self.server, self.spark)}
        start = time.process_time()
        run()
        own = time.process_time() - start
        new = ended_stages(self.server, self.spark, before)
        return Cost(
            own + sum(stage["executorCpuTime"] for stage in new) / 1e9,
            0,
            sum(stage["inputBytes"] for stage in new),
            sum(stage["shuffleWriteBytes"] for stage in new),
        )


def input_bytes(server: TestServer, spark: SparkSession, df: DataFrame) -> int:
    """Spark's own metric of what the tasks of a query read."""
    before = {stage["stageId"] for stage in stages(server, spark)}
    df.write.format("noop").mode("overwrite").save()
    return sum(stage["inputBytes"] for stage in ended_stages(server, spark, before))


def ended_stages(server: TestServer, spark: SparkSession, before: Collection[int]) -> list[dict]:
    """The stages that have ended since `before`, once none runs any more: the UI learns of them a little later."""
    deadline = time.monotonic() + 30
    while True:
        new = [stage for stage in stages(server, spark) if stage["stageId"] not in before]
        if new and not stages(server, spark, "active"):
            return [stage for stage in stages(server, spark) if stage["stageId"] not in before]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def stages(server: TestServer, spark: SparkSession, status: str = "complete") -> list[dict]:
    address = f"{server.ui_url}/api/v1/applications/{spark.conf.get('spark.app.id')}/stages?status={status}"
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310  # the loopback interface
        return json.load(answer)

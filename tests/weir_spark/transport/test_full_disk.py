"""A region on a disk that fills up: the error says which disk, and the same job goes through once there is room."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.servers.small_disk import small_disk
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import DiskFull, StoreFull
from weir.formats.codec import from_json
from weir.formats.region_job import RegionReport
from weir.store.catalogue import published
from weir.store.store import Store
from weir.topology.partitions import PLAIN, Layout
from weir_spark.transport.connect import ConnectEngine
from weir_spark.transport.failures import disk_full

NUMBERS = (
    "from pyspark.sql import functions as F\n"
    "def numbers(ctx):\n"
    "    return ctx.spark.range(0, 1_000_000, 1, 4).select('id', F.hash('id').alias('x'))\n"
)


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "store", megabytes=32) as mounted:
        yield mounted


@pytest.fixture
def store(disk) -> Store:
    opened = Store.open(str(disk.path))
    opened.initialise()
    return opened


@pytest.fixture
def numbers(jobs, pipeline):
    """Describe a region that writes about 5 MB in each of two layouts."""
    module = pipeline(NUMBERS)

    def describe():
        outputs = [jobs.output("numbers", layout) for layout in (PLAIN, Layout(("id",), 128))]
        return jobs.region(jobs.stage("numbers", f"{module}:numbers", *outputs))

    return describe


def run(url, job, store):
    ConnectEngine(url, retries=2).run(job, str(uuid.uuid4()), lambda line: None)
    report = from_json(RegionReport, store.read(job.report))
    return [output.digest for output in report.outputs]


@pytest.fixture
def await_room(spark, server, disk):
    """Wait until the server has let go of what is deleted: a file that Spark could not write is closed as garbage."""

    def wait():
        deadline = time.monotonic() + 120
        while any(is_deleted(file, disk) for file in Path(f"/proc/{server.leader.pid}/fd").iterdir()):
            assert time.monotonic() < deadline, "Spark still holds files open that are deleted"
            spark.sql("SELECT java_method('java.lang.System', 'gc')").collect()

    return wait


def is_deleted(file, disk):
    with suppress(FileNotFoundError):  # closed meanwhile
        target = str(file.readlink())
        return target.startswith(str(disk.path)) and target.endswith(" (deleted)")
    return False


@pytest.mark.soak
@pytest.mark.spark
def test_a_full_store_is_reported_as_such_and_the_next_try_has_the_same_content(
    server, store, disk, numbers, await_room
):
    expected = run(server.url, numbers(), store)
    for leave in (2 * 2**20, 13 * 2**19):  # not enough for the first result, and enough for that alone
        job = numbers()
        disk.fill(leave)
        with pytest.raises(StoreFull, match=r"the store's disk is full .*Make room there"):
            run(server.url, job, store)
        await_room()
        with pytest.raises(Exception, match="not found"):
            store.read(job.report)
        disk.make_room()
    assert run(server.url, numbers(), store) == expected


@pytest.mark.spark
def test_a_disk_without_free_space_is_reported_by_spark_or_by_the_store(server, store, disk, numbers):
    job = numbers()
    disk.fill()
    with pytest.raises(
        Exception, check=of_kind("transport.store_disk_full", message="No space left on device")
    ) as failed:
        run(server.url, job, store)
    if not isinstance(failed.value, DiskFull):
        with pytest.raises(DiskFull):
            store.require_free_space()


GROWING = (
    "from pathlib import Path\n"
    "from pyspark.sql import functions as F\n"
    "def numbers(ctx):\n"
    "    rows = int(Path(%r).read_text())\n"
    "    return ctx.spark.range(0, rows, 1, 2).select('id', F.hash('id').alias('x'))\n"
    "def total(ctx, numbers):\n"
    "    return numbers.groupBy().agg(F.sum('id').alias('ids'), F.count('id').alias('rows'))\n"
)


@pytest.mark.soak
@pytest.mark.spark
def test_a_result_that_grows_fills_a_small_disk_up_once_and_takes_the_room_of_the_run_before(
    server, store, disk, tmp_path, pipeline, await_room
):
    """Nothing half-written is left or committed, nothing is marked lost, and the outcome is that without the fault."""
    rows = tmp_path / "rows"
    module = pipeline(GROWING % str(rows))
    flow = Dataflow(
        "flow",
        [
            source("numbers", f"{module}:numbers"),
            Stage("total", f"{module}:total", [blocking("numbers")]),
            sink("total", "totals"),
        ],
        keep="90 runs",
    )
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(
        ledger=ledger, store=store, now=lambda: airflow.time, retention=RetentionSettings(least_free=2**20)
    )
    airflow = AirflowWithCode(services, OnSpark(server.url, store), flow)
    raised, errors = airflow._raised, []
    airflow._raised = lambda *of: (errors.append(type(of[-1])), raised(*of), await_room())
    for day, count in enumerate((3_000_000, 5_500_000), start=1):  # 4 MB a million, of 32 MB
        rows.write_text(str(count))
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    assert errors == [StoreFull]
    assert [part.rows for part in published(store, "flow", "totals", "20130102T000000Z").partitions] == [1]
    numbers = disk.path / "flow" / "20130102T000000Z" / "numbers" / "plain" / "0"
    assert [len(list(attempt.glob("manifest.json"))) for attempt in numbers.iterdir()] == [1]
    kept = {path.parents[3].parent.name for path in disk.path.glob("flow/*/numbers/plain/0/*/*.parquet")}
    assert kept == {"20130102T000000Z"}
    ledger.close()


@pytest.mark.spark
def test_spark_that_finds_no_room_to_shuffle_names_its_own_folder(tmp_path, jobs, pipeline):
    from tests.servers.spark import running_server

    module = pipeline(NUMBERS)
    job = jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", Layout(("id",), 128))))
    with small_disk(tmp_path / "spark", megabytes=64) as disk, running_server(disk.path) as server:
        disk.fill(leave=2 * 2**20)
        with pytest.raises(DiskFull, check=of_kind("transport.spark_disk_full")):
            ConnectEngine(server.url, retries=2).run(job, str(uuid.uuid4()), lambda line: None)
        disk.make_room()


class Told(Exception):
    """An error with a server's stack trace, as Spark Connect's have."""

    def __init__(self, message, trace):
        super().__init__(message)
        self.trace = trace

    def getStackTrace(self):  # noqa: N802  # Spark's name
        return self.trace


@pytest.mark.parametrize("said", ["No space left on device", "Disk quota exceeded", "DSQuotaExceededException"])
def test_the_reason_is_found_several_causes_deep(said):
    error = Told(
        "[TASK_WRITE_FAILED] Task failed while writing rows to file:/store/x",
        "org.apache.spark.SparkException\n"
        "Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource\n"
        f"Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: {said}\n"
        f"Caused by: java.io.IOException: {said}\n"
        "\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:545)\n",
    )
    assert f"the store's disk is full ({said})" in str(disk_full(error, "numbers"))


def test_a_spill_in_the_middle_of_a_write_is_not_the_stores_fault():
    error = Told(
        "[TASK_WRITE_FAILED] Task failed while writing rows to file:/store/x",
        "org.apache.spark.SparkException\n\tat org.apache.hadoop.fs.FSDataOutputStream.write(x.java:1)\n"
        "Caused by: java.io.IOException: No space left on device\n"
        "\tat org.apache.spark.util.collection.unsafe.sort.UnsafeSorterSpillWriter.write(x.java:1)\n",
    )
    assert "spark.local.dir" in str(disk_full(error, "numbers"))


def test_other_errors_are_no_full_disk():
    assert disk_full(Told("[TASK_WRITE_FAILED]", None), "numbers") is None
    assert disk_full(ValueError("No space"), "numbers") is None

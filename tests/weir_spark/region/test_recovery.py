"""What coordinator and Spark make of broken copies and of inputs that vanish under a job, under the fake Airflow."""

from __future__ import annotations

import uuid

import pytest
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, cached, digest, previous, sink, source
from weir.formats.codec import from_json
from weir.formats.region_job import RegionJob, RegionReport
from weir.store.catalogue import published
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

ONE_TASK = {"spark.sql.files.openCostInBytes": "0", "spark.sql.files.minPartitionNum": "1"}
"""All files of an input are read by one of Spark's tasks, one after the other."""

PIPELINE = """
import os, shutil
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import StringType

FOLDER = Path(%r)
STORE = Path(%r)


def _fault():
    fault = FOLDER / "fault"
    said = fault.read_text() if fault.exists() else ""
    fault.unlink(missing_ok=True)
    return said


def _folder(stage, layout):
    return max((STORE / "flow" / "20130101T000000Z" / stage / layout / "0").iterdir())


def numbers(ctx):
    (FOLDER / "computed").open("a").write("numbers ")
    rows = ctx.spark.range(0, 200_000, 1, 2)
    return rows.select(F.col("id").alias("k"), F.sha2(F.col("id").cast("string"), 256).alias("text"))


def wide(ctx, numbers):
    (FOLDER / "computed").open("a").write("wide ")
    return numbers.withColumn("more", F.col("k") + 1)


def report(ctx, wide):
    (FOLDER / "computed").open("a").write("report ")
    fault = _fault()
    if fault == "fails":
        raise ValueError("no luck")
    if fault:
        file = next(_folder("wide", "copy").glob("*.parquet"))
        if fault == "gone":
            file.unlink()
        else:
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 1
            file.write_bytes(data)
    return wide.groupBy().agg(F.count("text").alias("rows"), F.sum("k").alias("k"), F.max("text").alias("text"))


def joined(ctx, numbers):
    files = [str(file) for file in _folder("numbers", "plain").glob("*.parquet")] if _fault() else []

    @F.udf(StringType())
    def seen(text):
        for file in files:
            if os.path.exists(file):
                os.unlink(file)
        return text

    return numbers.withColumn("text", seen("text"))


def history(ctx, day, before):
    return before.unionByName(day)


def day(ctx):
    return ctx.spark.sql(f"select '{ctx.epoch}' day, 1L n")
"""


class SparkEngine:
    """A Connect server in the place of the fake engine."""

    def __init__(self, url, store) -> None:
        self._engine, self._store = ConnectEngine(url), store
        self.lines: list[str] = []
        self.reports: list[RegionReport] = []

    def run(self, job: RegionJob, during) -> RegionReport:
        self._engine.run(job, str(uuid.uuid4()), self.lines.append)
        during()
        self.reports.append(from_json(RegionReport, self._store.read(job.report)))
        return self.reports[-1]


class World:
    def __init__(self, url, store, folder, module) -> None:
        self.store, self.folder, self.module = store, folder, module
        self.ledger = new_ledger(folder / "ledger.db")
        self.engine = SparkEngine(url, store)
        self.errors: list[BaseException] = []
        self.airflow: AirflowWithCode

    def deploy(self, *stages) -> None:
        services = Services(ledger=self.ledger, store=self.store, now=lambda: self.airflow.time)
        self.airflow = AirflowWithCode(services, self.engine, Dataflow("flow", stages))
        raised = self.airflow._raised
        self.airflow._raised = lambda *of: (self.errors.append(of[-1]), raised(*of))

    def function(self, name) -> str:
        return f"{self.module}:{name}"

    def fault(self, said) -> None:
        (self.folder / "fault").write_text(said)

    def computed(self) -> list[str]:
        file = self.folder / "computed"
        said = file.read_text().split()
        file.unlink()
        return said

    def result(self, sink, epoch="20130101T000000Z") -> list[str]:
        return [part.digest for part in published(self.store, "flow", sink, epoch).partitions]


@pytest.fixture
def world(server, store, tmp_path, pipeline):
    folder = tmp_path / "world"
    folder.mkdir()
    module = pipeline(PIPELINE % (str(folder), store.url.removeprefix("file://")))
    made = World(server.url, store, folder, module)
    yield made
    made.ledger.close()


@pytest.fixture
def cached_world(world):
    world.deploy(
        source("numbers", world.function("numbers"), digest=digest(ignore="text")),
        Stage("wide", world.function("wide"), [cached("numbers")]),
        Stage("report", world.function("report"), [cached("wide")]),
        sink("report", "delays"),
    )
    world.task = world.airflow.task(world.airflow.dag_run(), "numbers-wide-report-delays")
    return world


def test_a_retry_resumes_after_the_newest_copy(cached_world) -> None:
    cached_world.fault("fails")
    cached_world.airflow.run_until_quiet()
    assert cached_world.task.state == "success"
    assert cached_world.computed() == ["numbers", "wide", "report", "report"]
    assert cached_world.engine.reports[-1].resumed == ("wide",)


@pytest.mark.parametrize("fault", ["gone", pytest.param("damaged", marks=pytest.mark.soak)])
def test_a_copy_that_breaks_while_it_is_read_costs_a_try_and_is_made_anew(cached_world, fault) -> None:
    cached_world.fault(fault)
    cached_world.airflow.run_until_quiet()
    assert (cached_world.task.state, cached_world.task.try_number) == ("success", 2)
    assert cached_world.computed() == ["numbers", "wide", "report", "wide", "report"]
    assert cached_world.engine.reports[-1].resumed == ("numbers",)
    [error] = cached_world.errors
    assert type(error).__name__ == "Retryable"
    assert "read the copy of stage wide in flow/20130101T000000Z/wide/copy/0/t0001-" in str(error)
    before = cached_world.result("delays")
    cached_world.airflow.clear_by_hand(cached_world.task.key.run_id, cached_world.task.key.task_id)
    cached_world.airflow.run_until_quiet()
    assert cached_world.computed() == ["numbers", "wide", "report"]
    assert cached_world.result("delays") == before


def test_a_file_that_is_deleted_in_the_middle_of_a_job_is_the_loss_of_its_partition(world) -> None:
    world.deploy(
        source("numbers", world.function("numbers")),
        Stage("joined", world.function("joined"), [blocking("numbers")], spark=ONE_TASK),
        sink("joined", "delays"),
    )
    world.fault("delete")
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    tries = {name: world.airflow.task(run, name).try_number for name in ("numbers", "joined-delays")}
    assert tries == {"numbers": 2, "joined-delays": 2}
    [error] = world.errors
    assert type(error).__name__ == "ResultUnavailable"
    [loss] = error.losses
    assert (loss.stage, loss.subtask, loss.attempt[:5], loss.fault.value) == ("numbers", 0, "t0001", "missing")
    cause = error.__context__
    assert type(cause).__name__ == "InputUnreadable"
    assert f"could not read numbers[0] (plain) of attempt {loss.attempt}, which joined reads as 'numbers'" in str(cause)
    assert set(world.airflow.states().values()) == {"success"}


def test_an_epoch_reads_the_one_before_and_the_first_an_empty_one(world) -> None:
    world.deploy(
        source("day", world.function("day")),
        Stage(
            "history",
            world.function("history"),
            {"day": blocking("day"), "before": previous("history", schema="n BIGINT, day STRING")},
        ),
        sink("history", "known"),
    )
    for day in (1, 2, 3):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    rows = [published(world.store, "flow", "known", f"2013010{day}T000000Z").partitions[0].rows for day in (1, 2, 3)]
    assert (rows, world.errors) == ([1, 2, 3], [])

"""Applications of stages that the real spark-submit runs: each is a process of its own, between two drivers."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid

import psutil
import pytest
from tests.builders.jobs import Jobs
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind

from weir.code.application_rules import ApplicationFailed
from weir.code.archive import pack
from weir.coordination.services import Services
from weir.dataflow import Application, Dataflow, Stage, blocking, sink, source
from weir.errors import EngineLost, Fenced, InputUnreadable, Misconfigured
from weir.execution.failure_class import FailureClass, classify
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import ApplicationToRun, RegionReport, application_of, staging_of
from weir.store.catalogue import published
from weir.store.errors import NotFound
from weir.store.walk import files_below
from weir.testing.fakes.airflow import FakeAirflow
from weir.topology.partitions import Layout

pytestmark = pytest.mark.spark

KEYED = Layout(("k",), 16)
PIPELINE = """
from pyspark.sql import functions as F


def numbers(ctx):
    return ctx.spark.range(1000).select("id", (F.col("id") % 7).alias("k"))


def doubled(ctx, read):
    return read.select("k", (2 * F.col("id")).alias("twice"), F.lit("2013-01-01").alias("date"))


def total(ctx, doubled):
    return doubled.groupBy().agg(F.count("twice").alias("rows"), F.sum("twice").alias("twice"))
"""
DOUBLED = """
import sys
from pyspark.sql import SparkSession, functions as F

source, target, date = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.parquet(source)
rows.select("k", (2 * F.col("id")).alias("twice"), F.lit(date).alias("date")).write.parquet(target)
"""
FAILING = """
import sys
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().range(10).write.parquet(sys.argv[2])
print("the tariff is unknown", flush=True)
sys.exit(78)
"""
WAITING = """
import json, os, sys, time
from pathlib import Path

folder = Path({folder!r})
Path(sys.argv[2].removeprefix("file://")).mkdir(parents=True)
(folder / "new").write_text(json.dumps([os.getpid(), os.getppid()]))
(folder / "new").rename(folder / "application.json")
while True:
    time.sleep(0.1)
"""
PATH = "jobs/application.py"
ARGUMENTS = ("{{ inputs.read }}", "{{ output }}", "{{ ctx.interval[0].date }}")


@pytest.fixture
def jobs(store, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "applied_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield Jobs(store)
    sys.modules.pop("applied_pipeline", None)


@pytest.fixture
def run(engine, store):
    """Run a job; its report."""

    def runs(job, **connection):
        store.create(f"{job.folder}/job.json", to_json(job))
        engine(**connection).run(job, str(uuid.uuid4()), lambda _: None)
        return from_json(RegionReport, store.read(job.report))

    return runs


@pytest.fixture
def application(jobs):
    """Describe a region of one application, as the task does before it runs an engine."""

    def make(text, *inputs, subtask=0, arguments=ARGUMENTS):
        stage = jobs.stage(
            "doubled",
            PATH,
            jobs.output("doubled", subtask=subtask),
            inputs=inputs,
            subtask=subtask,
            application=ApplicationToRun(arguments, ""),
        )
        return jobs.region(stage, subtask=subtask, code=jobs.code(PATH, applications={PATH: text.encode()}))

    return make


@pytest.fixture
def by_function(jobs, run, server):
    """The report of `numbers`, which the applications read, and of the function that does the same as `DOUBLED`."""
    source = jobs.stage("numbers", "applied_pipeline:numbers", jobs.output("numbers", KEYED), is_source=True)
    function = jobs.stage("doubled", "applied_pipeline:doubled", jobs.output("doubled"), pipelined={"read": "numbers"})
    return run(jobs.region(source, function), **server.connection)


def is_deleted(job, store):
    return not files_below(store, [staging_of(job, job.stages[0])])


def test_an_application_writes_what_the_same_function_returns(by_function, application, jobs, run, store):
    numbers, doubled = by_function.outputs
    job = application(DOUBLED, jobs.read("read", numbers))
    report = run(job)
    (output,) = report.outputs
    assert (output.digest, output.digest.rows) == (doubled.digest, 1000)
    assert report.code != by_function.code
    assert is_deleted(job, store)


@pytest.mark.soak
def test_an_application_that_fails_is_told_with_its_last_lines_and_nothing_of_it_is_read(
    by_function, application, jobs, run, store
):
    job = application(FAILING, jobs.read("read", by_function.outputs[0]))
    with pytest.raises(ApplicationFailed) as raised:
        run(job)
    said = str(raised.value)
    assert (
        "stage doubled[0]: the application jobs/application.py ended with exit code 78. Nothing was committed" in said
    )
    assert "the tariff is unknown" in said
    assert classify(raised.value) is FailureClass.APPLICATION
    with pytest.raises(NotFound):
        store.read(job.report)
    assert is_deleted(job, store)


@pytest.mark.soak
def test_a_bad_input_is_an_error_of_the_driver_and_no_application_begins(
    by_function, application, jobs, run, store, tmp_path
):
    numbers = by_function.outputs[0]
    (tmp_path / "the store" / numbers.folder / numbers.files[0].name).unlink()
    job = application(WAITING.format(folder=str(tmp_path)), jobs.read("read", numbers))
    with pytest.raises(InputUnreadable, match=r"could not read numbers\[0\] \(by-k-16-\w+\)"):
        run(job)
    assert not (tmp_path / "application.json").exists()
    assert is_deleted(job, store)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_an_application_that_is_ended_leaves_nothing(by_function, application, jobs, engine, store, tmp_path, way):
    job, errors = application(WAITING.format(folder=str(tmp_path)), jobs.read("read", by_function.outputs[0])), []
    store.create(f"{job.folder}/job.json", to_json(job))
    running = engine()

    def run():
        try:
            running.run(job, "", lambda _: None)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    told = tmp_path / "application.json"
    await_that(told.exists)
    _, jvm = (psutil.Process(pid) for pid in json.loads(told.read_text()))
    if way == "stopped":
        running.stop()
    else:
        jvm.send_signal(signal.SIGKILL)
    thread.join(120)
    (error,) = errors
    assert type(error) is (Fenced if way == "stopped" else EngineLost)
    assert is_deleted(job, store)
    with pytest.raises(NotFound):
        store.read(job.report)
    psutil.Process(json.loads(told.read_text())[0]).kill()  # it never asks Spark again


def await_that(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_connect_server_and_a_cluster_run_no_applications(application, engine):
    job = application(DOUBLED)
    with pytest.raises(Misconfigured, check=of_kind("engines.application_on_connect", partition="sc://nowhere:15002")):
        engine("spark_connect", "sc://nowhere", port=15002).run(job, "", lambda _: None)
    with pytest.raises(Misconfigured, check=of_kind("engines.application_in_cluster", client="client")):
        engine(host="yarn", extra='{"deploy-mode": "cluster"}').run(job, "", lambda _: None)


class ApplicationsElsewhere:
    """An engine for a fake Airflow: applications are submitted, all else is computed on a Connect server."""

    def __init__(self, engine, connection, store):
        self._engine, self._connection, self._store = engine, connection, store
        self.reports = []

    def run(self, job, during):
        engine = self._engine(**({} if application_of(job) else self._connection))
        engine.run(job, str(uuid.uuid4()), lambda _: None)
        during()
        self.reports.append(from_json(RegionReport, self._store.read(job.report)))
        return self.reports[-1]


FAILS_ONCE = """
import pathlib
flag = pathlib.Path({flag!r})
if sys.argv[4] == "1" and not flag.exists():
    flag.touch()
    sys.exit(3)
"""


@pytest.mark.soak
def test_a_dataflow_with_an_application_recovers_like_any_other(jobs, engine, server, store, tmp_path):
    given = Application(PATH, [*ARGUMENTS, "{{ ctx.subtask }}"])
    flow = Dataflow(
        "flow",
        [
            source("numbers", "applied_pipeline:numbers"),
            Stage("doubled", inputs={"read": blocking("numbers", by="k")}, application=given, parallelism=2),
            Stage("total", "applied_pipeline:total", [blocking("doubled")]),
            sink("total", "totals"),
        ],
    )
    head, _, tail = DOUBLED.partition("\nsource,")
    text = f"{head}{FAILS_ONCE.format(flag=str(tmp_path / 'failed'))}\nsource,{tail}".replace(
        "date = sys.argv[1:]", "date, _ = sys.argv[1:]"
    )
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = FakeAirflow(services, ApplicationsElsewhere(engine, server.connection, store), flow)
    airflow.deployed = pack(["applied_pipeline"], applications={PATH: text.encode()})
    dag_run = airflow.dag_run()
    raised = []
    airflow._raised, answer = lambda *of: (raised.append(of[-1]), answer(*of)), airflow._raised
    airflow.run_until_quiet()
    assert [type(each) for each in raised] == [ApplicationFailed]
    assert set(airflow.states().values()) == {"success"}
    assert airflow.executed(dag_run) == {
        "numbers[0]": 1,
        "doubled[0]": 1,
        "doubled[1]": 2,
        "total-totals[0]": 1,
        "weir_close[0]": 1,
    }
    (part,) = published(store, "flow", "totals", "20130101T000000Z").partitions
    assert part.rows == 1
    digests = {each.outputs[0].stage: each.outputs[0].digest for each in airflow.engine.reports}
    airflow.clear_by_hand(dag_run, "doubled", 1)
    airflow.run_until_quiet()
    assert airflow.executed(dag_run)["total-totals[0]"] == 1  # the same rows: its consumer does not run again
    assert {each.outputs[0].stage: each.outputs[0].digest for each in airflow.engine.reports} == digests
    ledger.close()

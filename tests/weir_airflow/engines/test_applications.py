"""Applications of stages that the real spark-submit runs: each is a process of its own, between two drivers."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from weir.code.application_rules import ApplicationFailed
from weir.errors import EngineLost, Fenced, Misconfigured
from weir.formats.codec import region_job_to_json, region_report_from_json
from weir.formats.region_job import ApplicationToRun, staging_of
from weir.store.store import Store
from weir.testing.fakes.jobs import Jobs
from weir.topology.partitions import PLAIN, Layout

pytestmark = pytest.mark.spark

KEYED = Layout(("k",), 16)
PIPELINE = """
from pyspark.sql import functions as F


def numbers(ctx):
    return ctx.spark.range(1000).select("id", (F.col("id") % 7).alias("k"))


def doubled(ctx, read):
    return read.select("k", (2 * F.col("id")).alias("twice"), F.lit("2013-01-01").alias("date"))
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
def store(tmp_path):
    opened = Store.open(str(tmp_path / "the store"))
    opened.initialise()
    return opened


@pytest.fixture
def jobs(store, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "applied_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield Jobs(store)
    sys.modules.pop("applied_pipeline", None)


@pytest.fixture
def engine(store):
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    def make(conn_type="spark", host="local[1]", **more):
        return engine_for(Connection(conn_id="spark_default", conn_type=conn_type, host=host, **more), store, {})

    return make


@pytest.fixture
def run(engine, store):
    """Run a job; its report."""

    def runs(job, **connection):
        store.create(f"{job.folder}/job.json", region_job_to_json(job))
        engine(**connection).run(job, "00000000-0000-4000-8000-000000000002", lambda _: None)
        return region_report_from_json(store.read(job.report))

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
    return not store.folders(staging_of(job, job.stages[0]).rpartition("/")[0])


def test_an_application_writes_what_the_same_function_returns(by_function, application, jobs, run, store):
    numbers, doubled = by_function.outputs
    job = application(DOUBLED, jobs.read("read", numbers))
    report = run(job)
    (output,) = report.outputs
    assert (output.digest, output.digest.rows) == (doubled.digest, 1000)
    assert report.code != by_function.code
    assert is_deleted(job, store)

"""Regions on a real YARN, whose results are in a real HDFS."""

from __future__ import annotations

import json
import sys

import pytest
from tests.builders.jobs import Jobs

from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir.store.store import Store

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType


@F.udf(LongType())
def doubled(number):
    return 2 * number


def numbers(ctx):
    return ctx.spark.range(1000).select("id", doubled("id").alias("twice"))


def sums(ctx, numbers):
    return numbers.groupBy((F.col("id") % 7).alias("k")).agg(F.sum("twice").alias("total"))
"""


@pytest.fixture
def store(hdfs_server, hdfs_url):
    opened = Store.open(hdfs_url, hdfs_server.storage_options)
    opened.initialise()
    return opened


@pytest.fixture
def modules(tmp_path, monkeypatch):
    (tmp_path / "yarn_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("yarn_pipeline", None)


@pytest.fixture
def engine(yarn_server, hdfs_server, store, monkeypatch):
    """Make an engine whose drivers run in containers."""
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    for name, value in yarn_server.environment(packed=False).items():
        monkeypatch.setenv(name, value)

    def make(**extra):
        extra = json.dumps({"deploy-mode": "cluster", **extra})
        connection = Connection(conn_id="spark_default", conn_type="spark", host="yarn", extra=extra)
        return engine_for(connection, store, hdfs_server.storage_options)

    return make


def test_a_region_reads_and_writes_hdfs_in_containers_that_have_only_what_travels(engine, modules, store):
    jobs = Jobs(store)
    output = jobs.output("sums")
    stages = (
        jobs.stage("numbers", "yarn_pipeline:numbers", is_source=True),
        jobs.stage("sums", "yarn_pipeline:sums", output, pipelined={"numbers": "numbers"}),
    )
    job = jobs.region(*stages, spark_conf={"spark.executor.memory": "520m"})
    store.create(f"{job.folder}/job.json", to_json(job))
    engine().run(job, "", print)
    report = from_json(RegionReport, store.read(job.report))
    assert report.outputs[0].digest.rows == 7

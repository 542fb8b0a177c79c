"""A dataflow with state in Airflow's own `dag.test()`, whose store is in a real HDFS or an S3 that loses files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.servers.faulty_http import FaultyHttp
from tests.servers.hadoop import running_hdfs
from tests.servers.java import JarsMissing
from tests.servers.s3 import running_s3
from tests.servers.spark import TestServer
from tests.weir_airflow.deployed import deployed
from tests.weir_spark.s3a import server_on_s3

import weir

pytestmark = [pytest.mark.spark, pytest.mark.soak]

FLOWS = """
import os
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir_airflow import dataflow_dag

def flow(name):
    numbers = source("numbers", "afloat:numbers", parallelism=2)
    totals = Stage("totals", "afloat:totals", [blocking("numbers", by="bucket")], parallelism=2,
                   state=keyed_state("history", key="bucket", schema="bucket BIGINT, total BIGINT"))
    return Dataflow(name, [numbers, totals, sink("totals", "sums")],
                    parameters={"control": os.environ["WEIR_TEST_CONTROL"]})

START = datetime(2013, 1, 1, tzinfo=UTC)
dataflow_dag(flow("connected"), schedule="@daily", start_date=START)
"""

STAGES = """
import json, os, signal
from pathlib import Path
from pyspark.sql import functions as F
from weir.store.store import Store

def numbers(ctx):
    return ctx.spark.range(ctx.subtask, 100, ctx.parallelism).select("id", (F.col("id") % 10).alias("bucket"))

def totals(ctx, numbers, history):
    control = Path(ctx.parameters["control"])
    store = Store.open(os.environ["WEIR_STORE"], json.loads(os.environ["WEIR_STORE_OPTIONS"]))
    for mishap in (lose, kill):
        mark = control / mishap.__name__
        if ctx.subtask == 0 and mark.exists():
            said = mark.read_text()
            mark.unlink()
            mishap(store, said)
    known = history.read().withColumnRenamed("total", "before")
    rows = numbers.groupBy("bucket").agg(F.sum("id").alias("new")).join(known, "bucket", "left")
    rows = rows.select("bucket", (F.coalesce("before", F.lit(0)) + F.col("new")).alias("total"))
    history.upsert(rows)
    return rows

def lose(store, said):
    for folder in folders(store, said, 5):
        if "/numbers/" in folder and "/1/" in folder:
            for name, _ in store.list(folder):
                if name.endswith(".parquet"):
                    store.delete(f"{folder}/{name}")

def folders(store, folder, depth):
    below = [f"{folder}/{name}" for name in store.folders(folder)]
    return [each for one in below for each in folders(store, one, depth - 1)] if depth and below else [folder]

def kill(store, said):
    os.kill(int(said), signal.SIGKILL)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is, the Spark that reaches it, and the failure of that kind of store on the last day."""

    url: str
    options: dict[str, Any]
    server: TestServer
    fail: Callable[[Path], None]


@contextmanager
def on_hdfs(folder, request):
    """An HDFS whose NameNode is killed while a task computes."""
    with running_hdfs(folder, datanodes=2) as hdfs, kept(hdfs.namenode):

        def kill(control):
            (control / "kill").write_text(str(hdfs.namenode.pid))

        yield Place(f"{hdfs.url}/flows", hdfs.storage_options, request.getfixturevalue("server"), kill)


@contextmanager
def on_s3(folder, _request):
    """An S3 that breaks a tenth of Spark's requests."""
    with (
        running_s3() as s3,
        FaultyHttp(s3.url).running() as proxy,
        server_on_s3(folder, proxy.url) as server,
    ):
        s3.make_bucket("lake")
        yield Place("s3://lake/flows", s3.storage_options, server, lambda _control: proxy.sometimes(4, 0.1))


@pytest.fixture(scope="module", params=[on_hdfs, on_s3])
def place(request, tmp_path_factory):
    try:
        with request.param(tmp_path_factory.mktemp(request.param.__name__), request) as found:
            yield found
    except JarsMissing as missing:
        pytest.skip(str(missing))


@contextmanager
def kept(server):
    """Start a server again whenever it has ended, as an init system does; it ends with the thread that does so."""
    ended = threading.Event()

    def keep():
        while not ended.wait(0.5):
            if not server.is_alive():
                server.start()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


@pytest.fixture(scope="module")
def world(airflow_home, place, tmp_path_factory):
    """A store there, ledger, connections, stages and DAGs; the folder by which a test asks for a mishap."""
    folder = tmp_path_factory.mktemp("world")
    environ = {
        "WEIR_STORE": place.url,
        "WEIR_STORE_OPTIONS": json.dumps(place.options),
        "WEIR_TEST_CONTROL": str(folder),
    }
    with deployed(airflow_home, folder, place.server, "afloat", STAGES, FLOWS, "connected", **environ):
        yield folder


@pytest.fixture
def run(world):
    """Run a DAG for a day: the state of the run, and the tries of its task instances."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
    assert not bag.import_errors

    def test(dag_id, day):
        dag_run = bag.dags[dag_id].test(logical_date=datetime(2013, 1, day, tzinfo=UTC))
        with create_session() as session:
            tis = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id=dag_run.run_id)
            return dag_run.state, {(ti.task_id, ti.map_index): ti.try_number for ti in tis}

    return test


def published(dag_id, day):
    """The total of each bucket in the newest version of the day; a run begun at midnight has the day before."""
    with weir.open(dag_id, f"2013-01-{day - 1:02}") as rows:
        return {row["bucket"]: row["total"] for row in rows.arrow().to_pylist()}


def expected(days):
    return {bucket: days * sum(range(bucket, 100, 10)) for bucket in range(10)}


def test_days_with_state_are_computed_and_healed_whatever_the_store_does(run, world, place):
    state, tries = run("connected", 2)
    assert (state, set(tries.values())) == ("success", {1})
    assert published("connected", 2) == expected(1)

    (world / "lose").write_text("connected")
    state, tries = run("connected", 3)
    assert state == "success"
    assert (tries["numbers", 0], tries["numbers", 1]) == (1, 2)
    assert published("connected", 3) == expected(2)

    place.fail(world)
    state, tries = run("connected", 4)
    assert (state, tries["numbers", 0], tries["numbers", 1]) == ("success", 1, 1)
    assert not (world / "kill").exists()
    assert published("connected", 4) == expected(3)

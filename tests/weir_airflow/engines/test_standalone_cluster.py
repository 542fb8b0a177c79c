"""Regions on a standalone cluster of two workers, one of which is killed in the middle.

What the loss of executors costs is proved end to end (`tests/e2e/test_deployment.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from tests.builders.jobs import Jobs
from tests.servers.spark_cluster import running_cluster
from tests.weir_airflow.engines.gated import GATED

from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir.store.store import Store
from weir.topology.partitions import Layout

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PIPELINE = (
    GATED
    + """


def sums(ctx):
    keyed = ctx.spark.range(0, 4000, numPartitions=4).select((F.col("id") % 11).alias("k"), "id")
    gated = keyed.repartition(4, "k").select("k", through_a_gate(ctx.parameters["gate"])("id").alias("v"))
    return gated.groupBy("k").agg(F.sum("v").alias("total"))
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("standalone")) as started:
        yield started


class Region:
    """One attempt on the cluster, in a thread; its rows wait at a gate until the test opens it."""

    def __init__(self, cluster, folder, store):
        self.cluster, self.folder, self.store = cluster, folder, store
        self.gate = folder / "gate"
        self.errors = []
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        from airflow.sdk import Connection

        from weir_airflow.engines.engines import engine_for

        jobs = Jobs(self.store)
        output = jobs.output("sums", Layout(("k",), 16))
        self.job = jobs.region(
            jobs.stage("sums", "standalone_pipeline:sums", output),
            parameters={"gate": str(self.gate)},
            spark_conf={**self.cluster.settings, "spark.executor.memory": "700m"},
        )
        self.store.create(f"{self.job.folder}/job.json", to_json(self.job))
        connection = Connection(conn_id="spark_default", conn_type="spark", host=self.cluster.url)
        try:
            engine_for(connection, self.store, {}).run(self.job, "", lambda _: None)
        except Exception as error:  # noqa: BLE001
            self.errors.append(error)

    def digest(self):
        self.thread.join(300)
        assert self.errors == []
        report = from_json(RegionReport, self.store.read(self.job.report))
        assert report.session["spark.executor.memory"] == "700m"
        return report.outputs[0].digest

    def is_at_the_gate(self):
        assert self.thread.is_alive(), self.errors
        return len(list(self.gate.glob("at the gate*"))) >= 2 and all(self.cluster.executors(each) for each in (1, 2))

    def open(self):
        (self.gate / "open").touch()


@pytest.fixture
def region(cluster, tmp_path, monkeypatch):
    """Start a region on the cluster; its pipeline is nowhere but on this process's path."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_CONF_DIR", str(cluster.conf))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "standalone_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "gate").mkdir()
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    made = Region(cluster, tmp_path, store)
    yield made
    made.open()
    made.thread.join(60)
    sys.modules.pop("standalone_pipeline", None)


@pytest.fixture(scope="module")
def calm():
    """The digest of a run in which nothing was killed."""
    return {}


def await_that(condition):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_region_is_computed_by_the_executors_of_two_workers(region, calm):
    region.thread.start()
    await_that(region.is_at_the_gate)
    region.open()
    calm["digest"] = region.digest()
    assert calm["digest"].rows == 11


def test_a_lost_worker_costs_a_region_nothing_but_time(region, cluster, calm):
    region.thread.start()
    await_that(region.is_at_the_gate)
    executors = cluster.executors(2)
    os.kill(cluster.worker(2).pid, signal.SIGKILL)
    await_that(lambda: not any(executor.is_alive() for executor in executors))
    region.open()
    assert region.digest() == calm["digest"]

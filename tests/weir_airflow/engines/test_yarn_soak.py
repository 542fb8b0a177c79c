"""Regions on a YARN of two nodes whose parts are killed in turn, whose queue is full, and which is told secrets."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.jobs import Jobs
from tests.messages.kinds import of_kind
from tests.servers.hadoop import VERSION
from tests.servers.spark import running_server
from tests.servers.yarn.cluster import NARROW_QUEUE
from tests.weir_airflow.engines.gated import GATED

from weir.connections import Connection as WeirConnection
from weir.connections import LookUps
from weir.coordination.values import SparkWork
from weir.doctor.examination import Status, examine
from weir.errors import EngineLost, Fenced, Misconfigured
from weir.execution.failure_words import message_of
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir.store.store import Store
from weir.store.walk import files_below

pytestmark = [pytest.mark.spark, pytest.mark.soak]

EXECUTOR = "CoarseGrainedExecutorBackend"
DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster "
PIPELINE = (
    GATED
    + """
import hashlib


def sums(ctx):
    keyed = ctx.spark.range(0, 4000, numPartitions=2).select((F.col("id") % 11).alias("k"), "id")
    gated = keyed.select("k", through_a_gate(ctx.parameters["gate"])("id").alias("v"))
    return gated.groupBy("k").agg(F.sum("v").alias("total"))


def entrusted(ctx, split):
    password = ctx.connection("bank").password
    print("told its password")
    return ctx.spark.createDataFrame([(hashlib.sha256(password.encode()).hexdigest(),)], "digest STRING").crossJoin(
        sums(ctx).agg(F.sum("total").alias("total"))
    )
"""
)


@pytest.fixture
def store(cluster):
    opened = Store.open(f"{cluster.hdfs.url}/{uuid.uuid4()}/weir", cluster.hdfs.storage_options)
    opened.initialise()
    return opened


class Region:
    """One attempt, in a thread; its rows wait at a gate until the test opens it. `said` is what its task said."""

    def __init__(self, store, folder, function="sums", look_ups=None, split_=None, **connection):
        from airflow.sdk import Connection

        from weir_airflow.engines.engines import engine_for

        self.gate = folder / uuid.uuid4().hex
        self.gate.mkdir()
        self.store, self.said, self.errors = store, [], []
        jobs = Jobs(store)
        output = jobs.output(function)
        more = {} if split_ is None else {"is_source": True, "split": split_}
        stage = jobs.stage(function, f"yarn_pipeline:{function}", output, **more)
        self.job = jobs.region(stage, parameters={"gate": str(self.gate)})
        store.create(f"{self.job.folder}/job.json", to_json(self.job))
        given = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}} | connection
        given["extra"] = json.dumps(given["extra"])
        options = given.pop("options")
        found = Connection(conn_id="spark_default", **given)
        look_up = () if look_ups is None else (look_ups,)
        self.engine = engine_for(found, store, options, *look_up)
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.engine.run(self.job, str(uuid.uuid4()), self.said.append)
        except Exception as error:  # noqa: BLE001
            self.errors.append(error)

    @property
    def work(self):
        return SparkWork(self.job.attempt, "spark-submit:yarn", "s", self.job.folder)

    def is_at_the_gate(self):
        assert self.thread.is_alive(), (self.errors, self.said)
        return any(self.gate.glob("at the gate*"))

    def open(self):
        (self.gate / "open").touch()

    def rows(self):
        self.thread.join(600)
        assert self.errors == []
        [output] = from_json(RegionReport, self.store.read(self.job.report)).outputs
        files = [self.store.read(f"{output.folder}/{file.name}") for file in output.files]
        tables = [pq.read_table(pa.BufferReader(content)) for content in files]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())

    def error(self):
        self.thread.join(600)
        return self.errors[0]


@pytest.fixture
def start(cluster, store, tmp_path, monkeypatch):
    """Start a region on YARN, in containers with a packed environment."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "yarn_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    for name, value in cluster.environment(packed=True).items():
        monkeypatch.setenv(name, value)
    started = []

    def begin(is_started=True, **more):
        region = Region(store, tmp_path, **{"options": cluster.hdfs.storage_options, **more})
        if is_started:
            region.thread.start()
            started.append(region)
        return region

    yield begin
    for region in started:
        region.open()
        region.engine.stop()
        region.thread.join(120)
    sys.modules.pop("yarn_pipeline", None)


@pytest.fixture
def at_the_gate(start):
    def begin(**more):
        region = start(**more)
        await_that(region.is_at_the_gate)
        return region

    return begin


def await_that(condition, seconds=480):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def node_with(cluster, words):
    return next(node for node in cluster.nodes if node.containers(words))


def identity_of(region):
    return next(line.split()[0] for line in region.said if "was submitted" in line)


def state_of(cluster, region):
    return cluster.ask(f"apps/{identity_of(region)}")["app"]["state"]


RIGHT = sorted((k, sum(3 * number for number in range(4000) if number % 11 == k)) for k in range(11))
MODES = {
    "cluster": {"extra": {"deploy-mode": "cluster"}},
    "client": {"extra": {"deploy-mode": "client"}},
}


@pytest.mark.parametrize("mode", MODES)
def test_each_deploy_mode_gives_the_same_rows(start, mode):
    region = start(**MODES[mode])
    region.open()
    assert region.rows() == RIGHT


def test_a_killed_executor_costs_a_region_nothing_but_time(at_the_gate, cluster):
    region = at_the_gate()
    [executor] = node_with(cluster, EXECUTOR).containers(EXECUTOR)
    executor.kill()
    region.open()
    assert region.rows() == RIGHT


def test_a_killed_driver_is_the_engines_loss_and_its_log_is_named(at_the_gate, cluster):
    region = at_the_gate()
    [driver] = node_with(cluster, DRIVER).containers(DRIVER)
    driver.kill()
    error = region.error()
    assert isinstance(error, EngineLost)
    assert f"yarn logs -applicationId {identity_of(region)}" in message_of(error)


def test_an_application_that_a_person_kills_is_the_engines_loss(at_the_gate, cluster):
    region = at_the_gate()
    cluster.kill_application(identity_of(region))
    assert isinstance(region.error(), EngineLost)


def test_a_node_that_dies_with_its_driver_is_the_engines_loss_and_the_next_try_finds_another(
    at_the_gate, start, cluster
):
    region = at_the_gate()
    node = node_with(cluster, DRIVER)
    node.end()
    try:
        assert isinstance(region.error(), EngineLost), region.said
        again = start()
        again.open()
        assert again.rows() == RIGHT
    finally:
        node.start()
        cluster.await_nodes(2)


def test_a_node_manager_that_dies_leaves_the_work_of_its_containers(at_the_gate, cluster):
    region = at_the_gate()
    node = node_with(cluster, EXECUTOR)
    node.kill()
    try:
        region.open()
        assert region.rows() == RIGHT
    finally:
        node.start()
        cluster.await_nodes(2)


@pytest.fixture
def waiting(at_the_gate, start, cluster):
    """A region that waits in the queue that another one fills."""
    queue = {"extra": {"deploy-mode": "cluster", "queue": NARROW_QUEUE}}
    filling = start(**queue)
    await_that(lambda: any("RUNNING" in line for line in filling.said))
    region = start(**queue)
    await_that(lambda: any("waits for room in its queue" in line for line in region.said))
    return region


def test_an_application_in_a_full_queue_is_killed_by_the_attempt_that_fences_it(waiting, start, cluster):
    assert state_of(cluster, waiting) == "ACCEPTED"
    start(is_started=False).engine.interrupt(waiting.work)
    assert state_of(cluster, waiting) == "KILLED"
    assert isinstance(waiting.error(), EngineLost)


def test_an_application_in_a_full_queue_is_killed_when_its_task_is_stopped(waiting, cluster):
    waiting.engine.stop()
    assert isinstance(waiting.error(), Fenced)
    assert state_of(cluster, waiting) == "KILLED"


@pytest.mark.parametrize(("queue", "status"), [(NARROW_QUEUE, Status.OK), ("nowhere", Status.PROBLEM)])
def test_the_doctor_asks_yarn_for_queue_and_version(start, queue, status):
    from airflow.sdk import Connection

    from weir_airflow.doctor.submit import submit_checks

    start(is_started=False)  # for its environment
    connection = Connection(conn_id="c", conn_type="spark", host="yarn", extra=json.dumps({"queue": queue}))
    found = {each.name: each for each in examine([submit_checks("spark", connection)])}
    assert found["queue"].status is status
    assert {found["HADOOP_CONF_DIR"].status, found["Hadoop"].status} == {Status.OK}
    assert found["Hadoop"].found == f"client {VERSION}, cluster {VERSION}"


@pytest.fixture
def connect_server(cluster, tmp_path):
    """A Connect server whose executors are in containers."""
    environ = cluster.environment(packed=True)
    properties = Path(environ["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    with running_server(tmp_path / "connect", variables=environ, master="yarn", properties=properties) as server:
        yield server


def test_a_connect_server_on_yarn_outlives_its_executors_and_its_own_end_is_the_engines_loss(
    connect_server, at_the_gate, cluster
):
    by_connect = {**connect_server.connection, "extra": {}}
    region = at_the_gate(**by_connect)
    [executor] = node_with(cluster, EXECUTOR).containers(EXECUTOR)
    executor.kill()
    region.open()
    assert region.rows() == RIGHT

    region = at_the_gate(**by_connect)
    connect_server.send(signal.SIGKILL)
    assert isinstance(region.error(), EngineLost)
    await_that(lambda: cluster.applications("RUNNING") == [])


SECRET = "opens-sesame-7f3"
LOOK_UPS = LookUps(lambda _: WeirConnection(id="bank", kind="http", login="me", password=SECRET), {}.__getitem__)
SPLIT = {"conn_id": "bank", "query": "select 1"}


def places_with(secret, cluster, region):
    """Name what shows a secret: files of the nodes and in HDFS, containers' environments, the manager's pages."""
    told = {str(path): path.read_bytes() for path in cluster.folder.rglob("*") if path.is_file() and is_small(path)}
    for node in cluster.nodes:
        for process in node.containers():
            told[f"process {process.pid}"] = repr([process.cmdline(), process.environ()]).encode()
    for page in (f"apps/{identity_of(region)}", f"apps/{identity_of(region)}/appattempts", "scheduler"):
        with urlopen(f"http://{cluster.http}/ws/v1/cluster/{page}", timeout=10) as answer:
            told[page] = answer.read()
    hdfs = Store.open(cluster.hdfs.url, cluster.hdfs.storage_options)
    for each in files_below(hdfs, [name for name in hdfs.folders("") if name != "environments"]):
        told[f"hdfs {each.path}"] = hdfs.read(each.path)
    assert any("launch_container.sh" in name for name in told)
    assert any("__spark_conf__" in name for name in told)
    return [name for name, content in told.items() if secret.encode() in content]


def is_small(path):
    return "/environment" not in str(path) and path.stat().st_size < 2**22


@pytest.fixture(params=["file", "provider"])
def way(request, cluster):
    """The extras of a connection by which drivers are told secrets."""
    if request.param == "file":
        return {}
    provider = f"jceks://hdfs@{cluster.hdfs.url.removeprefix('hdfs://')}/{uuid.uuid4()}.jceks"
    shell = "org.apache.hadoop.security.alias.CredentialShell"
    value = json.dumps({"conn_type": "http", "login": "me", "password": SECRET})
    cluster.hdfs.run(shell, "create", "airflow_conn_bank", "-value", value, "-provider", provider)
    return {"credential-provider": provider}


def test_secrets_of_a_driver_are_in_no_file_log_page_or_environment(at_the_gate, cluster, way):
    region = at_the_gate(function="entrusted", look_ups=LOOK_UPS, split_=SPLIT, extra={"deploy-mode": "cluster", **way})
    assert places_with(SECRET, cluster, region) == []
    region.open()
    assert region.rows() == [(hashlib.sha256(SECRET.encode()).hexdigest(), sum(3 * number for number in range(4000)))]
    identity = identity_of(region)
    await_that(lambda: "told its password" in cluster.logs(identity))
    assert SECRET not in cluster.logs(identity)
    assert places_with_files_only(SECRET, cluster) == []


def places_with_files_only(secret, cluster):
    return [
        str(path)
        for path in Path(cluster.folder).rglob("*")
        if path.is_file() and is_small(path) and secret.encode() in path.read_bytes()
    ]


def test_secrets_without_a_way_are_refused_before_anything_is_submitted(start, cluster, tmp_path):
    before = len(cluster.applications())
    store = Store.open(str(tmp_path / "local store"))
    store.initialise()
    region = Region(store, tmp_path, "entrusted", LOOK_UPS, SPLIT, options={})
    region.thread.start()
    error = region.error()
    assert isinstance(error, Misconfigured)
    assert of_kind("engines.secrets_without_a_way", staging="staging", provider="credential-provider")(error)
    assert SECRET not in str(error)
    assert len(cluster.applications()) == before

"""A standalone cluster as programs of the local stack."""

from __future__ import annotations

import json
import stat

import pytest

from weir_dev.stack.airflow_environment import component_environment, spark_conf_folder, stack_ports
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.spark_cluster import MASTER, SparkCluster, port_names
from weir_dev.stack.spark_programs import is_of_spark, spark_programs
from weir_dev.stack.state import StackRequest


@pytest.fixture
def request_of(tmp_path):
    def make(workers):
        folder = tmp_path / "a folder"
        return StackRequest(
            folder=folder, dags=(tmp_path,), plugins=tmp_path, cache=tmp_path, spark_workers=workers, spark_cores=3
        )

    return make


@pytest.fixture
def programs_of(request_of, tmp_path):
    def make(workers):
        request = request_of(workers)
        ports = {name: 7000 + number for number, name in enumerate(stack_ports(request))}
        return spark_programs(request, tmp_path / "logs", ports, {"JAVA_HOME": "/java"}, load_or_create(request.folder))

    return make


@pytest.fixture
def environment_of(request_of):
    def make(workers):
        request = request_of(workers)
        ports = {name: 7000 + number for number, name in enumerate(stack_ports(request))}
        return ports, component_environment(request, ports, load_or_create(request.folder), {"PATH": "/bin"})

    return make


def test_without_workers_spark_is_one_server(programs_of):
    (server,) = programs_of(0)
    assert server.name == "spark"
    assert "local[3]" in server.command


def test_the_master_is_started_before_those_who_look_for_it(programs_of):
    programs = programs_of(2)
    assert [one.name for one in programs] == [MASTER, "spark-worker-1", "spark-worker-2", "spark"]
    assert all(is_of_spark(one.name) for one in programs)
    assert not is_of_spark("scheduler")


def test_the_connect_server_leaves_cores_for_submitted_jobs(programs_of):
    *_, server = programs_of(2)
    assert "spark.cores.max=3" in server.command
    assert [word for word in server.command if word.startswith("spark://127.0.0.1:")]


def test_no_secret_of_spark_stands_on_a_command_line_or_in_a_file_for_others(programs_of, request_of):
    programs = programs_of(1)
    folder = request_of(1).folder
    credentials = load_or_create(folder)
    secrets = {credentials.spark_token, credentials.spark_secret}
    assert not [each for one in programs for word in one.command for each in secrets if each in word]
    holding = [path for path in folder.rglob("*") if path.is_file() and any(s in path.read_text() for s in secrets)]
    assert {path.name for path in holding} == {"secrets.json", "secret.properties", "spark-defaults.conf"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert programs[-1].environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == credentials.spark_token
    assert credentials.spark_token not in json.dumps([dict(one.environment) for one in programs[:-1]])


def test_no_process_of_spark_takes_orders_from_strangers(programs_of):
    *of_cluster, server = programs_of(1)
    assert "spark.authenticate=true" in server.command
    assert all("-Dspark.authenticate=true" in one.environment["SPARK_DAEMON_JAVA_OPTS"] for one in of_cluster)
    assert all("-Dspark.ui.killEnabled=false" in one.environment["SPARK_DAEMON_JAVA_OPTS"] for one in of_cluster)


def test_a_submitted_job_leaves_cores_for_others_by_the_defaults_that_it_finds(programs_of, request_of):
    programs_of(2)
    defaults = (spark_conf_folder(request_of(2).folder) / "spark-defaults.conf").read_text()
    assert "spark.cores.max 3\n" in defaults
    assert "spark.driver.bindAddress 127.0.0.1\n" in defaults


def test_what_killed_drivers_left_is_deleted_at_the_next_start(programs_of, request_of):
    left = spark_conf_folder(request_of(2).folder) / "tmp" / "blockmgr-1" / "data"
    left.parent.mkdir(parents=True)
    left.touch()
    programs_of(2)
    assert not left.exists()


def test_nothing_of_a_cluster_listens_elsewhere_than_on_loopback(programs_of):
    for program in programs_of(2):
        assert program.environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_what_an_earlier_cluster_left_is_not_recovered(tmp_path):
    stale = tmp_path / "cluster" / "recovery" / "app_1"
    stale.parent.mkdir(parents=True)
    stale.touch()
    SparkCluster(
        folder=tmp_path / "cluster",
        logs=tmp_path,
        ports=dict.fromkeys(port_names(1), 1),
        workers=1,
        cores=1,
        secret="hush",
        environment={},
    ).clear()
    assert not stale.exists()


def test_tasks_submit_to_the_cluster_if_there_is_one(environment_of):
    ports, environment = environment_of(1)
    connection = json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert connection == {"conn_type": "spark", "host": f"spark://127.0.0.1:{ports[MASTER]}"}


def test_without_a_cluster_a_submitted_job_is_local(environment_of):
    _, environment = environment_of(0)
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"]) == {"conn_type": "spark", "host": "local[3]"}

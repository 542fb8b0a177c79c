"""The process of `weir doctor` that imports Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.builders.ledgers import new_ledger

from weir.doctor.examination import Finding, Status
from weir.store.store import Store

API_PASSWORD = "worker-secret"
SECRET = "a-secret-of-the-store"


@pytest.fixture
def environment(tmp_path, airflow_home, api_url):
    """That of a worker with a store, a ledger, an api-server, and no Spark."""
    Store.open(str(tmp_path / "store")).initialise()
    new_ledger(tmp_path / "ledger.db").close()
    api = {"conn_type": "http", "host": api_url, "login": "worker", "password": API_PASSWORD}
    spark = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": 1, "password": SECRET}
    return {
        **os.environ,
        "WEIR_STORE": str(tmp_path / "store"),
        "WEIR_LEDGER": f"sqlite:///{tmp_path}/ledger.db",
        "AIRFLOW_CONN_WEIR_API": json.dumps(api),
        "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(spark),
    }


def examined(environment, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "weir_airflow.doctor.doctor", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert API_PASSWORD not in done.stdout
    assert SECRET not in done.stdout
    found = [Finding.from_json(json.loads(line)) for line in done.stdout.splitlines()]
    return {(each.area, each.name): each for each in found}


def test_all_areas_are_checked_and_what_does_not_answer_is_a_problem(environment):
    found = examined(environment)
    assert {area for area, _ in found} == {
        "settings",
        "ledger",
        "store",
        "airflow",
        "spark: spark_connect_weir",
    }
    assert found["store", "exclusive create"].status is Status.OK
    assert found["ledger", "revision"].status is Status.OK
    assert found["airflow", "plugin"].status is Status.OK
    assert found["spark: spark_connect_weir", "reachable"].status is Status.PROBLEM


def test_offline_no_server_is_asked(environment):
    assert {area for area, _ in examined(environment, "--offline")} == {"settings", "ledger", "store"}


def test_without_databases_the_place_of_the_store_is_told_and_its_id_is_not_judged(environment):
    found = examined(environment, "--offline", "--without-databases")
    assert {area for area, _ in found} == {"settings", "store"}
    assert found["store", "marker"].status is Status.UNKNOWN
    assert found["store", "place"].status is Status.OK


def test_without_settings_it_says_how_to_set_them(environment):
    bare = {key: value for key, value in environment.items() if not key.startswith("WEIR_")}
    found = examined(bare)
    assert found["settings", "Weir's settings"].status is Status.PROBLEM
    assert "WEIR_STORE" in found["settings", "Weir's settings"].found
    assert {area for area, _ in found} == {"settings"}


def test_an_option_of_the_section_weir_that_cannot_be_understood_is_a_problem(environment):
    found = examined({**environment, "AIRFLOW__WEIR__RESTART_STRATEGY_TIPE": "none"}, "--offline")
    finding = found["settings", "Weir's settings"]
    assert finding.status is Status.PROBLEM
    assert "no option 'restart_strategy_tipe'; did you mean 'restart-strategy.type'?" in finding.found


@pytest.mark.soak
def test_a_store_and_a_ledger_in_connections_are_examined(environment, tmp_path):
    bare = {key: value for key, value in environment.items() if not key.startswith("WEIR_")}
    store = {"conn_type": "aws", "login": "key-id", "password": SECRET, "extra": {"url": "s3://no-such-bucket/weir"}}
    ledger = {
        "conn_type": "postgres",
        "host": "127.0.0.1",
        "port": 1,
        "login": "weir",
        "password": SECRET,
        "schema": "w",
    }
    store["extra"]["endpoint_url"] = "http://127.0.0.1:1"
    found = examined(
        {**bare, "AIRFLOW_CONN_WEIR_STORE": json.dumps(store), "AIRFLOW_CONN_WEIR_LEDGER": json.dumps(ledger)},
        "--offline",
    )
    assert (
        found["settings", "Weir's settings"].found
        == "store by the connection weir_store, ledger by the connection weir_ledger"
    )
    assert found["ledger", "answers"].status is Status.PROBLEM
    assert found["store", "place"].found == "s3://no-such-bucket/weir"
    assert found["store", "marker"].status is Status.PROBLEM


def test_a_connection_that_is_not_defined_is_reported_with_an_example(environment):
    found = examined(environment, "--connection", "spark_missing")
    missing = found["spark: spark_missing", "connection"]
    assert missing.status is Status.PROBLEM
    assert "AIRFLOW_CONN_SPARK_MISSING" in missing.found


@pytest.mark.soak
def test_a_connection_that_was_created_in_airflow_s_ui_is_found(environment):
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        made = Connection(
            conn_id="made_in_the_ui", conn_type="spark_connect", host="127.0.0.1", port=2, password=SECRET
        )
        session.add(made)
    found = examined(environment, "--connection", "made_in_the_ui")
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="made_in_the_ui").delete()
    assert "127.0.0.1:2" in found["spark: made_in_the_ui", "reachable"].found


@pytest.mark.parametrize(
    ("executors", "ledger", "names"),
    [
        ("LocalExecutor", "sqlite:////l.db", []),
        ("airflow.executors.local_executor.LocalExecutor", "sqlite:////l.db", []),
        ("CeleryExecutor", "postgresql://db/weir", []),
        ("LocalExecutor,CeleryExecutor", "sqlite:////l.db", ["ledger of all workers"]),
        ("mine:my.module.EcsExecutor", "sqlite:////l.db", ["ledger of all workers"]),
    ],
)
def test_workers_on_several_machines_need_a_ledger_on_a_server(executors, ledger, names):
    from weir_airflow.doctor.doctor import ledger_findings

    assert [each.name for each in ledger_findings(executors, ledger)] == names


def test_ordinary_extras_of_a_connection_stay_readable(environment):
    """`cluster` is the deploy mode of this one, and no secret."""
    spark = {"conn_type": "spark", "host": "spark://nowhere:7077", "extra": {"deploy-mode": "cluster"}}
    found = examined({**environment, "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(spark)})
    master = found["spark: spark_connect_weir", "master"]
    assert "cluster" in master.found
    assert "***" not in master.found

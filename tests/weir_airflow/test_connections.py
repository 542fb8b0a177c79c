"""What Airflow's connections `weir_store` and `weir_ledger` say, and what is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured, Retryable
from weir.restarts.strategy import FixedDelay

STORE = "s3://bucket/weir"


def connection(conn_id="weir_store", **fields):
    from airflow.sdk import Connection

    if "extra" in fields and not isinstance(fields["extra"], str):
        fields["extra"] = json.dumps(fields["extra"])
    return Connection(conn_id=conn_id, **fields)


def store_of(**fields):
    from weir_airflow.connections.connections import store_connection

    return store_connection(connection(**fields))


def ledger_of(**fields):
    from weir_airflow.connections.connections import ledger_url

    return ledger_url(connection("weir_ledger", **fields))


@pytest.fixture
def environ(monkeypatch):
    """Set the environment of a process that has neither a store nor a ledger yet."""
    for name in ("WEIR_STORE", "WEIR_STORE_OPTIONS", "WEIR_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


@pytest.fixture
def supervisor(monkeypatch):
    """Make this process a task whose supervisor answers as told."""
    from airflow.sdk.execution_time import task_runner

    def answering(answer):
        class Supervisor:
            def send(self, _message):
                if isinstance(answer, Exception):
                    raise answer
                return answer

        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)

    return answering


def error(kind):
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return ErrorResponse(error=ErrorType[kind], detail={"status_code": 500})


def test_an_aws_connection_gives_the_options_of_s3fs():
    found = store_of(
        conn_type="aws",
        login="id",
        password="hush",
        extra={
            "url": STORE,
            "endpoint_url": "http://minio:9000",
            "region_name": "eu-central-1",
            "aws_session_token": "token",
            "verify": False,
            "config_kwargs": {"read_timeout": 5},
        },
    )
    assert found.url == STORE
    assert found.options == {
        "key": "id",
        "secret": "hush",
        "token": "token",
        "endpoint_url": "http://minio:9000",
        "config_kwargs": {"read_timeout": 5},
        "client_kwargs": {"region_name": "eu-central-1", "verify": False},
    }


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"extra": {"profile_name": "weir"}}, {"profile": "weir"}),
        ({"extra": {"aws_access_key_id": "i", "aws_secret_access_key": "s"}}, {"key": "i", "secret": "s"}),
        ({"extra": {"service_config": {"s3": {"endpoint_url": "http://m"}}}}, {"endpoint_url": "http://m"}),
        ({"extra": {"storage_options": {"use_ssl": False}}, "login": "i", "password": "s"},
         {"key": "i", "secret": "s", "use_ssl": False}),
        ({}, {}),
    ],
)  # fmt: skip
def test_an_aws_connection_may_be_spelt_as_airflow_spells_it(fields, options):
    assert store_of(conn_type="aws", **fields).options == options


@pytest.mark.parametrize("conn_type", ["google_cloud_platform", "wasb", "generic"])
def test_any_type_hands_storage_options_on_as_they_are(conn_type):
    options = {"token": {"private_key": "hush"}, "project": "p"}
    found = store_of(conn_type=conn_type, extra={"url": "gs://bucket/weir", "storage_options": options})
    assert (found.url, found.options) == ("gs://bucket/weir", options)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"conn_type": "postgres"}, "type 'postgres', which Weir does not know: use the type aws"),
        (
            {"conn_type": "aws", "extra": {"endpoint": "http://m"}},
            "its extra has endpoint, .* known are .*endpoint_url",
        ),
        ({"conn_type": "aws", "extra": {"role_arn": "arn:x"}}, "role_arn.* To assume a role, give it to the workers"),
        ({"conn_type": "aws", "host": "http://m"}, "has a host: set `endpoint_url`"),
        ({"conn_type": "aws", "login": "id"}, "only one of login .* and password"),
        ({"conn_type": "aws", "extra": "{hush"}, "its extra is not a JSON object"),
        ({"conn_type": "aws", "extra": {"url": 5}}, "`url` in its extra is a int, expected text"),
        ({"conn_type": "wasb", "extra": {"storage_options": "hush"}}, "`storage_options` .* is not a JSON object"),
        ({"conn_type": "wasb", "password": "hush", "extra": {"storage_options": {}}}, "a login, password or host"),
    ],
)
def test_what_would_be_ignored_is_refused_by_name_and_without_secrets(fields, says):
    with pytest.raises(
        Misconfigured, match=f"{says}", check=of_kind("connections.store_connection_unusable", conn_id="weir_store")
    ) as refused:
        store_of(**fields)
    assert "hush" not in str(refused.value)
    assert "AIRFLOW_CONN_WEIR_STORE=" in str(refused.value)


def test_a_postgres_connection_gives_the_ledgers_url():
    found = ledger_of(
        conn_type="postgres", host="db", port=5433, login="weir", password="h@u/sh", schema="weir",
        extra={"sslmode": "require"},
    )  # fmt: skip
    assert found == "postgresql+psycopg2://weir:h%40u%2Fsh@db:5433/weir?sslmode=require"


def test_a_postgres_connection_may_have_several_hosts():
    found = ledger_of(conn_type="postgres", host="a, b:5433", port=5432, login="weir", password="hush", schema="weir")
    assert found == "postgresql+psycopg2://weir:hush@/weir?host=a%3A5432&host=b%3A5433"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"conn_type": "mysql", "host": "db", "schema": "weir"}, "type 'mysql', expected 'postgres'"),
        ({"conn_type": "postgres", "schema": "weir"}, "has no host"),
        ({"conn_type": "postgres", "host": "db"}, "has no schema .the name of the database."),
        ({"conn_type": "postgres", "host": "db", "schema": "weir", "extra": "[1]"}, "extra .* is not a JSON object"),
    ],
)
def test_a_connection_that_leads_to_no_ledger_is_refused(fields, says):
    with pytest.raises(Misconfigured, match=f"connection weir_ledger.*{says}|{says}") as refused:
        ledger_of(password="hush", **fields)
    assert "hush" not in str(refused.value)


def test_a_process_without_a_supervisor_finds_the_connections_in_its_environment(environ):
    from weir_airflow.connections.connections import settings

    extra = {"url": STORE, "endpoint_url": "http://minio:9000"}
    environ(
        "AIRFLOW_CONN_WEIR_STORE",
        json.dumps({"conn_type": "aws", "login": "id", "password": "hush", "extra": extra}),
    )
    environ("AIRFLOW_CONN_WEIR_LEDGER", "postgresql://weir:hush@db/weir")
    found = settings()
    assert found.store == STORE
    assert found.store_options == {"key": "id", "secret": "hush", "endpoint_url": "http://minio:9000"}
    assert found.ledger == "postgresql+psycopg2://weir:hush@db/weir"
    assert "hush" not in repr(found)


def test_a_task_whose_airflow_says_that_there_is_no_connection_takes_it_for_missing(environ, supervisor):
    from weir_airflow.connections.connections import settings

    supervisor(error("CONNECTION_NOT_FOUND"))
    with pytest.raises(Misconfigured, check=of_kind("settings.key_unknown", key="store")):
        settings({"WEIR_LEDGER": "sqlite:////ledger.db"})
    found = settings({"WEIR_STORE": STORE, "WEIR_LEDGER": "sqlite:////ledger.db"})
    assert found.store_options == {}


def test_a_task_whose_airflow_does_not_answer_tries_again(environ, supervisor):
    from airflow.sdk.exceptions import AirflowRuntimeError

    from weir_airflow.connections.connections import settings

    supervisor(AirflowRuntimeError(error("API_SERVER_ERROR")))
    with pytest.raises(Retryable, check=of_kind("connections.airflow_silent", name="weir_store", what="connection")):
        settings({"WEIR_LEDGER": "sqlite:////ledger.db"})
    with pytest.raises(Retryable, check=of_kind("connections.airflow_silent", name="weir_ledger", what="connection")):
        settings({"WEIR_STORE": "/disk/store"})


def test_a_task_that_may_not_use_the_connection_says_so(environ, supervisor):
    from weir_airflow.connections.connections import settings

    supervisor(error("PERMISSION_DENIED"))
    with pytest.raises(Misconfigured, check=of_kind("connections.connection_refused", conn_id="weir_store")):
        settings({"WEIR_LEDGER": "sqlite:////ledger.db"})


def test_a_variable_is_found_in_the_environment_or_named(environ, supervisor):
    from weir_airflow.connections.connections import user_variable

    environ("AIRFLOW_VAR_CITY", "Oslo")
    assert user_variable("city") == "Oslo"
    supervisor(error("VARIABLE_NOT_FOUND"))
    with pytest.raises(Misconfigured, check=of_kind("connections.variable_unknown", key="land", type="LAND")):
        user_variable("land")


def test_a_task_whose_airflow_does_not_answer_about_a_variable_tries_again(environ, supervisor):
    from weir_airflow.connections.connections import user_variable

    supervisor(error("API_SERVER_ERROR"))
    with pytest.raises(Retryable, check=of_kind("connections.airflow_silent", name="land", what="variable")):
        user_variable("land")
    supervisor(error("PERMISSION_DENIED"))
    with pytest.raises(Misconfigured, check=of_kind("connections.variable_refused", key="land")):
        user_variable("land")


def test_the_options_are_hidden_in_airflows_logs(environ):
    from airflow.sdk._shared.secrets_masker import redact

    from weir_airflow.connections.connections import settings

    options = {"key": "the key's id", "account_key": "the account's key", "client_kwargs": {"region_name": "eu-west-1"}}
    settings({"WEIR_STORE": STORE, "WEIR_STORE_OPTIONS": json.dumps(options), "WEIR_LEDGER": "sqlite:////l.db"})
    assert redact("the key's id and the account's key in eu-west-1") == "*** and *** in eu-west-1"


ASKS = """
from datetime import UTC, datetime
from airflow.sdk import DAG, task

with DAG("asks", schedule=None, start_date=datetime(2013, 1, 1, tzinfo=UTC)):
    @task
    def ask():
        from weir.errors import WeirError
        from weir_airflow.connections.connections import settings

        try:
            found = settings({})
        except WeirError as error:
            return f"{type(error).__name__}: {error}"
        assert found.store_options["secret"] == "hush-hush"
        return f"{found.store} {found.ledger}"

    ask()
"""


@pytest.fixture
def ask_in_a_task(airflow_home, environ):
    """Ask for the settings in a task of a real Airflow, whose connections are in its database."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.connection import Connection
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    file = airflow_home / "dags" / "asks.py"
    file.write_text(ASKS)
    bag = DagBag(str(file), bundle_name="dags-folder")

    def ask(day, *connections):
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id.like("weir_%")).delete()
            session.add_all(Connection(**fields) for fields in connections)
        run = bag.dags["asks"].test(logical_date=datetime(2013, 1, day, tzinfo=UTC))
        with create_session() as session:
            [pushed] = session.query(XComModel).filter_by(dag_id="asks", run_id=run.run_id, key="return_value")
            return pushed.value

    yield ask
    file.unlink()


def test_a_task_finds_store_and_ledger_in_airflows_database(ask_in_a_task):
    extra = json.dumps({"url": STORE, "endpoint_url": "http://minio:9000"})
    store = {"conn_id": "weir_store", "conn_type": "aws", "login": "id", "password": "hush-hush", "extra": extra}
    ledger = {"conn_id": "weir_ledger", "conn_type": "postgres", "host": "db", "login": "weir", "schema": "weir"}
    assert ask_in_a_task(1, store, ledger) == f"{STORE} postgresql+psycopg2://weir@db/weir"
    assert "Weir does not know its ledger" in ask_in_a_task(2, store)
    assert "Misconfigured: Weir does not know its store" in ask_in_a_task(3, ledger)


SAYS = """
from weir_airflow.connections.connections import settings

found = settings().recovery
print(repr(found.restart.resolved()), found.budgets.backtracks, sep="|")
"""


@pytest.mark.parametrize("has_file", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_options_of_restarts_are_found_in_the_file_and_in_the_environment(tmp_path, has_file):
    """Airflow reads its configuration once, so this takes a process of its own."""
    text = "[weir]\nrestart-strategy.type = fixed-delay\nrestart-strategy.fixed-delay.attempts = 4\n"
    (tmp_path / "airflow.cfg").write_text(text if has_file else "[core]\n")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__WEIR", "WEIR_"))},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__WEIR__STORE": str(tmp_path),
        "AIRFLOW__WEIR__LEDGER": "sqlite:////ledger.db",
        "AIRFLOW__WEIR__RESTART_STRATEGY_FIXED_DELAY_DELAY": "7 s",
        "AIRFLOW__WEIR__RESTART_STRATEGY_TYPE": "fixed-delay",
        "AIRFLOW__WEIR__MAXIMUM_BACKTRACKS": "3",
    }
    said = subprocess.run([sys.executable, "-c", SAYS], env=environ, check=True, capture_output=True, text=True).stdout
    expected = FixedDelay(4 if has_file else 1, 7_000)
    assert said.splitlines()[-1] == f"{expected!r}|3"

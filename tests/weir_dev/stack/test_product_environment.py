"""What a stack tells the product: the file that `weir.local_stack` reads."""

import stat
from dataclasses import replace

import pytest

from weir.local_stack import FILE_NAME, PROJECT_VARIABLE, STATE_FOLDER, local_stack
from weir_dev.stack.airflow_environment import API, SPARK
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.product_environment import product_environment, write_product_environment
from weir_dev.stack.state import Database, Phase, StackState

UP = StackState(phase=Phase.UP, ports={API: 8081, SPARK: 15003, "postgres": 5433})
DOWN = StackState(phase=Phase.DOWN, ports=UP.ports)


@pytest.fixture
def request_(stack_request, tmp_path):
    """The request of a stack of a project; its state folder is there."""
    folder = tmp_path / STATE_FOLDER
    folder.mkdir()
    return replace(stack_request(), folder=folder, environment={})


@pytest.fixture
def in_sqlite(request_):
    return replace(request_, database=Database.SQLITE)


def test_a_stack_that_is_down_has_a_ledger_and_a_store_and_makes_nothing_else(in_sqlite):
    ledger, store = f"sqlite:///{in_sqlite.folder}/ledger.db", f"{in_sqlite.folder}/store"
    found = product_environment(in_sqlite, DOWN)
    assert (found.environment, found.ledger_problem) == ({"WEIR_LEDGER": ledger, "WEIR_STORE": store}, "")
    assert list(in_sqlite.folder.iterdir()) == []


def test_a_stack_that_is_up_has_the_addresses_of_airflow_and_spark(in_sqlite):
    credentials = load_or_create(in_sqlite.folder)
    found = product_environment(in_sqlite, UP).environment
    assert found["WEIR_API"] == f"http://weir:{credentials.service_password}@127.0.0.1:8081"
    assert found["WEIR_SPARK_REMOTE"] == f"sc://localhost:15003/;token={credentials.spark_token}"


def test_a_ledger_in_the_stack_s_postgresql_is_out_of_reach_while_it_is_down(request_):
    (request_.folder / "postgres").mkdir()
    (request_.folder / "postgres" / "password").write_text("hush")
    up = product_environment(request_, UP)
    assert up.environment["WEIR_LEDGER"] == "postgresql+psycopg2://weir:hush@127.0.0.1:5433/weir"
    assert up.ledger_problem == ""
    assert "./weir up" in product_environment(request_, DOWN).ledger_problem


def test_a_ledger_and_a_store_elsewhere_are_named(in_sqlite):
    elsewhere = {"WEIR_STORE": "s3://bucket/weir", "WEIR_LEDGER": "postgresql://elsewhere/weir"}
    assert product_environment(replace(in_sqlite, environment=elsewhere), DOWN).environment == elsewhere


def test_the_product_reads_what_a_stack_has_written_and_no_other_user_can(in_sqlite, monkeypatch):
    monkeypatch.setenv(PROJECT_VARIABLE, str(in_sqlite.folder.parent))
    assert local_stack() is None
    for state in (UP, DOWN):
        write_product_environment(in_sqlite, state)
        assert local_stack() == product_environment(in_sqlite, state)
    assert stat.S_IMODE((in_sqlite.folder / FILE_NAME).stat().st_mode) == 0o600

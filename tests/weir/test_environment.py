"""The environment of a command: the variables that are set, else the local stack of this checkout."""

import pytest

from weir import environment
from weir.environment import command_environment, open_store, opened_services, settings
from weir.errors import Misconfigured
from weir.testing.fakes.ledgers import new_ledger
from weir_dev.stack.airflow_environment import API, SPARK
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.state import Phase, StackState, write_state


@pytest.fixture
def stack_folder(tmp_path, monkeypatch):
    """The state folder of a local stack that was never started."""
    folder = tmp_path / "stack"
    folder.mkdir()
    monkeypatch.setattr("weir_dev.stack.local.state_folder", lambda: folder)
    return folder


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A process whose environment names a ledger that does not exist yet, and a store."""
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/own.db")
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "own"))
    return tmp_path


@pytest.mark.parametrize("name", ["WEIR_STORE", "WEIR_LEDGER"])
def test_an_environment_with_a_store_or_a_ledger_does_not_use_the_local_stack(stack_folder, name):
    assert command_environment({name: "x", "HOME": "/home"}) == {name: "x", "HOME": "/home"}


def test_a_bare_environment_uses_ledger_and_store_of_the_local_stack(stack_folder):
    ledger, store = f"sqlite:///{stack_folder}/ledger.db", f"{stack_folder}/store"
    assert command_environment({"HOME": "/home"}) == {"HOME": "/home", "WEIR_LEDGER": ledger, "WEIR_STORE": store}
    assert (settings({}).ledger, settings({}).store) == (ledger, store)


def test_a_ledger_in_the_stack_s_postgresql_is_named_and_without_a_running_stack_the_command_to_type(stack_folder):
    (stack_folder / "postgres").mkdir()
    (stack_folder / "postgres" / "password").write_text("hush")
    load_or_create(stack_folder)
    write_state(stack_folder, StackState(phase=Phase.UP, ports={"postgres": 5433}))
    assert command_environment({})["WEIR_LEDGER"] == "postgresql+psycopg2://weir:hush@127.0.0.1:5433/weir"
    write_state(stack_folder, StackState(phase=Phase.DOWN, ports={"postgres": 5433}))
    with pytest.raises(Misconfigured, match=r"runs while the stack is up: type \./weir up"), opened_services():
        pass


def test_reading_the_environment_creates_nothing(stack_folder):
    command_environment({})
    assert list(stack_folder.iterdir()) == []


def test_a_local_stack_that_is_up_has_the_addresses_of_airflow_and_spark(stack_folder):
    credentials = load_or_create(stack_folder)
    password = credentials.service_password
    ports = {API: 8081, SPARK: 15003}
    write_state(stack_folder, StackState(phase=Phase.UP, ports=ports))
    found = command_environment({})
    assert found["WEIR_API"] == f"http://weir:{password}@127.0.0.1:8081"
    assert found["WEIR_SPARK_REMOTE"] == f"sc://localhost:15003/;token={credentials.spark_token}"
    write_state(stack_folder, StackState(phase=Phase.DOWN, ports=ports))
    assert command_environment({}).keys() == {"WEIR_LEDGER", "WEIR_STORE"}


def test_an_address_that_is_set_is_not_replaced_by_that_of_the_local_stack(stack_folder):
    load_or_create(stack_folder)
    write_state(stack_folder, StackState(phase=Phase.UP, ports={API: 8081, SPARK: 15003}))
    found = command_environment({"WEIR_SPARK_REMOTE": "sc://other:1"})
    assert found["WEIR_SPARK_REMOTE"] == "sc://other:1"
    assert found["WEIR_API"].endswith("@127.0.0.1:8081")


def test_a_wheel_of_weir_has_no_local_stack(stack_folder, monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    assert command_environment({"HOME": "/home"}) == {"HOME": "/home"}
    with pytest.raises(Misconfigured, match="WEIR_STORE"):
        settings({})


def test_a_missing_ledger_is_an_error_that_names_it_and_is_not_created(own):
    with pytest.raises(Misconfigured, match=f"there is no ledger {own}/own.db yet"), opened_services():
        pass
    assert list(own.iterdir()) == []


def test_a_missing_ledger_is_created_where_a_command_may_begin_with_an_empty_one(own):
    with opened_services(may_be_new=True) as services:
        assert services.store.url == f"file://{own}/own"
    assert (own / "own.db").exists()


def test_the_ledger_and_the_store_of_the_environment_are_opened(own):
    new_ledger(own / "own.db").close()
    with opened_services() as services, services.ledger.transaction() as session:
        assert str(session.get_bind().url).endswith("own.db")


def test_another_store_gets_the_options_only_if_it_has_the_same_scheme(monkeypatch, own):
    monkeypatch.setenv("WEIR_STORE", f"file://{own}/own")
    monkeypatch.setenv("WEIR_STORE_OPTIONS", '{"timeout": "soon"}')
    assert open_store("memory://other").url == "memory://other"
    with pytest.raises(Misconfigured, match="soon"):
        open_store(f"file://{own}/other")

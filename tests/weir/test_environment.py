"""The environment of a command: the variables that are set, else the local stack of the project."""

import json

import pytest
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind

from weir.environment import command_environment, opened_services, settings
from weir.errors import Misconfigured
from weir.local_stack import FILE_NAME, PROJECT_VARIABLE, STATE_FOLDER, LocalStack


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder of a project whose stack was never started, and an environment that names nothing else."""
    for name in ("WEIR_STORE", "WEIR_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(PROJECT_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def stack(project):
    """What the local stack of the project has written."""
    found = LocalStack(
        {"WEIR_STORE": f"{project}/store", "WEIR_LEDGER": f"sqlite:///{project}/ledger.db", "WEIR_API": "http://here"}
    )
    write(project, found.to_json())
    return found


def write(project, text):
    (project / STATE_FOLDER).mkdir(exist_ok=True)
    (project / STATE_FOLDER / FILE_NAME).write_text(text)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A process whose environment names a ledger that does not exist yet, and a store."""
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/own.db")
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "own"))
    return tmp_path


@pytest.mark.parametrize("name", ["WEIR_STORE", "WEIR_LEDGER"])
def test_an_environment_with_a_store_or_a_ledger_does_not_use_the_local_stack(stack, name):
    assert command_environment({name: "x", "HOME": "/home"}) == {name: "x", "HOME": "/home"}


def test_a_bare_environment_uses_ledger_and_store_of_the_local_stack(stack):
    assert command_environment({"HOME": "/home"}) == {"HOME": "/home", **stack.environment}
    found = settings({})
    assert (found.ledger, found.store) == (stack.environment["WEIR_LEDGER"], stack.environment["WEIR_STORE"])


def test_an_address_that_is_set_is_not_replaced_by_that_of_the_local_stack(stack):
    assert command_environment({"WEIR_API": "http://other"})["WEIR_API"] == "http://other"


def test_why_a_ledger_is_out_of_reach_is_told_by_the_stack(project):
    write(project, LocalStack({"WEIR_STORE": "s", "WEIR_LEDGER": "l"}, "it is down: type ./weir up").to_json())
    with pytest.raises(Misconfigured, match=r"type \./weir up"), opened_services():
        pass


def test_where_no_stack_was_ever_started_nothing_is_read_or_created(project):
    assert command_environment({"HOME": "/home"}) == {"HOME": "/home"}
    with pytest.raises(Misconfigured, check=of_kind("settings.key_unknown", type="STORE")):
        settings({})
    with pytest.raises(Misconfigured, check=of_kind("environment.no_ledger")), opened_services():
        pass
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"version": 2, "environment": {}, "ledger_problem": ""})])
def test_a_file_that_this_weir_does_not_understand_is_refused_with_its_path(project, text):
    write(project, text)
    with pytest.raises(Misconfigured, match=f"{FILE_NAME}", check=of_kind("local_stack.unreadable")):
        command_environment({})


def test_a_missing_ledger_is_an_error_that_names_it_and_is_not_created(own):
    with pytest.raises(Misconfigured, match=f"{own}", check=of_kind("environment.no_ledger")), opened_services():
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

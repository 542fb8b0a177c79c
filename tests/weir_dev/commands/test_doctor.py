"""Which deployment `./weir doctor` examines."""

import pytest

from weir_dev.commands.doctor import ENVIRONMENT, subject_of


@pytest.fixture
def no_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_a_bare_environment_is_that_of_the_local_stack(no_environment):
    assert subject_of(here=False).about.startswith("the local stack in ")
    assert subject_of(here=True).about == "this environment"


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_an_environment_with_a_store_is_examined_instead_of_the_local_stack(no_environment, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    found = subject_of(here=False)
    assert (found.about, found.environment[name]) == ("this environment", "x")

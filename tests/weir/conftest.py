"""Fixtures of a world with the small dataflow."""

import pytest
from tests.builders.ledgers import copied_ledger, fast_folder
from tests.postgres_ledgers import fill
from tests.weir.small_dataflow import FirstDays, World, ladder


@pytest.fixture
def tmp_path():
    """A folder in memory: these tests commit by the thousand."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def database():
    """What the ledger is on, if no test and no module of tests says otherwise."""
    return "sqlite"


@pytest.fixture(scope="session", autouse=True)
def first_days():
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "computed", FirstDays(folder))
        yield


@pytest.fixture
def world(request, tmp_path, database):
    on_postgresql = request.getfixturevalue("empty_postgres_ledger") if database == "postgresql" else None
    return World(tmp_path, ladder(), on_postgresql)


@pytest.fixture
def copied(request, database):
    """Opens the ledger of a saved world that goes on: on PostgreSQL it has the same rows."""
    if database == "sqlite":
        return copied_ledger
    empty_ledger = request.getfixturevalue("empty_postgres_ledger")
    return lambda path: fill(empty_ledger(), copied_ledger(path))


@pytest.fixture
def done(world):
    """A world in which a run has gone through."""
    world.run_first(1)
    return world

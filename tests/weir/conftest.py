"""Fixtures of a world with the small dataflow."""

import pytest
from tests.weir.small_dataflow import World, ladder

from weir.testing.fakes.ledgers import fast_folder


@pytest.fixture
def tmp_path():
    """A folder in memory: these tests commit by the thousand."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def database():
    """What the ledger is on, if no test and no module of tests says otherwise."""
    return "sqlite"


@pytest.fixture
def world(request, tmp_path, database):
    on_postgresql = request.getfixturevalue("empty_postgres_ledger") if database == "postgresql" else None
    return World(tmp_path, ladder(), on_postgresql)

"""Fixtures of a world whose results are real Parquet files, without Spark."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.small_dataflow import ladder


@pytest.fixture
def environment(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)


@pytest.fixture
def world(tmp_path, environment):
    return ReaderWorld(tmp_path, ladder())


@pytest.fixture(scope="session")
def went_through():
    """A world in which one run has gone through: made once, and copied."""
    with fast_folder() as folder:
        world = ReaderWorld(folder, ladder())
        world.run()
        world.ledger.close()
        yield world


@pytest.fixture
def done(went_through, tmp_path, environment):
    return went_through.copied(tmp_path)

"""Fixtures of a world whose results are real Parquet files, without Spark."""

import pytest
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.small_dataflow import ladder

from weir.testing.fakes.ledgers import fast_folder


@pytest.fixture
def tmp_path():
    """A folder in memory: these tests commit by the thousand."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def world(tmp_path, environment):
    (tmp_path / "store").mkdir()
    return ReaderWorld(tmp_path, ladder())


@pytest.fixture(scope="session")
def went_through():
    """A world in which one run has gone through: made once, and copied."""
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = ReaderWorld(folder, ladder())
        world.run()
        world.ledger.close()
        yield world


@pytest.fixture
def done(went_through, tmp_path, environment):
    return went_through.copied(tmp_path)

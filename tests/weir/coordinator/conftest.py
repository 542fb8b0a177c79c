"""A small dataflow on a real SQLite ledger and a real store, under the fake Airflow."""

import pytest

from weir.coordinator.services import Services
from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir.store.store import Store
from weir.testing.airflow import FakeAirflow
from weir.testing.engine import FakeEngine
from weir.testing.ledgers import fast_folder, new_ledger


def ladder(parallelism: int = 2) -> Dataflow:
    """Raw into clean (pipelined), by key into joined with weather, by key into totals and routes, into a report."""
    return Dataflow(
        "ladder",
        [
            source("raw", "pipelines.ladder:raw", parallelism=parallelism),
            Stage("clean", "pipelines.ladder:clean", [pipelined("raw")], parallelism=parallelism),
            source("weather", "pipelines.ladder:weather"),
            Stage(
                "joined",
                "pipelines.ladder:joined",
                [blocking("clean", by="k"), blocking("weather", by="k")],
                parallelism=2,
            ),
            Stage("totals", "pipelines.ladder:totals", [blocking("joined", by="k")], parallelism=2),
            Stage("routes", "pipelines.ladder:routes", [blocking("joined", by="k")]),
            Stage("report", "pipelines.ladder:report", [blocking("totals"), blocking("routes")]),
            sink("report", "delays"),
        ],
    )


class World:
    """Everything a scenario needs, in one place."""

    def __init__(self, folder, flow):
        self.store = Store.open(f"file://{folder}/store")
        self.ledger = new_ledger(folder / "ledger.db")
        self.content = {}
        self.services = Services(self.ledger, self.store, now=lambda: self.airflow.time)
        self.airflow = FakeAirflow(self.services, FakeEngine(self.store, self.content), flow)


@pytest.fixture
def tmp_path():
    """A folder in memory: these tests commit by the thousand."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def world(tmp_path):
    (tmp_path / "store").mkdir()
    return World(tmp_path, ladder())

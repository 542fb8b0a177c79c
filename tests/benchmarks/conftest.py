"""Benchmarks, for a machine that does nothing else: `pytest tests/benchmarks --benchmark-only -s`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.store.store import Store
from weir.testing.spark_server import TestServer
from weir_spark.session import active, configure


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("benchmark_only", default=False):
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason="a benchmark: ask for it by --benchmark-only"))


@pytest.fixture(scope="session")
def spark(server: TestServer) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(f"{server.url}/;user_id=weir;session_id={uuid.uuid4()}").create()
    configure(session, {})
    with active(session):
        yield session
    session.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = Store.open(str(tmp_path_factory.mktemp("store")))
    opened.initialise()
    return opened

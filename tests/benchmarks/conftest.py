"""Benchmarks, for a machine that does nothing else: `pytest tests/benchmarks --benchmark-only -s`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.servers.spark import TestServer, running_server

from weir.store.store import Store
from weir_spark.session import active, configure

HERE = Path(__file__).parent
sys.path += [
    str(HERE / "overhead"),
    str(HERE / "flip1"),
    str(HERE / "state"),
    str(HERE / "figures"),
    str(HERE / "alignment"),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("overhead", "the overhead benchmark")
    group.addoption("--overhead-rounds", type=int, help="how often each variant runs (3)")
    group.addoption("--overhead-copies", help="how often each flight is there, separated by commas (1)")
    group.addoption("--overhead-variants", help="which variants run, separated by commas (all)")
    group.addoption("--state-keys", type=int, default=5_000_000, help="how many keys the state has (5000000)")
    group.addoption("--quality-rows", default="4000000,24000000", help="how many rows the checked regions have")
    group.addoption("--quality-suites", help="by which suites they are checked, separated by commas (all)")
    group.addoption("--sink-rows", type=int, default=10_000_000, help="how many rows a version has (10000000)")
    group.addoption(
        "--window-rows", type=int, default=1_000_000, help="how many rows an epoch of windows has (1000000)"
    )
    group.addoption("--figures-sizes", default="0.1,1", help="GB of state, separated by commas (0.1,1)")
    group.addoption("--figures-subtasks", default="1,2,4,8", help="parallelisms that wait (1,2,4,8), in the first size")
    group.addoption("--figures-means", default="40,20,10", help="seconds between failures, besides never (40,20,10)")
    group.addoption("--figures-arms", default="region,full,plain", help="who meets them (region,full,plain)")
    group.addoption("--figures-work", type=float, default=4.0, help="seconds that each stage works (4)")
    group.addoption("--figures-seeds", default="1", help="sequences of failures (1)")
    group.addoption("--figures-patience", type=float, default=90.0, help="seconds until a run is given up (90)")
    group.addoption("--figures-folder", type=Path, help="where results and figures are kept (docs/figures)")
    group.addoption(
        "--alignment-shapes",
        default="1x1,2x1,4x1,8x1,4x2,4x4",
        help="parallelisms and shuffles, separated by commas (1x1,2x1,4x1,8x1,4x2,4x4)",
    )
    group.addoption("--alignment-rounds", type=int, default=3, help="how many epochs of each are measured (3)")
    group.addoption("--reuse-days", type=int, default=4, help="how many days are run, and run again (4)")
    group.addoption("--overhead-report", type=Path, help="folder for the table, and for measurements to add to")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("benchmark_only", default=False):
        return
    for item in items:
        if item.path.is_relative_to(HERE) and "benchmark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="a benchmark: ask for it by --benchmark-only"))


@pytest.fixture(scope="session")
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], AbstractContextManager[TestServer]]:
    """Start a server that collects all garbage as often as a stack's does: those of other tests stop for it at 10 s."""
    return lambda: running_server(tmp_path_factory.mktemp("spark-server"), collects_every="1min")


@pytest.fixture(scope="session")
def spark(server: TestServer) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(f"{server.url};user_id=weir;session_id={uuid.uuid4()}").create()
    configure(session, {})
    with active(session):
        yield session
    session.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = Store.open(str(tmp_path_factory.mktemp("store")))
    opened.initialise()
    return opened

"""One Spark Connect server for all tests of a run, sessions in it, and small pipelines to run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.results.layout import PLAIN, Layout
from weir.results.region_job import InputToRead, OutputReport, OutputToWrite, PartitionToRead, RegionJob, StageToRun
from weir.store.store import Store
from weir.testing.spark_server import TestServer, running_server
from weir_spark.session import configure


@pytest.fixture(scope="session")
def new_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], AbstractContextManager[TestServer]]:
    """Start one more server, for a test that wants to lose it."""
    return lambda: running_server(tmp_path_factory.mktemp("spark-server"))


@pytest.fixture(scope="session")
def server(new_server: Callable[[], AbstractContextManager[TestServer]]) -> Iterator[TestServer]:
    with new_server() as started:
        yield started


@pytest.fixture(scope="session")
def session_of(server: TestServer) -> Iterator[Callable[[], SparkSession]]:
    """Make a session as Weir configures it; all end with the tests."""
    made: list[SparkSession] = []

    def make() -> SparkSession:
        session = SparkSession.builder.remote(f"{server.url}/;user_id=weir;session_id={uuid.uuid4()}").create()
        configure(session, {})
        made.append(session)
        return session

    yield make
    for session in made:
        session.stop()


@pytest.fixture(scope="session")
def spark(session_of: Callable[[], SparkSession]) -> SparkSession:
    return session_of()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of stage functions and return its name, which no other test has."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str) -> str:
        name = f"pipeline_{uuid.uuid4().hex[:12]}"
        (folder / f"{name}.py").write_text(text)
        return name

    return write


@dataclass(frozen=True)
class Jobs:
    """Builds what the operator would ask for."""

    store: Store

    def output(self, stage: str, layout: Layout = PLAIN, *, subtask: int = 0) -> OutputToWrite:
        folder = f"flow/20130101T000000Z/{stage}/{layout.id}/{subtask}/t0001-{uuid.uuid4().hex[:12]}"
        return OutputToWrite(layout, folder, self.store.spark_url(folder))

    def stage(self, name: str, function: str, *outputs: OutputToWrite, **more: object) -> StageToRun:
        given = {"is_source": False, "subtask": 0, "parallelism": 1, "pipelined": {}, "inputs": (), **more}
        return StageToRun(name=name, function=function, outputs=outputs, **given)  # type: ignore[arg-type]

    def region(self, *stages: StageToRun, **more: object) -> RegionJob:
        attempt = f"t0001-{uuid.uuid4().hex[:12]}"
        given = {
            "attempt": attempt,
            "dataflow": "flow",
            "epoch": "20130101T000000Z",
            "interval": ("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
            "region": "-".join(stage.name for stage in stages)[:60],
            "subtask": 0,
            "store": self.store.url,
            "report": f"flow/20130101T000000Z/_regions/r/0/{attempt}/report.json",
            "parameters": {},
            **more,
        }
        return RegionJob(stages=stages, **given)  # type: ignore[arg-type]

    def read(self, argument: str, *reports: OutputReport, key_groups: tuple[int, int] | None = None) -> InputToRead:
        partitions = tuple(
            PartitionToRead(each.stage, subtask, self.files(each)) for subtask, each in enumerate(reports)
        )
        first = reports[0]
        return InputToRead(argument, first.layout, first.spark_schema, partitions, key_groups)

    def files(self, report: OutputReport) -> tuple[str, ...]:
        folder = report.folder
        return tuple(self.store.spark_url(f"{folder}/{file.name}") for file in report.files)


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)

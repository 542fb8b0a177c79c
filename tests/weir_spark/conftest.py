"""One Spark Connect server for all tests of a run, sessions in it, and small pipelines to run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from weir_spark.session import configure

from weir.results.layout import PLAIN, Layout
from weir.results.region_job import InputToRead, OutputToWrite, PartitionToRead, RegionJob, StageToRun
from weir.store.store import Store

_START_SECONDS = 90


@dataclass(frozen=True)
class Server:
    """A Spark Connect server of its own process group."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self, how: signal.Signals) -> None:
        os.killpg(self.process.pid, how)
        self.process.wait(30)


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[2]", "--driver-memory", "2g"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.ui.enabled=false"),
        "spark-internal",
    ]
    home = Path(pyspark.__file__).parent
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    children: set[int] = set()
    try:
        _wait_for(port, process, folder / "server.log")
        yield Server(f"sc://127.0.0.1:{port}", process)
        children = _descendants(process.pid)
    finally:
        _stop(process, children)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"the Spark Connect server did not start:\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes], children: set[int]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    for pid in children:  # Python workers have a process group of their own
        if Path(f"/proc/{pid}").exists() and b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {root}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("java") is None:
        pytest.fail("no Java on the PATH: start the tests by ./weir test, which brings one")
    with running_server(tmp_path_factory.mktemp("spark-server")) as started:
        yield started


@pytest.fixture(scope="session")
def session_of(server: Server) -> Iterator[Callable[[], SparkSession]]:
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

    def read(self, argument: str, *reports: object, key_groups: tuple[int, int] | None = None) -> InputToRead:
        partitions = tuple(
            PartitionToRead(each.stage, subtask, self.files(each))  # type: ignore[attr-defined]
            for subtask, each in enumerate(reports)
        )
        first = reports[0]
        return InputToRead(argument, first.layout, first.spark_schema, partitions, key_groups)  # type: ignore[attr-defined]

    def files(self, report: object) -> tuple[str, ...]:
        folder = report.folder  # type: ignore[attr-defined]
        return tuple(self.store.spark_url(f"{folder}/{file.name}") for file in report.files)  # type: ignore[attr-defined]


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)

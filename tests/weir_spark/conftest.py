"""Small pipelines to run, and a store to run them on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.builders.jobs import Jobs
from tests.servers.faulty_http import FaultyHttp
from tests.servers.java import JarsMissing
from tests.servers.s3 import running_s3
from tests.weir_spark.drivers import Drivers
from tests.weir_spark.s3a import BUCKET, server_on_s3

from weir.formats.codec import from_json, to_json
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import FAILURE_NAME, RegionReport
from weir.store.errors import NotFound
from weir.store.store import Store
from weir_spark.session import configure
from weir_spark.transport import progress

DRIVER = """
from weir_spark.transport.driver import main

def answer(*jobs):
    return [main([job]) for job in jobs]
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


@pytest.fixture
def seen_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is logged soon: for tests that wait until Spark computes."""
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 2.0)


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


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    """The process of drivers that tests share."""
    started = Drivers(tmp_path_factory.mktemp("drivers"))
    yield started
    started.close()


@pytest.fixture
def codes_in_driver(store, drivers):
    """Run jobs as spark-submit does, one after the other, each in a session of its own: the exit codes."""

    def submit(*submitted):
        for job in submitted:
            store.create(f"{job.folder}/job.json", to_json(job))
        return drivers.run(DRIVER, *(f"{store.url}/{job.folder}/job.json" for job in submitted))

    return submit


@pytest.fixture
def ends_in_driver(store, codes_in_driver):
    """Run jobs likewise: the report or the failure of each."""

    def submit(*submitted):
        codes_in_driver(*submitted)
        ends = []
        for job in submitted:
            try:
                ends.append(from_json(RegionFailure, store.read(f"{job.folder}/{FAILURE_NAME}")))
            except NotFound:
                ends.append(from_json(RegionReport, store.read(job.report)))
        return ends

    return submit


@pytest.fixture(scope="session")
def s3_server():
    """The one S3 that tests share, with a bucket."""
    with running_s3() as started:
        started.make_bucket(BUCKET)
        yield started


@pytest.fixture(scope="session")
def shared_proxy(s3_server):
    with FaultyHttp(s3_server.url).running() as running:
        yield running


@pytest.fixture
def proxy(shared_proxy):
    """What is between Spark and the S3; Weir's own requests do not pass it."""
    shared_proxy.heal()
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture(scope="session")
def s3a_server(shared_proxy, tmp_path_factory):
    """The one Connect server that reaches the S3; tests are skipped where its connector cannot be had."""
    try:
        with server_on_s3(tmp_path_factory.mktemp("spark-on-s3"), shared_proxy.url) as started:
            yield started
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def s3a_session(s3a_server):
    made = SparkSession.builder.remote(f"{s3a_server.url};user_id=weir;session_id={uuid.uuid4()}").create()
    configure(made, {})
    yield made
    made.stop()

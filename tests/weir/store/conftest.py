"""Stores of each kind: a local disk, memory, a real S3, and a real HDFS."""

import uuid

import pytest
from tests.servers.faulty_http import FaultyHttp
from tests.servers.s3 import options_of, running_s3

from weir.store.store import Store

BUCKET = "weir-of-tests"


@pytest.fixture(scope="session")
def s3_server():
    """The one S3 that tests share, with one bucket."""
    with running_s3() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def s3_url():
    """A place in the bucket for this test alone."""
    return f"s3://{BUCKET}/{uuid.uuid4()}/weir"


@pytest.fixture(scope="session")
def shared_proxy(s3_server):
    with FaultyHttp(s3_server.url).running() as running:
        yield running


@pytest.fixture
def proxy(shared_proxy):
    """A proxy before the S3, which breaks chosen requests."""
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture
def open_s3(s3_url, proxy):
    """Open this test's store on S3 through the proxy, once more or with other options."""
    return lambda **options: Store.open(s3_url, options_of(proxy.url) | options)


@pytest.fixture
def s3(open_s3, proxy):
    """A store on S3 through the proxy, ready; the proxy has seen nothing yet."""
    opened = open_s3(timeout=20)
    opened.initialise()
    proxy.heal()
    return opened


def opening(request, tmp_path):
    """What opens this test's store, of the kind that the request names, once more."""
    if request.param == "hdfs":
        server, place = request.getfixturevalue("hdfs_server"), request.getfixturevalue("hdfs_url")
        return lambda: Store.open(place, server.storage_options)
    if request.param == "s3":
        server, place = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_url")
        return lambda: Store.open(place, server.storage_options)
    url = str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}"
    return lambda: Store.open(url)


@pytest.fixture(params=["local", "memory", "s3", "hdfs"])
def reopen(request, tmp_path):
    """Open this test's store, once more."""
    return opening(request, tmp_path)


@pytest.fixture
def store(reopen):
    """A store of each kind."""
    opened = reopen()
    opened.initialise()
    return opened

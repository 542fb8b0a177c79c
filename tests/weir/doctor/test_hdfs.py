"""The checks of a store in a real HDFS, whose NameNode is also made to say other things of itself."""

import json
from urllib.parse import urlsplit

import pytest
from tests.servers.faulty_http import FaultyHttp
from tests.servers.hadoop import BLOCK_BYTES, VERSION

from weir.doctor.examination import Status, examine
from weir.doctor.store import store_checks
from weir.store.store import Store


@pytest.fixture
def namenode(hdfs_server):
    """A proxy before the NameNode."""
    with FaultyHttp(f"http://{hdfs_server.http}").running() as running:
        yield running


@pytest.fixture
def store(hdfs_server, hdfs_url, namenode):
    opened = Store.open(hdfs_url, hdfs_server.storage_options | {"namenodes": urlsplit(namenode.url).netloc})
    opened.initialise()
    return opened


def checked(store):
    ids = (str(store.initialise()),)
    return {each.name: each for each in examine([store_checks(store, lambda: ids)])}


def test_a_store_in_hdfs_is_described_and_unchanged(store):
    found = checked(store)
    assert found["NameNodes"].status is Status.OK
    assert f"active, Hadoop {VERSION}" in found["NameNodes"].found
    assert (found["replicas"].status, found["replicas"].found) == (Status.WARNING, "1")
    assert found["dfs.datanode.synconclose"].status is Status.WARNING
    assert found["dfs.datanode.synconclose"].found.startswith("not set, at 127.0.0.1:")
    assert (found["quota"].status, found["quota"].found) == (Status.OK, "none")
    assert store.folders("") == []


@pytest.mark.parametrize("said", [{"State": "standby"}, {"State": "observer"}, {"SoftwareVersion": "2.10.2"}])
def test_a_namenode_that_may_not_be_asked_is_a_problem(store, namenode, said):
    bean = {"State": "active", "SoftwareVersion": VERSION} | said
    namenode.answer((200, json.dumps({"beans": [bean]}).encode()), "GET", "/jmx*", times=None)
    assert checked(store)["NameNodes"].status is Status.PROBLEM


def test_what_nobody_says_is_unknown(store, namenode):
    namenode.answer((403, b""), "GET", "/jmx*", times=None)
    assert checked(store)["NameNodes"].status is Status.UNKNOWN


def test_a_quota_without_room_is_a_problem(store, hdfs_server, hdfs_url):
    quota = {"namespacequota": 2**63 - 1, "storagespacequota": 4 * BLOCK_BYTES}
    hdfs_server.ask("PUT", "SETQUOTA", urlsplit(hdfs_url).path, **quota)
    assert checked(store)["quota"].status is Status.PROBLEM

"""A store in HDFS whose servers are killed, restarted, or lose bytes: each test has an HDFS of its own."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.servers.hadoop import running_hdfs
from tests.servers.java import JarsMissing

from weir.errors import Retryable
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store

pytestmark = pytest.mark.soak


@pytest.fixture
def cluster(tmp_path):
    """An HDFS with two DataNodes, each of which has all blocks."""
    try:
        with running_hdfs(tmp_path / "hdfs", datanodes=2) as running:
            yield running
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def store(cluster):
    opened = Store.open(f"{cluster.url}/weir", cluster.storage_options)
    opened.initialise()
    return opened


def contents(store, names):
    return {name: store.read(name) for name in names}


def test_a_datanode_is_killed_while_files_are_written_and_read(cluster, store):
    before = {f"before/{number}": os.urandom(1000) for number in range(10)}
    for name, data in before.items():
        store.create(name, data)
    killed = threading.Event()

    def write(number):
        if number == 5:
            cluster.datanodes[0].kill()
            killed.set()
        store.create(f"after/{number}", b"%d" % number)
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, range(20))) == list(range(20))
    assert killed.is_set()
    assert contents(store, before) == before
    assert [name for name, _ in store.list("after")] == sorted(str(number) for number in range(20))
    assert contents(store, [f"after/{n}" for n in range(20)]) == {f"after/{n}": b"%d" % n for n in range(20)}


def test_the_namenode_is_killed_and_started_again_while_twenty_writers_race(cluster, store):
    started = threading.Barrier(21)

    def race(number):
        started.wait()
        won = []
        for name in range(10):
            try:
                store.create(f"race/{name}", b"%d" % number)
            except AlreadyExists:
                continue
            won.append(name)
        return number, won

    with ThreadPoolExecutor(20) as pool:
        racers = [pool.submit(race, number) for number in range(20)]
        started.wait()
        cluster.namenode.kill()
        cluster.namenode.start()
        won = dict(racer.result() for racer in racers)
    winners = {name: number for number, names in won.items() for name in names}
    assert sum(map(len, won.values())) == len(winners) == 10
    assert contents(store, [f"race/{n}" for n in range(10)]) == {f"race/{n}": b"%d" % winners[n] for n in range(10)}
    assert [name for name, _ in store.list("race")] == sorted(map(str, range(10)))


def test_in_safe_mode_files_are_read_and_writes_are_retryable(cluster, store):
    store.create("file", b"content")
    impatient = Store.open(store.url, cluster.storage_options | {"timeout": 3})
    cluster.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "enter")
    assert impatient.read("file") == b"content"
    for write in (impatient.create, impatient.replace):
        with pytest.raises(Retryable, match="SafeModeException"):
            write("other", b"content")
    with pytest.raises(Retryable, match="SafeModeException"):
        impatient.delete("file")
    cluster.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "leave")
    store.create("other", b"content")
    assert [name for name, _ in store.list("")] == ["file", "other", "weir-store.json"]


def test_a_namenode_without_datanodes_has_lost_nothing(cluster, store):
    store.create("file", b"content")
    for each in cluster.datanodes:
        each.kill()
    impatient = Store.open(store.url, cluster.storage_options | {"timeout": 3})
    assert impatient.size("file") == 7
    for ask in (lambda: impatient.read("file"), lambda: impatient.create("other", b"")):
        with pytest.raises(Retryable):
            ask()


def damage(store, cluster, name, disks):
    """Write a file, flip a bit of it on the disks of DataNodes, and return what was written."""
    known = {block for number in (1, 2) for block in cluster.blocks_of(number)}
    data = os.urandom(100_000)
    store.create(name, data)
    for number in disks:
        [block] = set(cluster.blocks_of(number)) - known
        block.write_bytes(data[:50_000] + bytes([data[50_000] ^ 1]) + data[50_001:])
    return data


def test_a_block_that_is_damaged_on_one_disk_is_read_from_the_other(cluster, store):
    data = damage(store, cluster, "file", (1,))
    for _ in range(10):
        assert store.read("file") == data


def test_a_block_that_is_damaged_on_all_disks_is_not_lost_before_somebody_has_deleted_it(cluster, store):
    damage(store, cluster, "file", (1, 2))
    impatient = Store.open(store.url, cluster.storage_options | {"timeout": 5})
    with pytest.raises(Retryable):
        impatient.read("file")
    cluster.ask("DELETE", "DELETE", "/weir/file")
    with pytest.raises(NotFound):
        store.read("file")

"""A store in HDFS whose servers are killed, restarted, or lose bytes: each test has an HDFS of its own."""

import os
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.builders.partitions import parquet_bytes, write_partition
from tests.servers.hadoop import running_hdfs
from tests.servers.java import JarsMissing

from weir.errors import Fault, Retryable
from weir.formats.manifest import Manifest
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import probe, verify_segments
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


PART = "flow/20130101T000000Z/stage/by-key/0/t0001-000000000000/part-0.parquet"


def test_bytes_that_were_changed_together_with_their_checksums_are_found_by_the_digest(cluster, store):
    ref, manifest = write_partition(store, PART.rpartition("/")[0], {"part-0.parquet": parquet_bytes(10_000)})
    data = store.read(PART)
    known = {number: set(cluster.blocks_of(number)) for number in (1, 2)}
    [whole] = [each for each in known[1] if each.read_bytes() == data]
    middle = len(data) // 2
    store.create("copy", data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    for number in (1, 2):
        [changed] = set(cluster.blocks_of(number)) - known[number]
        [block] = [each for each in known[number] if each.name == whole.name]
        block.write_bytes(changed.read_bytes())
        checksums_of(block).write_bytes(checksums_of(changed).read_bytes())
    assert store.read(PART) == store.read("copy")  # HDFS finds nothing
    store_id = store.initialise()
    assert isinstance(probe(store, store_id, [ref])[ref], Manifest)  # nor does who looks at the footer
    [loss] = verify_segments(store, store_id, [(manifest, ref.folder, None)])
    assert loss.fault is Fault.DAMAGED


def checksums_of(block):
    """The file beside a block that has the checksums of its bytes, and of nothing else."""
    [found] = block.parent.glob(f"{block.name}_*.meta")
    return found


MANY = 100_000


def test_a_folder_of_a_hundred_thousand_files_is_listed_page_by_page_and_deleted(tmp_path, capsys):
    try:
        with running_hdfs(tmp_path / "hdfs", settings={"dfs.ls.limit": 1000}) as hdfs:
            store = Store.open(f"{hdfs.url}/weir", hdfs.storage_options)
            store.initialise()
            files = ("-files", str(MANY), "-filesPerDir", str(MANY))
            hdfs.run(_MAKER, "-op", "create", "-keepResults", "-threads", "4", *files)
            hdfs.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "leave")
            [made] = folders_with_files(store_of_maker(hdfs), "")
            hdfs.ask("PUT", "RENAME", f"/nnThroughputBenchmark/{made}", destination="/weir/many")
            listed, seconds = timed(lambda: store.list("many"))
            assert len({name for name, _ in listed}) == len(listed) == MANY
            tracemalloc.start()
            store.list("many")
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
            _, asking = timed(store.free_space)
            _, deleting = timed(lambda: store.delete_folder("many"))
            assert store.folders("") == []
    except JarsMissing as missing:
        pytest.skip(str(missing))
    with capsys.disabled():
        print(f"\n{MANY} files: listed in {seconds:.1f} s with {peak:.0f} MiB")
        print(f"quota asked in {asking:.1f} s, deleted in {deleting:.1f} s")
    assert peak < 100


_MAKER = "org.apache.hadoop.hdfs.server.namenode.NNThroughputBenchmark"


def store_of_maker(hdfs):
    """The folder in which Hadoop's own benchmark makes files, opened as a store."""
    return Store.open(f"{hdfs.url}/nnThroughputBenchmark", hdfs.storage_options)


def folders_with_files(store, folder):
    below = [f"{folder}/{name}".lstrip("/") for name in store.folders(folder)]
    return [each for one in below for each in folders_with_files(store, one)] or [folder]


def timed(act):
    begun = time.monotonic()
    return act(), time.monotonic() - begun

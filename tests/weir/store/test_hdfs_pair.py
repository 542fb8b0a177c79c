"""A store in an HDFS with two NameNodes, of which the active one is killed or goes on standby."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from tests.servers.faulty_http import FaultyHttp
from tests.servers.hadoop import running_pair
from tests.servers.java import JarsMissing

from weir.errors import Retryable
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store

pytestmark = pytest.mark.soak

RACERS, NAMES = 20, 10


@pytest.fixture
def pair(tmp_path):
    try:
        with running_pair(tmp_path / "hdfs") as running:
            yield running
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def store(pair):
    opened = Store.open(f"{pair.url}/weir", pair.storage_options | {"timeout": 300})  # however busy the machine is
    opened.initialise()
    return opened


@pytest.fixture
def proxy(pair):
    """A proxy before the active NameNode."""
    with FaultyHttp(f"http://{pair.http}").running() as running:
        yield running


@pytest.fixture
def through_proxy(pair, proxy, store):
    """The same store, whose requests to the active NameNode can be broken."""
    both = f"{urlsplit(proxy.url).netloc},{pair.http_of('nn2')}"
    return Store.open(store.url, pair.storage_options | {"namenodes": both})


def kill(pair):
    pair.kill_active()


def change_places_twice(pair):
    pair.change_places()
    pair.change_places()


@pytest.mark.parametrize("fail_over", [kill, change_places_twice])
def test_of_twenty_writers_one_wins_each_name_while_the_namenodes_fail_over(pair, store, fail_over):
    begun, over = threading.Barrier(RACERS + 1), threading.Event()

    def race(number):
        won, name = [], 0
        begun.wait()
        while name < NAMES or not over.is_set():  # as long as it takes
            with suppress(AlreadyExists):
                store.create(f"race/{name}", b"%d" % number)
                won.append(name)
            store.replace(f"pointers/{number}", b"%d" % name)
            name += 1
        return name, won

    with ThreadPoolExecutor(RACERS) as pool:
        racers = [pool.submit(race, number) for number in range(RACERS)]
        begun.wait()
        try:
            fail_over(pair)
        finally:
            over.set()
        found = [racer.result() for racer in racers]
    winners = {f"{name}": number for number, (_, won) in enumerate(found) for name in won}
    assert sum(len(won) for _, won in found) == len(winners) == max(last for last, _ in found)
    # What a writer could not tidy away meanwhile has a name that nobody reads.
    assert sorted(name for name, _ in store.list("race") if not name.startswith(".")) == sorted(winners)
    assert {name: int(store.read(f"race/{name}")) for name in winners} == winners
    for number, (last, _) in enumerate(found):
        assert int(store.read(f"pointers/{number}")) == last - 1


def test_a_rename_that_was_answered_by_nobody_is_settled_by_the_other_namenode(pair, store, through_proxy, proxy):
    proxy.lose_answer("PUT", "*op=RENAME*", then=pair.kill_active)
    through_proxy.create("folder/mine", b"mine")
    assert store.read("folder/mine") == b"mine"
    assert [name for name, _ in store.list("folder")] == ["mine"]
    with pytest.raises(AlreadyExists):
        store.create("folder/mine", b"mine")


def test_a_namenode_that_fails_over_between_the_file_and_its_name_has_forgotten_neither(
    pair, store, through_proxy, proxy
):
    proxy.hold_back(pair.change_places, "PUT", "*op=RENAME*")
    through_proxy.create("folder/file", b"content")
    assert [name for name, _ in store.list("folder")] == ["file"]
    assert store.read("folder/file") == b"content"


def test_a_name_that_another_took_after_the_failover_is_taken(pair, store, through_proxy, proxy):
    def fail_over():
        pair.change_places()
        store.create("folder/file", b"another's")

    proxy.hold_back(fail_over, "PUT", "*op=RENAME*")
    with pytest.raises(AlreadyExists):
        through_proxy.create("folder/file", b"mine")
    assert store.read("folder/file") == b"another's"
    assert [name for name, _ in store.list("folder")] == ["file"]


def test_a_namenode_on_standby_alone_has_lost_nothing_and_knows_of_no_loss(pair, store):
    store.create("file", b"content")
    standby = Store.open(store.url, pair.storage_options | {"namenodes": pair.http_of("nn2"), "timeout": 2})
    for ask in (standby.read, standby.size, standby.list, lambda path: standby.create(path, b"")):
        for path in ("file", "missing"):
            with pytest.raises(Retryable, match="StandbyException"):
                ask(path)
    with pytest.raises(NotFound):
        store.read("missing")

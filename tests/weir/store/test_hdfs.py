"""A store in a real HDFS, and what it makes of lost answers, safe mode, standby, quotas and missing rights."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from urllib.parse import urlsplit

import httpx
import pytest
from tests.messages.kinds import of_kind
from tests.servers.faulty_http import FaultyHttp
from tests.servers.hadoop import BLOCK_BYTES, PAGE

from weir.errors import Misconfigured, Retryable, StoreFull
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store

RACERS = 20


def refusal(exception, message="refused by a test"):
    """The answer of a NameNode that refuses."""
    return 403, json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode()


PASSING = ["StandbyException", "SafeModeException", "RetriableException", "IOException"]


@pytest.fixture(scope="module")
def shared_namenode(hdfs_server):
    with FaultyHttp(f"http://{hdfs_server.http}").running() as running:
        yield running


@pytest.fixture
def namenode(shared_namenode):
    """A proxy before the NameNode, which breaks chosen requests; DataNodes are reached without it."""
    yield shared_namenode
    shared_namenode.heal()


@pytest.fixture
def open_hdfs(hdfs_url, hdfs_server, namenode):
    """Open this test's store through the proxy, once more or with other options."""
    options = hdfs_server.storage_options | {"namenodes": urlsplit(namenode.url).netloc}
    return lambda **more: Store.open(hdfs_url, options | more)


@pytest.fixture
def hdfs(open_hdfs, namenode):
    """A store in HDFS, ready; the proxy has seen nothing yet."""
    opened = open_hdfs()
    opened.initialise()
    namenode.heal()
    return opened


def operations(namenode):
    return [request.path.partition("op=")[2].partition("&")[0] for request in namenode.requests]


# A file gets its name once, and whole


def test_a_create_whose_rename_was_carried_out_but_not_answered_knows_its_own_file(hdfs, namenode):
    namenode.lose_answer("PUT", "*op=RENAME*")
    hdfs.create("folder/file", b"mine")
    assert hdfs.read("folder/file") == b"mine"
    assert hdfs.list("folder") == [("file", 4)]


def test_a_rename_that_never_arrived_does_not_take_anothers_file_for_its_own(hdfs, open_hdfs, namenode):
    open_hdfs().create("folder/file", b"mine")
    namenode.reset("PUT", "*op=RENAME*")
    with pytest.raises(AlreadyExists):
        hdfs.create("folder/file", b"mine")  # of the same content, even
    assert hdfs.list("folder") == [("file", 4)]


def test_a_replace_whose_answer_was_lost_has_replaced(hdfs, namenode):
    hdfs.replace("pointer", b"one")
    namenode.lose_answer("PUT", "*op=RENAME*")
    hdfs.replace("pointer", b"two")
    assert hdfs.read("pointer") == b"two"


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.soak)])
def test_of_twenty_writers_whose_answers_get_lost_exactly_one_wins(open_hdfs, hdfs, namenode, seed):
    namenode.lose_answer("PUT", "*op=RENAME*", skip=seed, times=8)
    namenode.answer(refusal("StandbyException"), "PUT", skip=10 - seed, times=4)
    namenode.reset("PUT", times=6)
    barrier = threading.Barrier(RACERS)

    def race(number):
        store = open_hdfs()
        barrier.wait()
        with suppress(AlreadyExists):
            store.create("folder/target", f"writer {number}".encode())
            return number

    with ThreadPoolExecutor(RACERS) as pool:
        [winner] = [number for number in pool.map(race, range(RACERS)) if number is not None]
    assert hdfs.read("folder/target") == f"writer {winner}".encode()
    assert [name for name, _ in hdfs.list("folder")] == ["target"]


def die_at_request(store, step, action):
    """Ends the process, as a kill would, just before its step-th request."""
    requests, send = [], httpx.HTTPTransport.handle_request

    def counted(transport, request):
        if len(requests) == step:
            os._exit(9)
        requests.append(request)
        return send(transport, request)

    httpx.HTTPTransport.handle_request = counted
    getattr(store, action)("folder/target", b"new" * 1000)
    os._exit(0)


@pytest.mark.parametrize("action", ["create", pytest.param("replace", marks=pytest.mark.soak)])
def test_a_writer_that_is_killed_at_any_request_leaves_nothing_or_the_whole_file(hdfs, action):
    context, seen = get_context("fork"), []
    for step in range(10):
        process = context.Process(target=die_at_request, args=(hdfs, step, action))
        process.start()
        process.join(60)
        found = [name for name, _ in hdfs.list("folder")] if "folder" in hdfs.folders("") else []
        seen.append("target" in found)
        assert all(name == "target" or name.startswith(".target.") for name in found)
        if seen[-1]:
            assert hdfs.read("folder/target") == b"new" * 1000
        else:
            hdfs.create("folder/target", b"another's")
        hdfs.delete_folder("folder")
        if process.exitcode == 0:
            break
    assert seen == [False] * 4 + [True]


def test_a_create_costs_three_requests_to_the_namenode(hdfs, namenode):
    hdfs.create("file", b"content")
    assert operations(namenode) == ["CREATE", "GETFILESTATUS", "RENAME"]


def test_each_file_is_synced_to_the_disk_of_the_datanode(hdfs, hdfs_server):
    before = hdfs_server.syncs()
    for number in range(500):  # the DataNode counts at once, and tells once a second
        hdfs.create(f"folder/{number}", b"content")
        if hdfs_server.syncs() > before:
            return
    raise AssertionError("the DataNode has synced nothing")


# What passes, and what is no answer


def test_a_namenode_on_standby_in_safe_mode_or_in_trouble_is_sat_out(hdfs, namenode):
    for exception in PASSING:
        namenode.answer(refusal(exception))
    hdfs.create("folder/file", b"content")
    for exception in PASSING:
        namenode.answer(refusal(exception))
    assert hdfs.read("folder/file") == b"content"
    assert namenode.injected == 2 * len(PASSING)


def test_what_does_not_pass_is_retryable_and_says_what_hdfs_said(open_hdfs, hdfs, namenode):
    exception = "SafeModeException"
    namenode.answer(refusal(exception), times=None)
    store = open_hdfs(timeout=0.5)
    for ask in (store.read, store.size, store.list, lambda path: store.create(path, b"")):
        with pytest.raises(Retryable, match=exception):
            ask("folder")


def test_of_two_namenodes_the_active_one_is_asked(open_hdfs, hdfs, hdfs_server, namenode):
    with FaultyHttp(f"http://{hdfs_server.http}").running() as standby:
        standby.answer(refusal("StandbyException"), times=None)
        store = open_hdfs(namenodes=f"{urlsplit(standby.url).netloc},{urlsplit(namenode.url).netloc}")
        store.create("file", b"content")
        assert store.read("file") == b"content"
        assert len(standby.requests) == 1


def test_a_server_that_is_no_namenode_has_lost_nothing(open_hdfs, hdfs, namenode):
    namenode.answer((404, b"<html>nothing here</html>"), times=None)
    store = open_hdfs(timeout=0.5)
    for ask in (store.read, store.size, store.list):
        with pytest.raises(Retryable, match="404"):
            ask("folder")


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_server_that_ignores_how_to_rename_is_refused(hdfs, namenode, is_renamed):
    namenode.answer((200, json.dumps({"boolean": is_renamed}).encode()), "PUT", "*op=RENAME*")
    with pytest.raises(Retryable, match="HttpFS"):
        hdfs.create("folder/file", b"content")
    assert hdfs.list("folder") == []


def test_a_namenode_that_asks_for_a_proof_of_the_user_is_not_waited_for(hdfs, namenode):
    namenode.answer((401, b"<html>Authentication required</html>"), times=None)
    with pytest.raises(Misconfigured, match="Kerberos"):
        hdfs.initialise()


def test_an_older_namenode_says_nothing_of_its_quotas(hdfs, namenode):
    unknown = 'Invalid value for webhdfs parameter "op": No enum constant GetOpParam.Op.GETQUOTAUSAGE'
    namenode.answer((400, refusal("IllegalArgumentException", unknown)[1]), "GET", "*GETQUOTAUSAGE*")
    assert hdfs.free_space() is None


def test_a_connection_that_hangs_is_given_up_for_another_one(open_hdfs, hdfs, namenode):
    hdfs.create("file", b"content")
    namenode.heal()
    namenode.hang("GET")
    assert open_hdfs(timeout=6).read("file") == b"content"
    assert operations(namenode) == ["OPEN", "OPEN"]


def test_a_listing_of_several_pages_is_whole_or_fails(hdfs, open_hdfs, namenode):
    names = [f"{number:03}" for number in range(2 * PAGE + 5)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: hdfs.create(f"many/{name}", b"x"), names))
    hdfs.create("many-more/file", b"kept")
    namenode.heal()
    assert [name for name, _ in hdfs.list("many")] == names
    assert operations(namenode) == ["LISTSTATUS_BATCH"] * 3
    namenode.reset("GET", "*startafter=*", times=None)
    with pytest.raises(Retryable):
        open_hdfs(timeout=0.5).list("many")
    namenode.heal()
    hdfs.delete_folder("many")
    assert operations(namenode) == ["DELETE"]
    assert hdfs.folders("") == ["many-more"]


# Rights, quotas


def test_a_missing_right_names_the_user_and_the_folder(hdfs, hdfs_url, open_hdfs):
    folder = urlsplit(hdfs_url).path
    with pytest.raises(Misconfigured, check=of_kind("store.unusable")) as unusable:
        open_hdfs(user="alice").initialise()
    with pytest.raises(Retryable, check=of_kind("store.failed")) as failed:
        open_hdfs(user="alice").create("file", b"")
    for each in (unusable, failed):
        assert "user=alice" in str(each.value)
        assert f'inode="{folder}"' in str(each.value)


def test_a_quota_of_bytes_is_what_the_store_may_write(hdfs, hdfs_url, hdfs_server):
    assert hdfs.free_space() is None
    folder = urlsplit(hdfs_url).path
    hdfs_server.ask("PUT", "SETQUOTA", folder, namespacequota=2**63 - 1, storagespacequota=32 * BLOCK_BYTES)
    found = hdfs.free_space()
    assert (found.total_bytes, found.free_files) == (32 * BLOCK_BYTES, None)
    assert 0 < found.total_bytes - found.free_bytes < 1000
    hdfs.require_free_space()
    hdfs_server.ask("PUT", "SETQUOTA", folder, namespacequota=2**63 - 1, storagespacequota=BLOCK_BYTES)
    with pytest.raises(StoreFull, check=of_kind("store.disk_full")):
        hdfs.require_free_space()
    with pytest.raises(StoreFull, check=of_kind("store.write_hit_full_disk")):
        hdfs.create("file", b"content")


def test_a_quota_of_names_is_what_the_store_may_create(hdfs, hdfs_url, hdfs_server):
    hdfs_server.ask("PUT", "SETQUOTA", urlsplit(hdfs_url).path, namespacequota=2, storagespacequota=2**63 - 1)
    assert hdfs.free_space().free_files == 0
    with pytest.raises(StoreFull):
        hdfs.create("file", b"content")


# Names, blocks, processes


def test_any_name_may_be_used(hdfs):
    for name in ("with space", "a+b", "100%", "ümlaut", "a=b&c;d", "a#b", "tab\tbed", "quote'\""):
        hdfs.create(f"folder {name}/{name}", b"content")
        assert hdfs.read(f"folder {name}/{name}") == b"content"
        assert hdfs.list(f"folder {name}") == [(name, 7)]
        hdfs.delete_folder(f"folder {name}")
        assert hdfs.folders("") == []


def test_a_file_of_several_blocks_is_read_whole_and_across_them(hdfs):
    data = os.urandom(BLOCK_BYTES + 1000)
    hdfs.create("file", data)
    assert hdfs.read("file") == data
    assert hdfs.read("file", BLOCK_BYTES - 10, 20) == data[BLOCK_BYTES - 10 : BLOCK_BYTES + 10]


def test_nothing_is_read_beyond_the_end_of_an_empty_file(hdfs):
    hdfs.create("file", b"")
    assert hdfs.read("file") == hdfs.read("file", 0, 10) == hdfs.read("file", 5, 10) == b""


def test_empty_folders_are_removed_and_others_are_kept(hdfs):
    hdfs.create("top/full/file", b"x")
    hdfs.create("top/empty/below/file", b"x")
    hdfs.delete("top/empty/below/file")
    hdfs.prune("top")
    assert hdfs.folders("top") == ["full"]
    hdfs.delete("top/full/file")
    hdfs.prune("top")
    assert hdfs.folders("") == []


def test_a_name_below_a_file_and_a_folder_read_as_a_file_are_not_found(hdfs):
    hdfs.create("folder/file", b"x")
    for path in ("folder/file/below", "folder"):
        with pytest.raises(NotFound):
            hdfs.read(path)
    with pytest.raises(NotFound):
        hdfs.list("folder/file")


# How it is named


def test_webhdfs_names_the_http_address_itself(hdfs_server, hdfs_url):
    place = f"webhdfs://{hdfs_server.http}{urlsplit(hdfs_url).path}"
    store = Store.open(place, {"user": hdfs_server.storage_options["user"]})
    assert store.initialise() == store.initialise()
    assert store.spark_url("a/b") == f"hdfs://127.0.0.1:8020{urlsplit(hdfs_url).path}/a/b"


def test_the_user_is_hadoops_own_unless_it_is_given(hdfs, hdfs_url, open_hdfs, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    with pytest.raises(Misconfigured, match="user=bob"):
        open_hdfs(user=None).initialise()


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("hdfs://namenode/weir", {"token": "x"}, "store.hdfs_options_unknown"),
        ("hdfs://namenode/weir", {"namenodes": "namenode:http"}, "store.hdfs_address_wrong"),
        ("hdfs://namenode/weir", {"namenodes": ["http://namenode:9870"]}, "store.hdfs_address_wrong"),
        ("hdfs://alice@namenode/weir", {}, "store.hdfs_address_wrong"),
        ("webhdfs://namenode:http/weir", {}, "store.hdfs_address_wrong"),
        ("hdfs://namenode/weir", {"timeout": 0}, "store.time_limit_wrong"),
        ("hdfs:///weir", {}, "store.no_bucket"),
    ],
)
def test_what_is_no_address_and_no_option_of_hdfs_is_refused(url, options, kind):
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        Store.open(url, options)

"""A store on a real S3, and what it makes of lost answers, load, silence and wrong settings."""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from tests.builders.partitions import KEYED, parquet_bytes, write_partition
from tests.messages.kinds import of_kind
from tests.servers.faulty_http import CONFLICT, INTERNAL_ERROR, SLOW_DOWN
from tests.servers.s3 import client_of, options_of

from weir.errors import Misconfigured, Retryable, WeirError
from weir.store.catalogue import catalogue, stored_dataflows
from weir.store.errors import AlreadyExists, NotFound
from weir.store.probe import probe
from weir.store.store import Store

RACERS = 20
MANY = 1_010
"""More than one page of a listing, and more than one request deletes."""

OPERATIONS = {
    "create": lambda store: store.create("folder/new", b"new"),
    "replace": lambda store: store.replace("folder/file", b"newer"),
    "read": lambda store: store.read("folder/file"),
    "read a part": lambda store: store.read("folder/file", 1, 2),
    "size": lambda store: store.size("folder/file"),
    "modified": lambda store: store.modified("folder/file"),
    "list": lambda store: store.list("folder"),
    "folders": lambda store: store.folders("folder"),
    "delete": lambda store: store.delete("folder/file"),
    "delete_folder": lambda store: store.delete_folder("folder"),
    "check_marker": lambda store: store.check_marker("any"),
    "initialise": lambda store: store.initialise(),
}


@pytest.fixture(params=OPERATIONS)
def operation(request):
    return OPERATIONS[request.param]


@pytest.fixture
def impatient(open_s3, s3):
    """The same store, given up after two seconds."""
    s3.create("folder/file", b"content")
    opened = open_s3(timeout=2)
    for _ in range(20):  # its client is made: that takes a while on a busy machine, and no request
        with suppress(Retryable):
            opened.size("folder/file")
            return opened
    raise AssertionError("the S3 answers to nobody")


def bucket_and_prefix(store):
    parts = urlsplit(store.url)
    return parts.netloc, parts.path.strip("/")


# The answer to a conditional put is lost


def test_a_create_that_was_carried_out_but_not_answered_knows_its_own_file(s3, proxy):
    proxy.lose_answer("PUT")
    s3.create("folder/file", b"mine")
    assert s3.read("folder/file") == b"mine"
    assert (proxy.count("PUT"), proxy.count("HEAD")) == (2, 1)


def test_a_create_that_never_arrived_does_not_take_anothers_file_for_its_own(s3, open_s3, proxy):
    open_s3().create("folder/file", b"mine")
    proxy.reset("PUT")
    with pytest.raises(AlreadyExists):
        s3.create("folder/file", b"mine")  # of the same content, even
    assert s3.read("folder/file") == b"mine"


def test_a_name_that_was_taken_and_is_free_again_is_neither_created_nor_taken(s3, proxy):
    proxy.answer((412, b"<Error><Code>PreconditionFailed</Code></Error>"), "PUT")
    with pytest.raises(Retryable, match="taken when it was created, and is free now"):
        s3.create("folder/file", b"mine")


def test_an_object_that_is_written_while_it_is_asked_for_is_there(s3, proxy):
    s3.create("folder/file", b"mine")
    proxy.answer((404, b""), "HEAD")  # then a GET, to confirm it, finds what another writer has put there
    assert s3.size("folder/file") == 4
    assert (proxy.count("HEAD"), proxy.count("GET")) == (2, 1)


def test_an_s3_that_contradicts_itself_again_and_again_has_lost_nothing(s3, proxy):
    s3.create("folder/file", b"mine")
    proxy.answer((404, b""), "HEAD", times=None)
    with pytest.raises(Retryable, match="said 3 times that there is no object, and gave it away each time"):
        s3.size("folder/file")


@pytest.mark.parametrize("seed", range(5))
def test_of_twenty_writers_whose_answers_get_lost_exactly_one_wins(open_s3, s3, proxy, seed):
    proxy.lose_answer("PUT", skip=seed, times=8)
    proxy.answer(CONFLICT, "PUT", skip=10 - seed, times=4)
    proxy.reset("PUT", times=6)
    barrier = threading.Barrier(RACERS)

    def race(number):
        store = open_s3()
        barrier.wait()
        with suppress(AlreadyExists):
            store.create("target", f"writer {number}".encode())
            return number

    with ThreadPoolExecutor(RACERS) as pool:
        [winner] = [number for number in pool.map(race, range(RACERS)) if number is not None]
    assert s3.read("target") == f"writer {winner}".encode()


def test_a_store_that_ignores_the_condition_of_a_create_is_refused_before_anything_is_written(open_s3, proxy):
    proxy.drop_header("If-None-Match", "PUT", times=None)
    store = open_s3()
    with pytest.raises(Misconfigured, check=of_kind("store.creates_twice")):
        store.initialise()
    with pytest.raises(Misconfigured, check=of_kind("store.creates_twice")):
        store.initialise()


def test_a_store_that_does_not_know_conditional_writes_is_refused(s3, proxy):
    proxy.answer((501, b"<Error><Code>NotImplemented</Code><Message>header</Message></Error>"), "PUT")
    with pytest.raises(Misconfigured, check=of_kind("store.no_conditional_writes")):
        s3.create("folder/file", b"mine")


# Load, lost connections, silence


@pytest.mark.parametrize(
    "strike",
    [
        lambda proxy: (proxy.answer(SLOW_DOWN), proxy.reset()),
        lambda proxy: (proxy.lose_answer(), proxy.cut_answer(after=1)),
    ],
    ids=["load and a reset", "a lost and a cut answer"],
)
def test_what_passes_is_sat_out(s3, proxy, operation, strike):
    s3.create("folder/file", b"content")
    strike(proxy)
    with suppress(Retryable):  # only of the marker, which is another one
        operation(s3)
    assert proxy.injected >= 1


@pytest.mark.parametrize(
    "answer", [INTERNAL_ERROR, (503, b"no XML at all"), (429, b""), (502, b"<html>gateway</html>")]
)
@pytest.mark.parametrize("name", ["create", "read", "size"])
def test_answers_of_a_server_in_trouble_are_sat_out(s3, proxy, name, answer):
    s3.create("folder/file", b"content")
    proxy.answer(answer, times=2)
    OPERATIONS[name](s3)
    assert proxy.injected == 2


def outcomes(store):
    """Let all operations happen at once; what each of them raised, by name."""

    def attempt(name):
        try:
            OPERATIONS[name](store)
        except WeirError as error:
            return name, error
        return name, None

    with ThreadPoolExecutor(len(OPERATIONS)) as pool:
        return dict(pool.map(attempt, OPERATIONS))


def all_retryable(found, says):
    assert {name: type(error) for name, error in found.items()} == dict.fromkeys(OPERATIONS, Retryable)
    return all(re.search(says, str(error)) for error in found.values())


def test_load_that_does_not_pass_is_retryable_and_says_what_s3_said(open_s3, s3, proxy):
    s3.create("folder/file", b"content")
    proxy.answer(SLOW_DOWN, times=None)
    says = r'within 8 s, in \d+ tries; last error: .*503.*The store option "timeout" sets the limit'
    assert all_retryable(outcomes(open_s3(timeout=8)), says)  # a busy machine takes seconds to answer


def test_resets_that_do_not_pass_are_retryable(impatient, proxy):
    proxy.reset(times=None)
    assert all_retryable(outcomes(impatient), "within 2 s")


def test_a_store_that_hangs_is_retryable(impatient, s3_server):
    with s3_server.suspended():
        found = outcomes(impatient)
    assert all_retryable(found, r"within 2 s, in \d tries; last error: (no response|\w+Timeout)")


def test_a_connection_that_hangs_is_given_up_for_another_one(open_s3, s3, proxy):
    s3.create("file", b"content")
    proxy.hang("GET")
    assert open_s3(config_kwargs={"read_timeout": 0.2}).read("file") == b"content"
    assert proxy.count("GET") == 2


def test_a_probe_of_a_store_that_hangs_loses_nothing(impatient, s3, s3_server):
    ref, _ = write_partition(s3, "flow/0", {"part-0.parquet": parquet_bytes(10)})
    store_id = s3.initialise()
    with s3_server.suspended(), pytest.raises(Retryable, check=of_kind("store.failed")):
        probe(impatient, store_id, [ref])


def test_an_answer_that_is_cut_again_and_again_is_never_taken_for_the_whole(impatient, proxy):
    proxy.cut_answer(after=3, method="GET", times=None)
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        impatient.read("folder/file")


# Many files


@pytest.fixture
def many(s3, s3_server):
    """A folder of many files, and one in a folder beside it."""
    bucket, prefix = bucket_and_prefix(s3)
    client = client_of(s3_server.url)
    names = [f"{number:05}" for number in range(MANY)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.put_object(Bucket=bucket, Key=f"{prefix}/many/{name}", Body=b"x"), names))
    s3.create("many-more/file", b"kept")
    return names


def test_a_listing_of_several_pages_is_whole_or_fails_and_a_folder_of_them_is_deleted_whole(s3, open_s3, proxy, many):
    assert [name for name, _ in s3.list("many")] == many
    assert s3.folders("") == ["many", "many-more"]

    proxy.heal()
    proxy.answer(SLOW_DOWN, "GET", "*continuation-token=*", times=2)
    assert [name for name, _ in s3.list("many")] == many
    assert proxy.count("GET") == 4

    proxy.reset("GET", "*continuation-token=*", times=None)
    with pytest.raises(Retryable):
        open_s3(timeout=1).list("many")
    proxy.heal()

    refused = b"<DeleteResult><Error><Key>many/00000</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    proxy.answer((200, refused), "POST", skip=1)
    with pytest.raises(Retryable, check=of_kind("store.failed")):
        s3.delete_folder("many")
    assert len(s3.list("many")) == MANY - 1_000
    s3.delete_folder("many")
    with pytest.raises(NotFound):
        s3.list("many")
    assert s3.read("many-more/file") == b"kept"


# Other than expected


def test_a_bucket_that_is_gone_is_not_a_loss_and_is_not_made(proxy, operation):
    store = Store.open("s3://no-such-bucket/weir", options_of(proxy.url))
    with pytest.raises((Retryable, Misconfigured), match=r"NoSuchBucket|there is no bucket no-such-bucket") as found:
        operation(store)
    assert found.type is (Misconfigured if "cannot be used" in str(found.value) else Retryable)


def test_an_endpoint_that_is_no_s3_has_lost_nothing(s3, proxy, operation):
    proxy.answer((404, b"<html>nothing here</html>"), times=None)
    with pytest.raises((Retryable, Misconfigured), match="404"):
        operation(s3)


REFUSED = b"<Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.</Message></Error>"


def test_wrong_credentials_are_told_at_once_and_lose_nothing(s3, proxy, operation):
    proxy.answer((403, REFUSED), times=None)
    with pytest.raises((Retryable, Misconfigured), match="403") as found:
        operation(s3)
    assert "hush" not in str(found.value)
    assert len(proxy.requests) == 1


def test_no_credentials_at_all_say_where_to_put_them(s3_url, proxy, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = Store.open(s3_url, {"endpoint_url": proxy.url, "client_kwargs": {"region_name": "us-east-1"}})
    with pytest.raises(Misconfigured, check=of_kind("store.unusable")):
        store.initialise()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpont_url": "http://minio"}, "endpont_url"),
        ({"endpoint_url": "minio:9000"}, "minio:9000"),
        ({"profile": "of nobody"}, "of nobody"),
    ],
)
def test_options_that_s3fs_does_not_understand_are_refused(s3_url, options, says):
    with pytest.raises(Misconfigured, match=f"{says}", check=of_kind("store.options_unusable")):
        Store.open(s3_url, options).read("file")


def test_every_spelling_of_s3_is_one_place(s3, s3_server):
    s3.create("file", b"content")
    for scheme in ("s3", "s3a", "s3n", "S3A"):
        again = Store.open(s3.url.replace("s3", scheme, 1) + "/", s3_server.storage_options)
        assert (again.url, again.read("file")) == (s3.url, b"content")
    assert s3.spark_url("a/b") == s3.url.replace("s3://", "s3a://") + "/a/b"


# What stands in an S3


@pytest.mark.parametrize("name", ["with space", "a+b", "100%", "ümlaut", "a=b&c", "tab\tbed", "quote'\""])
def test_any_name_may_be_used(s3, name):
    s3.create(f"folder {name}/{name}", b"content")
    assert s3.read(f"folder {name}/{name}") == b"content"
    assert s3.list(f"folder {name}") == [(name, 7)]
    assert s3.folders("") == [f"folder {name}"]
    s3.delete_folder(f"folder {name}")
    assert s3.folders("") == []


def test_a_folder_as_hadoop_marks_it_is_an_empty_folder(s3, s3_server):
    bucket, prefix = bucket_and_prefix(s3)
    client_of(s3_server.url).put_object(Bucket=bucket, Key=f"{prefix}/marked/", Body=b"")
    assert (s3.list("marked"), s3.folders("marked"), s3.folders("")) == ([], [], ["marked"])
    s3.delete_folder("marked")
    with pytest.raises(NotFound):
        s3.list("marked")


def test_an_empty_prefix_of_a_bucket_with_other_things_can_become_a_store_and_the_bucket_cannot(s3, s3_server):
    bucket, _ = bucket_and_prefix(s3)
    with pytest.raises(Misconfigured, check=of_kind("store.folder_not_empty")):
        Store.open(f"s3://{bucket}", s3_server.storage_options).initialise()


def test_a_whole_bucket_can_be_a_store(s3_server):
    s3_server.make_bucket("weir-alone")
    store = Store.open("s3://weir-alone", s3_server.storage_options)
    assert store.initialise() == store.initialise()
    store.create("a/file", b"content")
    assert (store.folders(""), store.list("a")) == (["a"], [("file", 7)])


def test_no_answer_comes_from_a_cache(s3, open_s3):
    s3.create("folder/a", b"a")
    assert [name for name, _ in s3.list("folder")] == ["a"]
    open_s3().create("folder/b", b"b")
    open_s3().replace("folder/a", b"longer")
    assert s3.list("folder") == [("a", 6), ("b", 1)]
    assert s3.size("folder/a") == 6


def test_a_catalogue_of_s3_is_that_of_a_disk(s3, tmp_path):
    local = Store.open(str(tmp_path / "store"))
    for store in (s3, local):
        store.initialise()
        for number in range(3):
            folder = f"flow/20130101T000000Z/stage/{KEYED.id}/{number}/t0001-000000000000"
            write_partition(store, folder, {"part-0.parquet": parquet_bytes(10)}, subtask=number)
        store.create("flow/20130101T000000Z/stage/broken/0/t0001-000000000000/manifest.json", b"{}")
    assert stored_dataflows(s3) == ("flow",)
    assert catalogue(s3, "flow") == catalogue(local, "flow")
    assert len(catalogue(s3, "flow")[0].stored) == 3


# Costs


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("create", ["PUT"]),
        ("replace", ["PUT"]),
        ("read", ["GET"]),
        ("read a part", ["GET"]),
        ("size", ["HEAD"]),
        ("modified", ["HEAD"]),
        ("list", ["GET"]),
        ("folders", ["GET"]),
        ("delete", ["DELETE"]),
        ("delete_folder", ["GET", "POST"]),
        ("initialise", ["GET", "GET", "GET"]),
    ],
)
def test_an_operation_is_one_request_where_it_can_be(s3, proxy, name, requests):
    s3.create("folder/file", b"content")
    proxy.heal()
    OPERATIONS[name](s3)
    assert [request.method for request in proxy.requests] == requests


def test_a_create_that_loses_costs_one_request_more(s3, proxy):
    s3.create("file", b"content")
    proxy.heal()
    with pytest.raises(AlreadyExists):
        s3.create("file", b"content")
    assert [request.method for request in proxy.requests] == ["PUT", "HEAD"]


def test_a_probe_asks_once_for_each_manifest_and_each_file_and_many_at_once(s3, proxy):
    store_id = s3.initialise()
    data = parquet_bytes(10)
    files = {f"part-{number}.parquet": data for number in range(3)}
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda n: write_partition(s3, f"flow/{n}", files, subtask=n), range(40)))
    proxy.heal()
    proxy.gather(8, "GET", "*manifest.json*")
    proxy.gather(8, "GET", "*.parquet*")
    refs = [ref for ref, _ in written]
    assert probe(s3, store_id, refs) == dict(written)
    assert {request.method for request in proxy.requests} == {"GET"}
    assert proxy.count() == 1 + 40 + 120


def test_what_is_written_is_the_content_and_whose_it_is(s3, s3_server):
    s3.create("file.json", json.dumps({"a": 1}).encode())
    bucket, prefix = bucket_and_prefix(s3)
    found = client_of(s3_server.url).get_object(Bucket=bucket, Key=f"{prefix}/file.json")
    assert json.loads(found["Body"].read()) == {"a": 1}
    assert list(found["Metadata"]) == ["weir-writer"]


def test_an_object_is_written_in_parts_and_is_there_when_all_are(s3):
    parts = [b"a" * 5 * 2**20, b"b"]

    def given():
        yield parts[0]
        with pytest.raises(NotFound):
            s3.size("large")
        yield parts[1]

    s3.files.upload("large", given())
    assert s3.read("large") == b"".join(parts)


def test_an_upload_that_fails_leaves_no_parts(s3, s3_server):
    def given():
        yield b"a" * 5 * 2**20
        raise Retryable("the source is gone")

    with pytest.raises(Retryable, match="the source is gone"):
        s3.files.upload("large", given())
    assert "Uploads" not in client_of(s3_server.url).list_multipart_uploads(Bucket=bucket_and_prefix(s3)[0])


def test_an_object_of_another_bucket_is_copied(s3, s3_server):
    s3_server.make_bucket("another")
    client_of(s3_server.url).put_object(Bucket="another", Key="folder/a file", Body=b"abc")
    s3.files.copy("s3://another/folder/a file", "copied")
    assert s3.read("copied") == b"abc"
    with pytest.raises(FileNotFoundError):
        s3.files.copy("s3://another/folder/none", "copied")


def test_without_options_the_environment_gives_account_and_endpoint_as_it_does_to_spark(s3_url, s3_server, monkeypatch):
    given = {"ACCESS_KEY_ID": "weir", "SECRET_ACCESS_KEY": "x", "ENDPOINT_URL": s3_server.url}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    opened = Store.open(s3_url.replace("s3://", "s3a://"))
    opened.create("file", b"content")
    assert (opened.url, opened.read("file")) == (s3_url, b"content")

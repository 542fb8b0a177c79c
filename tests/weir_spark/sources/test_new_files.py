"""New files of a folder as a source that goes on: each file once, whatever its time and its name are."""

import os
import uuid

import pytest
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, options_of, running_s3
from tests.weir_spark.sources.conftest import resolved_range

from weir.connections import Connection
from weir.dataflow import files_source
from weir.errors import Misconfigured
from weir_spark.sources.files import READ

SCHEMA = "id BIGINT, name STRING"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def put(data, *names, text="1,x"):
    for name in names:
        (data / name).write_text(text)


def source_of(data, **more):
    return files_source("orders", f"{data}/*.csv", format="csv", schema=SCHEMA, read="new", **more)


def names(found):
    return [each["path"].rpartition("/")[2] for split in found.splits for each in split["files"]]


def test_an_epoch_reads_the_files_that_no_earlier_one_has_read_also_older_ones(data):
    put(data, "b.csv")
    first = resolved_range(source_of(data))
    put(data, "a.csv", "c.csv")
    os.utime(data / "a.csv", (0, 0))
    second = resolved_range(source_of(data), previous=first)
    third = resolved_range(source_of(data), previous=second)
    assert [names(each) for each in (first, second, third)] == [["b.csv"], ["a.csv", "c.csv"], []]


def test_a_file_that_goes_and_comes_back_is_not_read_again(data):
    put(data, "a.csv", "b.csv")
    first = resolved_range(source_of(data))
    (data / "a.csv").rename(data / "a.kept")
    second = resolved_range(source_of(data), previous=first)
    (data / "a.kept").rename(data / "a.csv")
    third = resolved_range(source_of(data), previous=second)
    assert (names(second), names(third), third.position) == ([], [], first.position)


def test_a_copy_of_a_file_that_was_read_is_the_same_file(data):
    put(data, "a.csv")
    first = resolved_range(source_of(data))
    os.utime(data / "a.csv", (1, 1))
    assert names(resolved_range(source_of(data), previous=first)) == []


@pytest.mark.parametrize("text", ["2,x", "2,xyz"])
def test_a_file_that_was_rewritten_after_it_was_read_is_an_error(data, text):
    put(data, "a.csv")
    first = resolved_range(source_of(data))
    put(data, "a.csv", text=text)
    with pytest.raises(Misconfigured, check=of_kind("sources.read_file_rewritten", count=1)):
        resolved_range(source_of(data), previous=first)


def test_a_rewritten_file_may_be_reported_once_and_is_not_read_again(data):
    put(data, "a.csv")
    source = source_of(data, on_rewritten="report")
    first = resolved_range(source)
    put(data, "a.csv", text="2,xyz")
    put(data, "b.csv")
    second = resolved_range(source, previous=first)
    third = resolved_range(source, previous=second)
    assert (names(second), names(third)) == (["b.csv"], [])
    assert ["a.csv" in each.splits[0]["reads"] for each in (first, second, third)] == [False, True, False]


def test_a_recorded_range_is_divided_anew_and_not_listed_again(data):
    put(data, "a.csv", "b.csv")
    first = resolved_range(source_of(data))
    put(data, "c.csv")
    again = resolved_range(source_of(data, parallelism=2), recorded=first)
    assert [[each["path"][-5:] for each in split["files"]] for split in again.splits] == [["a.csv"], ["b.csv"]]
    assert again.position == first.position


def test_an_epoch_without_new_files_may_fail(data):
    put(data, "a.csv")
    source = source_of(data, if_empty="fail")
    first = resolved_range(source)
    with pytest.raises(Misconfigured, check=of_kind("sources.no_file_matches")):
        resolved_range(source, previous=first)


def test_new_objects_of_a_bucket_are_read_once():
    with running_s3() as server:
        bucket, client = f"of-tests-{uuid.uuid4()}", client_of(server.url)
        server.make_bucket(bucket)
        lake = Connection(id="lake", kind="generic", extra={"storage_options": options_of(server.url)})
        source = files_source(
            "orders", f"s3://{bucket}/in/*.csv", format="csv", schema=SCHEMA, read="new", conn_id="lake"
        )
        client.put_object(Bucket=bucket, Key="in/b.csv", Body=b"1,x")
        first = resolved_range(source, lake)
        client.put_object(Bucket=bucket, Key="in/a.csv", Body=b"2,x")
        second = resolved_range(source, lake, previous=first)
        client.put_object(Bucket=bucket, Key="in/a.csv", Body=b"3,x")
        assert (names(first), names(second)) == (["b.csv"], ["a.csv"])
        with pytest.raises(Misconfigured, check=of_kind("sources.read_file_rewritten")):
            resolved_range(source, lake, previous=second)


def test_the_position_has_a_name_and_a_mark_of_each_file(data):
    put(data, "a.csv")
    (mark,) = resolved_range(source_of(data)).position[READ].values()
    size, modified, sha256 = mark.split(" ")
    assert (size, modified, len(sha256)) == ("3", str((data / "a.csv").stat().st_mtime_ns), 64)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"read": "newest"}, "dataflow.read_unknown"),
        ({"read": "new", "path": "/in/{start:%Y-%m-%d}/*.csv"}, "dataflow.read_new_by_interval"),
        ({"read": "new", "path": "/in/{end_local}.csv"}, "dataflow.read_new_by_interval"),
        ({"on_rewritten": "report"}, "dataflow.on_rewritten_unknown"),
        ({"read": "new", "on_rewritten": "ignore"}, "dataflow.on_rewritten_unknown"),
    ],
)
def test_what_cannot_be_read_so_is_refused_where_it_is_declared(given, kind):
    given = {"path": "/in/*.csv", "format": "csv", "schema": SCHEMA, **given}
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        files_source("orders", given.pop("path"), **given)

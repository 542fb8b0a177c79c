"""Files on S3 as a target, of which moto's server plays the part: an epoch is one object, replaced at once."""

from __future__ import annotations

import io
import json
import random

import fsspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, running_s3

from weir.connections import Connection
from weir.dataflow import files
from weir.errors import Misconfigured
from weir.sinks import Outcome, TargetConflict, folders
from weir.sinks.targets import files_on_s3
from weir.sinks.targets.files_on_s3 import S3FilesTarget
from weir.testing.sink_contract import DAY, NEXT, LocalReach, SinkContract, Versions


@pytest.fixture(scope="module")
def server():
    with running_s3() as started:
        started.make_bucket("lake")
        yield started


@pytest.fixture
def account(server):
    return Connection(id="aws_id", kind="aws", login="weir", password="hush", extra={"endpoint_url": server.url})


class Lake:
    """A key prefix of its own, as a foreign reader sees it."""

    def __init__(self, server, account, name):
        self.client, self.account, self.prefix = client_of(server.url), account, f"{abs(hash(name))}/delays"
        self.options = files(f"s3://lake/{self.prefix}", partition="day", conn_id="aws_id").options

    def target(self, folder):
        return S3FilesTarget(self.options, LocalReach(folder, self.account))

    def publish(self, folder, version):
        target = self.target(folder)
        return target.commit(version, target.prepare(version, None))

    def key(self, day="2013-01-01"):
        return f"{self.prefix}/day={day}/data.parquet"

    def table(self, epoch=DAY):
        day = f"{epoch[:4]}-{epoch[4:6]}-{epoch[6:8]}"
        listed = self.client.list_objects_v2(Bucket="lake", Prefix=f"{self.prefix}/day={day}/").get("Contents", [])
        bodies = [self.client.get_object(Bucket="lake", Key=each["Key"])["Body"].read() for each in listed]
        assert len(bodies) <= 1
        return pq.read_table(io.BytesIO(bodies[0])) if bodies else None

    def rows(self, epoch=DAY):
        table = self.table(epoch)
        return [] if table is None else sorted((tuple(each.values()) for each in table.to_pylist()), key=repr)


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def lake(self, server, account, request):
        self.place = Lake(server, account, request.node.nodeid)

    def target(self, reach):
        return self.place.target(reach.folder)

    def rows(self, epoch):
        return self.place.rows(epoch)


@pytest.fixture
def lake(server, account, request):
    return Lake(server, account, request.node.nodeid)


def test_a_version_of_one_file_is_copied_as_it_is_and_one_of_several_becomes_one(lake, tmp_path):
    versions = Versions(tmp_path)
    one = versions.version(1, [(1, "a")])
    lake.publish(tmp_path, one)
    body = lake.client.get_object(Bucket="lake", Key=lake.key())["Body"].read()
    assert body == (tmp_path / one.files[0].path).read_bytes()
    lake.publish(tmp_path, versions.version(2, [(1, "a")], [(2, None)], []))
    assert lake.rows() == [(1, "a"), (2, None)]
    assert lake.table().schema.names == ["k", "s"]


def test_a_large_version_is_uploaded_in_parts_and_appears_at_once(lake, tmp_path, monkeypatch):
    monkeypatch.setattr(files_on_s3, "PART_BYTES", 5 * 2**20)  # the least that S3 takes
    monkeypatch.setattr(folders, "PART_BYTES", 5 * 2**20)
    versions = Versions(tmp_path)
    draw = random.Random(7)
    halves = [[(number, draw.randbytes(60).hex()) for number in range(60_000)] for _ in range(2)]
    version = versions.version(1, *halves)
    assert lake.publish(tmp_path, version) is Outcome.COMMITTED
    assert lake.client.head_object(Bucket="lake", Key=lake.key())["ETag"].endswith('-2"')
    assert lake.table().num_rows == 120_000
    assert lake.target(tmp_path).recover(version, {}) is Outcome.COMMITTED
    assert lake.client.list_multipart_uploads(Bucket="lake").get("Uploads", []) == []


def test_an_object_that_was_replaced_since_it_was_looked_at_is_looked_at_again(lake, tmp_path, monkeypatch):
    """Another process commits a newer version between the look and the upload."""
    versions, target = Versions(tmp_path), lake.target(tmp_path)
    old, new = versions.version(1, [(1, "old")]), versions.version(2, [(1, "new")])
    usual, looks = S3FilesTarget._found, []

    def found(self, version):
        seen = usual(self, version)
        looks.append(version.number)
        if len(looks) == 1:
            lake.publish(tmp_path, new)
        return seen

    monkeypatch.setattr(S3FilesTarget, "_found", found)
    assert target.commit(old, {}) is Outcome.SUPERSEDED
    assert looks.count(1) == 2
    assert lake.rows() == [(1, "new")]


def test_the_marker_is_in_the_objects_metadata(lake, tmp_path):
    lake.publish(tmp_path, Versions(tmp_path).version(1, [(1, "a")]))
    metadata = lake.client.head_object(Bucket="lake", Key=lake.key())["Metadata"]
    marker = json.loads(metadata["weir-version"])
    assert (marker["owner"], marker["number"]) == ("contract.delays", 1)


def test_what_somebody_else_has_put_there_is_not_replaced(lake, tmp_path):
    version = Versions(tmp_path).version(1, [(1, "a")])
    lake.client.put_object(Bucket="lake", Key=lake.key(), Body=b"foreign")
    with pytest.raises(TargetConflict, check=of_kind("sinks.s3_key_in_the_way")):
        lake.target(tmp_path).prepare(version, None)
    lake.client.put_object(Bucket="lake", Key=f"{lake.prefix}/day=2013-01-02/part-0.parquet", Body=b"foreign")
    with pytest.raises(TargetConflict, check=of_kind("sinks.s3_pointer_in_the_way")):
        lake.target(tmp_path).prepare(Versions(tmp_path).version(1, [(1, "a")], epoch=NEXT), None)


def test_folders_are_not_named_like_a_column(lake, tmp_path):
    target = S3FilesTarget({**lake.options, "partition": "k"}, LocalReach(tmp_path, lake.account))
    with pytest.raises(Misconfigured, check=of_kind("sinks.files_column_taken", found="k", partition="k")):
        target.prepare(Versions(tmp_path).version(1, [(1, "a")]), None)


def test_a_path_belongs_to_one_sink(lake, tmp_path):
    versions = Versions(tmp_path)
    lake.publish(tmp_path, versions.version(1, [(1, "a")]))
    with pytest.raises(Misconfigured, check=of_kind("sinks.s3_owned_by_another", marker="contract.delays")):
        lake.publish(tmp_path, versions.version(1, [(1, "a")], sink="others"))


def test_a_bucket_that_is_not_there_is_named(account, tmp_path):
    target = S3FilesTarget(files("s3://none/here", conn_id="aws_id").options, LocalReach(tmp_path, account))
    with pytest.raises(Misconfigured, check=of_kind("sinks.folder_unusable")):
        target.prepare(Versions(tmp_path).version(1, [(1, "a")]), None)


def test_an_epoch_that_begins_within_a_day_is_read_back_by_its_path_and_by_a_pattern(server, account, tmp_path):
    """The key has a blank and percent signs, as Hive writes a time."""
    path = "s3://lake/a+b/c=d/delays"
    target = S3FilesTarget(files(path, conn_id="aws_id").options, LocalReach(tmp_path, account))
    version = Versions(tmp_path).version(1, [(1, "a")], epoch="20130102T053000Z")
    target.commit(version, target.prepare(version, None))
    options = {"key": "weir", "secret": "hush", "endpoint_url": server.url}
    found = fsspec.filesystem("s3", **options).glob(f"{path}/epoch=*/*.parquet")
    assert found == ["lake/a+b/c=d/delays/epoch=2013-01-02 05%3A30%3A00/data.parquet"]
    table = ds.dataset(found, filesystem=fsspec.filesystem("s3", **options), partitioning="hive").to_table()
    assert [str(each) for each in table["epoch"].to_pylist()] == ["2013-01-02 05:30:00"]
    assert table["k"].to_pylist() == [1]


def test_a_store_that_is_a_whole_bucket_leaves_room_for_sinks(account, tmp_path):
    class InBucket(LocalReach):
        def url(self, file):
            return f"s3://lake/{file.path}"

    target = S3FilesTarget(files("s3://lake/beside", conn_id="aws_id").options, InBucket(tmp_path, account))
    assert target.prepare(Versions(tmp_path).version(1, [(1, "a")]), None) == {}


@pytest.mark.parametrize("path", ["lake", "lake/out", "."])
def test_a_prefix_in_the_store_or_around_it_is_refused_and_one_that_begins_alike_is_not(account, tmp_path, path):
    class InS3(LocalReach):
        def url(self, file):
            return f"s3://lake/data/lake/{file.path}"

    version = Versions(tmp_path).version(1, [(1, "a")])
    place = f"s3://lake/data/{path}".removesuffix("/.")
    for options in (files(place, conn_id="aws_id").options, files(f"{place}x/y", conn_id="aws_id").options):
        target = S3FilesTarget(options, InS3(tmp_path, account))
        if options["path"] == place or path == "lake/out":
            with pytest.raises(Misconfigured, check=of_kind("sinks.folder_is_the_store")):
                target.prepare(version, None)
        else:
            target.prepare(version, None)

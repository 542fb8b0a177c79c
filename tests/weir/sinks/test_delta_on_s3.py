"""Delta Lake tables on S3, of which moto's server plays the part."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, running_s3
from tests.weir.sinks.delta_sink import Reach, Sink, at_once

from weir.connections import Connection, S3Account
from weir.dataflow import delta
from weir.errors import Misconfigured
from weir.sinks import Outcome, TargetAway, folders
from weir.sinks.targets.delta import DeltaTarget


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("lake")
        server.make_bucket("store")
        yield server


@pytest.fixture
def account(s3_server):
    return Connection(
        id="aws_id",
        kind="aws",
        login="weir",
        password="hush-hush",
        extra={"endpoint_url": s3_server.url, "region_name": "us-east-1"},
    )


class S3Reach(Reach):
    """Files that are below a folder and, if that is said, in a bucket as well."""

    def __init__(self, folder, connection, client=None):
        super().__init__(folder, is_local=False, connection=connection)
        self.client, self.opened = client, []

    def open(self, file):
        self.opened.append(file.path)
        return super().open(file)

    def url(self, file):
        if self.client is None:
            return super().url(file)
        self.client.put_object(Bucket="store", Key=f"results/{file.path}", Body=(self.folder / file.path).read_bytes())
        return f"s3://store/results/{file.path}"


class S3Sink(Sink):
    """A sink whose table is on S3."""

    def __init__(self, folder, account, server):
        super().__init__(folder)
        self.account, self.server = account, server
        self.root = f"s3://lake/{folder.name}/delays"
        self.storage = S3Account.of_connection(account).for_object_store()

    def target(self, reach=None, **options):
        declared = delta(self.root, **{"conn_id": "aws_id", "create": "if_missing", **options})
        return DeltaTarget(declared.options, reach or S3Reach(self.store, self.account))

    @property
    def table(self):
        return DeltaTable(self.root, storage_options=self.storage)


@pytest.fixture
def on_s3(tmp_path, account, s3_server):
    return S3Sink(tmp_path, account, s3_server)


def test_a_table_on_s3_is_published_into_as_one_on_a_disk(on_s3):
    target, first = on_s3.target(), on_s3.version(1, [1, 2], [3])
    token = target.prepare(first, None)
    assert (target.recover(first, token), on_s3.rows()) == (Outcome.ABSENT, [])
    assert [target.commit(first, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert target.put_bytes.copied == sum(file.bytes for file in first.files)
    assert on_s3.publish(on_s3.version(2, [1], [2, 3])) is Outcome.EQUAL
    assert on_s3.publish(last := on_s3.version(3, [7])) is Outcome.COMMITTED
    assert on_s3.rows() == [7]
    assert on_s3.target().rollback(last, {}) is True
    assert on_s3.rows() == []


def test_files_of_a_store_on_the_same_s3_are_copied_there(on_s3, s3_server):
    reach = S3Reach(on_s3.store, on_s3.account, client_of(s3_server.url))
    target, version = on_s3.target(reach), on_s3.version(1, [1])
    assert target.commit(version, {}) is Outcome.COMMITTED
    put_bytes = target.put_bytes
    assert (put_bytes.copied_by_server, put_bytes.copied) == (version.files[0].bytes, 0)
    assert (on_s3.rows(), reach.opened) == ([1], [])


def test_a_large_file_is_copied_in_parts(on_s3, monkeypatch):
    monkeypatch.setattr(folders, "PART_BYTES", 5 * 2**20)  # the least that S3 takes
    rows = [os.urandom(2**20) for _ in range(6)]
    version = on_s3.version(1, rows, columns=(("k", "binary", pa.binary()),))
    assert version.files[0].bytes > 6 * 2**20
    assert on_s3.publish(version) is Outcome.COMMITTED
    assert sorted(on_s3.table.to_pyarrow_table()["k"].to_pylist()) == sorted(rows)


def test_of_racing_processes_on_s3_each_version_is_committed_once(on_s3):
    versions = [on_s3.version(number, [number]) for number in (1, 1, 1, 2, 3, 4)]
    versions[1:3] = [versions[0]] * 2
    on_s3.target().prepare(versions[0], None)
    seen = at_once([lambda each=each: on_s3.target().commit(each, {}) for each in versions])
    assert set(seen) <= {Outcome.COMMITTED, Outcome.SUPERSEDED}
    assert on_s3.rows() == [4]
    numbers = [each["number"] for each in on_s3.commits()]
    assert numbers == sorted(set(numbers), reverse=True)


def test_without_a_connection_the_environment_gives_the_account(on_s3, s3_server, monkeypatch):
    given = {"ACCESS_KEY_ID": "weir", "SECRET_ACCESS_KEY": "x", "ENDPOINT_URL": s3_server.url, "REGION": "us-east-1"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert on_s3.publish(on_s3.version(1, [1]), conn_id="") is Outcome.COMMITTED
    assert on_s3.rows() == [1]


def test_a_bucket_that_is_not_there_is_a_persons_matter(on_s3):
    on_s3.root = "s3://lakes/delays"
    with pytest.raises(
        Misconfigured, check=of_kind("sinks.folder_unusable", problem="there is no bucket lakes: create it first")
    ):
        on_s3.publish(on_s3.version(1, [1]))


def test_an_s3_that_does_not_answer_is_away(on_s3, s3_server, monkeypatch):
    monkeypatch.setattr(folders, "S3_SECONDS", 0.5)
    version = on_s3.version(1, [1])
    with s3_server.suspended(), pytest.raises(TargetAway, check=of_kind("sinks.folder_away")):
        on_s3.target().prepare(version, None)
    assert on_s3.publish(version) is Outcome.COMMITTED

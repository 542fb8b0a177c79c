"""The example for Kinesis: its source goes on, and reads the same again; its target keeps the contract."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.flows import kinesis
from tests.flows.kinesis_target import KinesisTarget
from tests.flows.kinesis_versions import contents_of, markers, published
from tests.servers.s3 import running_s3
from tests.weir_spark.sources.conftest import INTERVAL

from weir.connections import Connection, as_variable
from weir.dataflow import Resolved
from weir.dataflow.resolving import ResolveContext
from weir.errors import Misconfigured
from weir.sinks import Outcome
from weir.testing.sink_contract import LocalReach, SinkContract, Versions


@pytest.fixture(scope="module")
def connection():
    """The tests' server of Amazon's services speaks Kinesis, too."""
    with running_s3() as server:
        extra = {"endpoint_url": server.url, "region_name": "us-east-1"}
        yield Connection(id="clicks", kind="aws", login="weir", password="x", extra=extra)


@pytest.fixture(scope="module")
def client(connection):
    return kinesis.client_of(connection)


@pytest.fixture
def stream(client):
    name = uuid.uuid4().hex
    client.create_stream(StreamName=name, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=name)
    return name


def put(client, stream, *texts):
    for text in texts:
        client.put_record(StreamName=stream, PartitionKey=text, Data=text.encode())


def resolved(connection, stream, previous=None, recorded=None, parallelism=2, days=10_000):
    stage = kinesis.kinesis_source("clicks", "clicks", stream, parallelism)
    context = ResolveContext(
        dataflow="flow",
        epoch="20130101T000000Z",
        interval=(INTERVAL[0], INTERVAL[1] + timedelta(days=days)),
        parallelism=parallelism,
        parameters={},
        options=stage.options,
        connection=lambda _conn_id: connection,
        previous=previous,
        recorded=recorded,
    )
    return kinesis.resolve(context)


def texts_of(client, found):
    rows = [
        row for each in found.splits for part in each["ranges"] for row in kinesis.rows_of(client, each["stream"], part)
    ]
    return sorted(row[-1].decode() for row in rows)


def test_an_epoch_reads_what_has_come_since_the_one_before_and_a_repair_the_same(connection, client, stream):
    put(client, stream, "a", "b", "c")
    first = resolved(connection, stream)
    put(client, stream, "d", "e")
    second = resolved(connection, stream, previous=first)
    third = resolved(connection, stream, previous=second)
    put(client, stream, "f")
    assert [texts_of(client, each) for each in (first, second, third)] == [["a", "b", "c"], ["d", "e"], []]
    assert third.position == second.position


def test_what_came_after_the_interval_is_of_the_next_epoch(connection, client, stream):
    put(client, stream, "late")
    early = resolved(connection, stream, days=0)
    assert texts_of(client, early) == []
    assert texts_of(client, resolved(connection, stream, previous=early)) == ["late"]


def test_other_subtasks_read_the_recorded_ranges(connection, client, stream):
    put(client, stream, *"abcdefgh")
    before = resolved(connection, stream, parallelism=1)
    put(client, stream, "since")
    after = resolved(connection, stream, recorded=before, parallelism=3)
    assert (len(after.splits), after.position) == (3, before.position)
    assert texts_of(client, after) == texts_of(client, before)


def test_shards_that_are_divided_are_read_to_their_ends_and_their_children_from_their_beginnings(
    connection, client, stream
):
    put(client, stream, "a", "b")
    first = resolved(connection, stream)
    shard = client.list_shards(StreamName=stream)["Shards"][0]
    begin, end = (int(shard["HashKeyRange"][f"{each}HashKey"]) for each in ("Starting", "Ending"))
    put(client, stream, "c", "d")
    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((begin + end) // 2))
    put(client, stream, *"efgh")
    assert texts_of(client, resolved(connection, stream, previous=first)) == list("cdefgh")


def test_records_that_the_stream_has_dropped_are_told(connection, client, stream):
    put(client, stream, "a")
    found = resolved(connection, stream)
    [part] = [each for split in found.splits for each in split["ranges"]]
    with pytest.raises(Misconfigured):
        kinesis.rows_of(client, stream, part | {"records": 2})


def test_a_stream_that_was_created_again_is_told(connection, stream):
    before = Resolved([{"ranges": []}], {"created": "another time", "ends": {}})
    with pytest.raises(Misconfigured):
        resolved(connection, stream, previous=before)


@pytest.mark.spark
@pytest.mark.soak
def test_rows_have_the_columns_of_the_schema(connection, client, stream, spark):
    put(client, stream, "a")
    context = SimpleNamespace(spark=spark, connection=lambda _conn_id: connection)
    [row] = kinesis.read(context, resolved(connection, stream, parallelism=1).splits[0]).collect()
    assert (row.key, bytes(row.data)) == ("a", b"a")


def test_a_reader_finds_the_newest_version_of_an_epoch_whole(connection, client, stream, tmp_path):
    versions, reach = Versions(tmp_path), LocalReach(tmp_path, connection)
    target = KinesisTarget({"stream": stream, "conn_id": "clicks"}, reach)
    for version in (versions.version(1, [(1, "a"), (2, "b")]), versions.version(2, [(3, "c")], [(4, None)])):
        assert target.commit(version, target.prepare(version, None)) is Outcome.COMMITTED
        assert target.commit(version, {}) is Outcome.COMMITTED
    found = published(client, stream, version.owner, str(version.epoch))
    assert found == [{"k": 3, "s": "c"}, {"k": 4, "s": None}]


@pytest.mark.parametrize("name", ["kinesis", "kinesis_versions", "kinesis_target"])
def test_the_page_shows_what_is_tested_here(name):
    page = Path(__file__).parents[2] / "docs" / "own-source-and-target.md"
    assert Path(__file__).with_name(f"{name}.py").read_text() in page.read_text()


@pytest.mark.soak
class TestTarget(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, connection, client, stream, monkeypatch):
        monkeypatch.setenv(*as_variable(connection))
        self.client, self.stream = client, stream

    def target(self, reach):
        return KinesisTarget({"stream": self.stream, "conn_id": "clicks"}, reach)

    def rows(self, epoch):
        owners = {owner for owner, _ in markers(contents_of(self.client, self.stream))}
        found = [row for owner in owners for row in published(self.client, self.stream, owner, str(epoch))]
        return sorted((row["k"], row["s"]) for row in found)

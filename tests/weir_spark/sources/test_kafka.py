"""A topic of Kafka as a source: every epoch begins where the one before has ended, whatever the topic goes through."""

import io
import json as text
import time
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import INTERVAL, looked_up

from weir.dataflow import avro, json, kafka_source
from weir.dataflow.resolving import NotReady, ResolveContext
from weir.errors import Misconfigured
from weir.kafka.cluster import Cluster
from weir_spark.sources import kafka as reading

pytestmark = pytest.mark.xdist_group("kafka")

START, END = (round(each.timestamp() * 1000) for each in INTERVAL)


class Events:
    """A topic, its producers, and a source that goes on reading it."""

    def __init__(self, broker, topic=None, **options):
        self.connection = broker.connection("events_broker")
        self.topic = f"events.{uuid.uuid4().hex}"
        self.client = {"bootstrap.servers": broker.address, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.create(**topic or {})
        self.stage = kafka_source("events", "events_broker", topic=self.topic, **options)

    def create(self, partitions=2, **settings):
        config = {"retention.ms": "-1", **{name.replace("_", "."): value for name, value in settings.items()}}
        self.do("create_topics", [NewTopic(self.topic, partitions, 1, config=config)])
        while self.topic not in self.admin.list_topics(timeout=10).topics:
            time.sleep(0.02)  # a broker knows of it a moment later

    def do(self, verb, *arguments):
        for answer in getattr(self.admin, verb)(*arguments).values():
            answer.result(30)

    def send(self, *values, partition=0, **more):
        producer = Producer(self.client)
        for value in values:
            data = value if value is None or isinstance(value, bytes) else text.dumps(value).encode()
            producer.produce(self.topic, data, partition=partition, **more)
        assert producer.flush(30) == 0

    def transaction(self, *values, partition=0, **more):
        """Send in a transaction, and leave it open."""
        producer = Producer({**self.client, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, text.dumps(value).encode(), partition=partition, **more)
        producer.flush(30)
        return producer

    def end(self, producer, verb="commit_transaction", partition=0):
        """End a transaction, and return when readers know: brokers answer a moment before."""
        getattr(producer, verb)(30)
        with Cluster(self.connection) as cluster:
            end = cluster.ends(self.topic, partition + 1, is_committed=False)[partition]
            list(cluster.read(self.topic, partition, 0, end))

    def resolve(self, previous=None, parallelism=1, **more):
        context = ResolveContext(
            dataflow="flow",
            epoch="20130101T000000Z",
            interval=INTERVAL,
            parallelism=parallelism,
            parameters={},
            options=self.stage.options,
            connection=looked_up(self.connection),
            previous=previous,
        )
        return reading.resolve(replace(context, **more))

    def rows(self, resolved):
        """The rows of all splits, as an attempt loads them."""
        files = []
        for split in resolved.splits:
            reading.load(self.connection, split, lambda _name, data: files.append(data))
        return [row for data in files for row in pq.read_table(io.BytesIO(data)).to_pylist()]

    def values(self, resolved):
        return [row["value"] and text.loads(row["value"]) for row in self.rows(resolved)]


@pytest.fixture
def events(kafka_broker):
    return Events(kafka_broker)


def test_epochs_read_each_record_once(events):
    events.send(1, 2)
    events.send(3, partition=1)
    first = events.resolve()
    assert sorted(events.values(first)) == [1, 2, 3]
    events.send(4, 5)
    second = events.resolve(first)
    assert events.values(second) == [4, 5]
    assert events.values(events.resolve(second)) == []
    assert sorted(events.values(first)) == [1, 2, 3]
    assert events.values(second) == [4, 5]


def test_a_record_has_its_position_key_headers_and_time_as_columns(events):
    events.send(b"a", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=START)
    events.send(None, key=b"k")
    value, tombstone = events.rows(events.resolve())
    at = value.pop("timestamp")
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert at == INTERVAL[0]
    assert value == {"key": b"k", "value": b"a", "headers": headers, "partition": 0, "offset": 0}
    assert (tombstone["key"], tombstone["value"], tombstone["offset"]) == (b"k", None, 1)


def test_only_what_is_committed_is_read_and_gaps_are_passed_over(events):
    events.end(events.transaction("aborted"), "abort_transaction")
    events.end(events.transaction("a", "b"))
    is_open = events.transaction("late")
    events.send("behind it")
    first = events.resolve()
    assert events.values(first) == ["a", "b"]
    events.end(is_open)
    assert events.values(events.resolve(first)) == ["late", "behind it"]


def test_offsets_are_divided_among_subtasks_and_anew_for_others(events):
    events.send(*range(10))
    events.send(*range(10, 13), partition=1)
    first = events.resolve(parallelism=3)
    lengths = [sum(end - begin for _, begin, end in split["ranges"]) for split in first.splits]
    assert lengths == [4, 4, 5]
    assert sorted(events.values(first)) == list(range(13))
    events.send("later")
    again = events.resolve(parallelism=2, recorded=first)
    assert (again.position, sorted(events.values(again))) == (first.position, list(range(13)))


def test_new_partitions_are_read_from_their_beginning(events):
    events.send(1)
    first = events.resolve()
    events.do("create_partitions", [NewPartitions(events.topic, 3)])
    events.send(2, partition=2)
    assert events.values(events.resolve(first)) == [2]


def test_offsets_that_the_broker_has_dropped_are_named(events):
    events.send(1, 2, 3)
    first = events.resolve()
    events.send(4, 5)
    second = events.resolve(first)
    events.do("delete_records", [TopicPartition(events.topic, 0, 4)])
    named = {"topic": events.topic, "partition": 0, "begin": 3, "first": 4}
    with pytest.raises(Misconfigured, check=of_kind("sources.kafka_offsets_dropped", **named)):
        events.rows(second)
    with pytest.raises(Misconfigured, check=of_kind("sources.kafka_offsets_dropped", **named)):
        events.resolve(first)


def test_a_partition_that_ends_before_what_was_read_has_lost_records(events):
    events.send(1)
    first = events.resolve()
    ahead = replace(first, position={**first.position, "ends": {"0": 7, "1": 0}})
    with pytest.raises(Misconfigured, check=of_kind("sources.kafka_offsets_went_back", partition=0, begin=7)):
        events.resolve(ahead)


def test_a_topic_that_was_made_again_is_another_one(events):
    events.send(1)
    first = events.resolve()
    events.do("delete_topics", [events.topic])
    with pytest.raises(Misconfigured, check=of_kind("sources.kafka_topic_missing")):
        events.resolve(first)
    events.create()
    for call in (lambda: events.resolve(first), lambda: events.rows(first)):
        with pytest.raises(Misconfigured, check=of_kind("sources.kafka_topic_made_again")):
            call()


SCHEMA = "k BIGINT, s STRING, d DECIMAL(5,2), m MAP<STRING,INT>, a ARRAY<STRUCT<x:INT>>, t TIMESTAMP, f FLOAT"


def test_json_is_read_by_a_schema(kafka_broker):
    events = Events(kafka_broker, value=json(SCHEMA))
    events.send({"k": 2**53 + 1, "d": 1.5, "m": {"b": 1}, "a": [{"x": 1}], "t": "2013-01-01T01:00:00+01:00", "z": 0})
    events.send(None, {}, {"s": "2013-01-01T00:00:00.1234567Z", "t": "2013-01-01T00:00:00.1234560Z", "d": 1e2})
    full, tombstone, empty, fine = (row["value"] for row in events.rows(events.resolve()))
    assert full == {
        "k": 2**53 + 1,
        "s": None,
        "d": Decimal("1.50"),
        "m": [("b", 1)],
        "a": [{"x": 1}],
        "t": datetime(2013, 1, 1, tzinfo=UTC),
        "f": None,
    }
    assert tombstone is None
    assert empty == dict.fromkeys(full)
    assert (fine["s"], fine["t"].microsecond, fine["d"]) == ("2013-01-01T00:00:00.1234567Z", 123456, Decimal(100))


BAD = [
    *(b"{", b"null", b"[1]", b'{"k": "1"}', b'{"k": 1.5}', b'{"k": 9223372036854775808}', b'{"d": 1.234}'),
    *(b'{"s": "\xff"}', b'{"t": "2013-01-01T00:00:00.1234567Z"}', b'{"t": "2013-01-01T00:00:00"}', b'{"f": 1e39}'),
]


@pytest.mark.parametrize("on_malformed", ["fail", "keep"])
def test_a_malformed_record_fails_with_its_position_or_is_kept(kafka_broker, on_malformed):
    events = Events(kafka_broker, value=json(SCHEMA), on_malformed=on_malformed)
    events.send({"k": 1}, *BAD)
    found = events.resolve()
    if on_malformed == "fail":
        with pytest.raises(Misconfigured, check=of_kind("sources.kafka_malformed", partition=0, offset=1)):
            events.rows(found)
        return
    good, *bad = events.rows(found)
    assert (good["value"]["k"], good["_corrupt_record"]) == (1, None)
    assert [(row["value"], row["_corrupt_record"], row["offset"]) for row in bad] == [
        (None, value, at) for at, value in enumerate(BAD, 1)
    ]


AVRO = text.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "k", "type": "long"},
            {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        ],
    }
)


def test_avro_is_read_by_the_schema_that_wrote_it(kafka_broker):
    events = Events(kafka_broker, value=avro(AVRO), on_malformed="keep")
    far = 2**62 * 2  # milliseconds that no timestamp of Spark has
    events.send(b"\x36\2\xd0\x0f\2\2\2k\2\2a\0\0", b"\x36\0\0\0", None, b"\x36\0\0", b"\0\2" + varint(far) + b"\0\0")
    full, plain, tombstone, *bad = events.rows(events.resolve())
    assert full["value"] == {
        "k": 27,
        "t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "d": date(1970, 1, 2),
        "m": [("k", ["a"])],
    }
    assert plain["value"] == {"k": 27, "t": None, "d": date(1970, 1, 1), "m": []}
    assert [row["value"] for row in (tombstone, *bad)] == [None] * 3
    assert [row["_corrupt_record"] is None for row in (tombstone, *bad)] == [True, False, False]


def varint(number):
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


# Bounds by time


@pytest.fixture
def timed(kafka_broker):
    return Events(kafka_broker, bounds="epoch", idle="10 minutes")


def test_an_epoch_ends_at_the_first_record_of_a_later_time_and_none_is_left_out(timed):
    timed.send("before", timestamp=START - 1)
    timed.send("a", timestamp=START)
    timed.send("late for the day before", timestamp=START - 5)
    timed.send("next", timestamp=END)
    timed.send("out of order", timestamp=END - 1)
    timed.send("other", partition=1, timestamp=START)
    waiting = timed.resolve()
    assert isinstance(waiting, NotReady)
    assert "partition 1" in waiting.reason
    first = timed.resolve(waited=timedelta(minutes=10))
    assert sorted(timed.values(first)) == ["a", "late for the day before", "other"]
    following = (INTERVAL[1], INTERVAL[1] + timedelta(days=1))
    second = timed.resolve(first, interval=following, waited=timedelta(minutes=10))
    assert timed.values(second) == ["next", "out of order"]


def test_no_epoch_ends_above_the_last_stable_offset(timed):
    timed.send("a", timestamp=START)
    is_open = timed.transaction("b", timestamp=START)
    for partition in (0, 1):
        timed.send("c", partition=partition, timestamp=END)
    assert isinstance(timed.resolve(), NotReady)
    first = timed.resolve(waited=timedelta(minutes=11))
    assert timed.values(first) == ["a"]
    timed.end(is_open)
    following = {"interval": (INTERVAL[1], INTERVAL[1] + timedelta(days=1)), "waited": timedelta(minutes=11)}
    assert sorted(timed.values(timed.resolve(first, **following))) == ["b", "c", "c"]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"bounds": "time"}, "kafka_bounds_unknown"),
        ({"idle": "1 minute"}, "kafka_idle_needless"),
        ({"value": "json"}, "kafka_value_unknown"),
        ({"value": json("v VARIANT")}, "kafka_type_unknown"),
        ({"topic": ""}, "text_empty"),
    ],
)
def test_a_declaration_that_cannot_be_right_is_refused(more, kind):
    with pytest.raises(Misconfigured, check=of_kind(f"dataflow.{kind}")):
        kafka_source("events", "events_broker", **{"topic": "t", **more})


@pytest.mark.spark
def test_spark_has_the_columns_of_what_was_read(kafka_broker, attempt):
    events = Events(kafka_broker, value=json(SCHEMA), on_malformed="keep")
    events.send({"k": 1, "m": {"a": 1}}, None, b"{", key=b"x", timestamp=START)
    (split,) = events.resolve().splits
    rows = attempt.read(events.stage, split, events.connection).orderBy("offset").collect()
    assert [
        (row.key, row.value and row.value.m, row._corrupt_record, row.timestamp.astimezone(UTC)) for row in rows
    ] == [
        (b"x", {"a": 1}, None, INTERVAL[0]),
        (b"x", None, None, INTERVAL[0]),
        (b"x", None, b"{", INTERVAL[0]),
    ]


@pytest.mark.soak
def test_compaction_meanwhile_leaves_what_is_there(kafka_broker):
    eager = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    events = Events(kafka_broker, eager)
    events.send(*range(200), key=b"same")
    first = events.resolve()
    assert events.values(first) == list(range(200))
    deadline = time.monotonic() + 60
    while events.values(first):
        assert time.monotonic() < deadline
        time.sleep(0.2)
        events.send("later", key=b"same")
    second = events.resolve(first)
    assert events.values(second)[-1] == "later"
    events.send("last", key=b"other")
    assert events.values(events.resolve(second)) == ["last"]

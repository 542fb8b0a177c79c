"""Kafka as a target: each epoch is once in the topic for a reader of what is committed."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from tests.messages.kinds import of_kind
from tests.servers.kafka import running_kafka
from tests.weir.sinks.kafka_sink import Sink

from weir.dataflow import kafka
from weir.errors import Misconfigured, Retryable
from weir.kafka.cluster import Cluster
from weir.sinks import Outcome, TargetAway, TargetConflict
from weir.sinks.targets.kafka import KafkaTarget
from weir.testing.sink_contract import DAY, NEXT, LocalReach, SinkContract, killed_at
from weir.topology.ids import Epoch

pytestmark = pytest.mark.xdist_group("kafka")


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def topic(self, kafka_broker, tmp_path):
        self.sink = Sink(kafka_broker, tmp_path, mode="upsert")

    def target(self, reach):
        self.sink.versions.folder = reach.folder
        return self.sink.target()

    def rows(self, epoch):
        return self.sink.rows(epoch)

    def write_as_somebody_else(self):
        producer = Producer({"bootstrap.servers": self.sink.broker.address, "log_level": 0})
        producer.produce(self.sink.topic, b"theirs", b"99", headers={"weir.epoch": b"none"})
        producer.flush(10)
        return lambda: b"theirs" in [record.value() for record in self.sink.records()]

    def _is_killed(self, line, folder, version, token):
        return killed_in_a_process(line, self.target(LocalReach(folder / "the store")), version, token)

    @pytest.mark.soak
    def test_a_reader_sees_whole_versions_only(self, tmp_path):
        super().test_a_reader_sees_whole_versions_only(tmp_path)

    @pytest.mark.soak
    @pytest.mark.timeout(3000)
    def test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(self, tmp_path):
        super().test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(tmp_path)


SOURCE = sys.modules[KafkaTarget.__module__].__file__
KILLED = 9


def killed_in_a_process(line, target, version, token):
    """Commit in a process that ends at a line of the target, and closes no client; report whether it came to that."""
    child = os.fork()
    if child == 0:
        commit_until(line, target, version, token)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


def commit_until(line, target, version, token):
    left = line

    def trace(frame, event, _argument):
        nonlocal left
        if frame.f_code.co_filename != SOURCE:
            return None
        left -= event == "line"
        return trace if left else os._exit(KILLED)

    gc.disable()  # the parent's clients have no threads here that could end
    try:
        sys.settrace(trace)
        target.commit(version, token)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.fixture
def sink(kafka_broker, tmp_path):
    return Sink(kafka_broker, tmp_path)


@pytest.fixture
def upsert(kafka_broker, tmp_path):
    return Sink(kafka_broker, tmp_path, mode="upsert")


def keyed(sink):
    """The value of each key that a reader of a compacted topic ends with."""
    found = {}
    for record in sink.records():
        found[json.loads(record.key())["k"]] = record.value() and json.loads(record.value())["s"]
    return {key: value for key, value in found.items() if value is not None}


def test_append_refuses_other_content_of_an_epoch_and_takes_equal_content(sink):
    target = sink.target()
    assert sink.publish(target, sink.version(1, (1, "a"))) is Outcome.COMMITTED
    assert sink.publish(target, sink.version(2, (1, "a"))) is Outcome.EQUAL
    with pytest.raises(TargetConflict, check=of_kind("sinks.kafka_append_twice", number=1, epoch=DAY)):
        target.prepare(sink.version(3, (2, "b")), None)
    token = target.prepare(sink.version(1, (5, "b"), epoch=NEXT), None)
    with pytest.raises(TargetConflict, check=of_kind("sinks.kafka_append_twice")):
        target.commit(sink.version(3, (2, "b")), token)
    assert sink.rows() == [(1, "a")]


def test_a_record_has_its_columns_in_json_and_headers_with_its_epoch(sink):
    sink.publish(sink.target(key="s"), sink.version(1, (2**53 + 1, "ä")))
    (record,) = sink.records()
    assert (record.key().decode(), record.value().decode()) == ("ä", '{"k":9007199254740993,"s":"ä"}')
    assert dict(record.headers()) == {
        "weir.epoch": DAY.encode(),
        "weir.version": b"1",
        "weir.sink": b"contract.delays",
    }


def test_upsert_is_last_epoch_wins_and_a_key_that_vanished_gets_a_tombstone(upsert):
    target = upsert.target()
    upsert.publish(target, upsert.version(1, (1, "a"), (2, "a"), (4, "a")))
    upsert.publish(target, upsert.version(1, (2, "b"), (3, "b"), epoch=NEXT))
    upsert.publish(target, upsert.version(2, (1, "c"), (2, "c"), (5, "c")))
    assert keyed(upsert) == {1: "c", 2: "b", 3: "b", 5: "c"}


def test_what_a_later_epoch_wrote_is_known_behind_somebodys_open_transaction(upsert, monkeypatch):
    target, first = upsert.target(), upsert.version(1, (1, "a"))
    upsert.publish(target, first)
    theirs = Producer({"bootstrap.servers": upsert.broker.address, "transactional.id": "theirs", "log_level": 0})
    theirs.init_transactions(30)
    theirs.begin_transaction()
    for partition in (0, 1):
        theirs.produce(upsert.topic, b"{}", b"0", partition=partition)
    theirs.flush(30)
    upsert.publish(target, upsert.version(1, (1, "b"), epoch=NEXT))
    second = upsert.version(2, (1, "c"))
    token = target.prepare(second, None)
    monkeypatch.setattr("weir.kafka.cluster.SILENT_SECONDS", 0.5)
    with pytest.raises(Retryable, check=of_kind("kafka.read_stalled", topic=upsert.topic)):
        target.commit(second, token)
    theirs.abort_transaction(30)
    assert target.commit(second, token) is Outcome.COMMITTED
    assert keyed(upsert) == {1: "b"}


@pytest.mark.soak
def test_compaction_meanwhile_forgets_no_epoch(kafka_broker, tmp_path):
    """Neither in the topic, whose tombstones go, too, nor among its markers."""
    eager = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}
    sink = Sink(kafka_broker, tmp_path, mode="upsert", partitions=1, **eager)
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a"), (2, "a"), (4, "a")))
    for name in ("segment.ms", "min.cleanable.dirty.ratio", "delete.retention.ms"):
        sink.change(sink.markers, name, eager[name.replace(".", "_")])
    sink.publish(target, sink.version(1, (2, "b"), (3, "b"), epoch=NEXT))
    deadline, number = time.monotonic() + 60, 1
    while any(record.key() == b'{"k":4}' for record in sink.records()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
        number += 1
        assert sink.publish(target, sink.version(number, (1, f"c{number}"), (5, "c"))) is Outcome.COMMITTED
        assert keyed(sink) == {1: f"c{number}", 2: "b", 3: "b", 5: "c"}
    sink.publish(target, sink.version(number + 1, (2, "d"), (5, "d")))
    assert keyed(sink) == {2: "b", 3: "b", 5: "d"}
    old = sink.version(number, (9, "old"))
    assert target.commit(old, target.prepare(old, None)) is Outcome.SUPERSEDED


def test_upsert_refuses_keys_that_identify_no_row(upsert):
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_key_twice", key='{"k":1}')):
        upsert.target().prepare(upsert.version(1, (1, "a"), (1, "b")), None)
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_key_null", name="s")):
        upsert.target(key=["k", "s"]).prepare(upsert.version(1, (1, "a"), (2, None)), None)


@pytest.mark.parametrize(("mode", "other"), [("append", "compact"), ("upsert", "delete")])
def test_the_policy_of_a_topic_is_that_of_the_mode(kafka_broker, tmp_path, mode, other):
    sink = Sink(kafka_broker, tmp_path, mode=mode, cleanup_policy=other)
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_policy_unfit", mode=mode, policy=other)):
        sink.target().prepare(sink.version(1, (1, "a")), None)


def test_what_can_fail_fails_before_anything_is_published(sink, kafka_broker):
    version = sink.version(1, (1, "a" * 100))
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_column_missing", missing=["z"])):
        sink.target(value="z").prepare(version, None)
    sink.change(sink.topic, "max.message.bytes", "300")
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_record_too_long")):
        sink.target().prepare(version, None)
    sink.delete()
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_topic_missing", topic=sink.topic)):
        sink.target().prepare(version, None)


def test_a_topic_belongs_to_one_sink(sink):
    sink.target().prepare(sink.version(1, (1, "a")), None)
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_owned_by_another", other="contract.delays")):
        sink.target().prepare(sink.version(1, (1, "a"), sink="others"), None)


def test_markers_that_could_be_lost_are_refused(sink):
    token = sink.target().prepare(sink.version(1, (1, "a")), None)
    sink.change(sink.markers, "cleanup.policy", "compact,delete")
    with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_markers_unfit", markers=sink.markers)):
        sink.target().commit(sink.version(1, (1, "a")), token)
    sink.change(sink.markers, "cleanup.policy", "compact")
    sink.delete(sink.markers)
    with pytest.raises(TargetConflict, check=of_kind("sinks.kafka_markers_gone", markers=sink.markers)):
        sink.target().commit(sink.version(1, (1, "a")), token)
    assert sink.records() == []


def test_a_topic_made_again_between_prepare_and_commit_gets_the_epoch_once(sink):
    target, version = sink.target(), sink.version(1, (1, "a"))
    token = target.prepare(version, None)
    sink.delete()
    sink.create()
    assert [target.commit(version, token) for _ in range(2)] == [Outcome.COMMITTED] * 2
    assert sink.rows() == [(1, "a")]
    sink.delete()
    sink.create()
    assert target.recover(version, token) is Outcome.ABSENT
    assert target.commit(version, token) is Outcome.COMMITTED
    assert sink.rows() == [(1, "a")]


def test_partitions_added_to_a_topic_of_an_upsert_are_refused(upsert):
    target = upsert.target()
    upsert.publish(target, upsert.version(1, (1, "a")))
    upsert.admin("create_partitions", [NewPartitions(upsert.topic, 3)])
    with pytest.raises(TargetConflict, check=of_kind("sinks.kafka_partitions_added", before=2, partitions=3)):
        target.prepare(upsert.version(1, (1, "a"), epoch=NEXT), None)


# Processes that end, and those that were thought to have ended

STEPS = [
    pytest.param("init_transactions", "before", marks=pytest.mark.soak),
    pytest.param("init_transactions", "after", marks=pytest.mark.soak),
    pytest.param("begin_transaction", "after", marks=pytest.mark.soak),
    pytest.param("produce", "before", marks=pytest.mark.soak),
    pytest.param("produce", "after", marks=pytest.mark.soak),
    ("commit_transaction", "before"),
    ("commit_transaction", "after"),
]


class Died(BaseException):
    """What ends a process at once."""


@contextmanager
def dying(monkeypatch, step, when):
    """Let the process die at its call of a step: before it, or with the answer lost. It does nothing more."""

    class Dying(Producer):
        def abort_transaction(self, *_given):
            raise Died

    def call(self, *given, **named):
        if when == "after":
            getattr(Producer, step)(self, *given, **named)
        self.flush(10)
        raise Died

    setattr(Dying, step, call)
    with monkeypatch.context() as patch:
        patch.setattr("weir.kafka.cluster.Producer", Dying)
        with pytest.raises(Died):
            yield


@pytest.mark.parametrize(("step", "when"), STEPS)
def test_a_process_that_dies_at_a_step_leaves_the_epoch_whole_or_absent(sink, monkeypatch, step, when):
    target, version = sink.target(), sink.version(1, (1, "a"), (2, "b"))
    token = target.prepare(version, None)
    with dying(monkeypatch, step, when):
        target.commit(version, token)
    is_in = (step, when) == ("commit_transaction", "after")
    assert sink.rows() == ([(1, "a"), (2, "b")] if is_in else [])
    assert target.recover(version, token) is (Outcome.COMMITTED if is_in else Outcome.ABSENT)
    assert sink.target().commit(version, token) is Outcome.COMMITTED
    assert sink.rows() == [(1, "a"), (2, "b")]


def test_a_transaction_that_is_interrupted_is_aborted(sink, monkeypatch):
    """Readers need not wait until its time is over."""
    target, version = sink.target(), sink.version(1, (1, "a"))
    token = target.prepare(version, None)

    class Interrupted(Producer):
        def commit_transaction(self, *_given):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("weir.kafka.cluster.Producer", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.commit(version, token)
    with Cluster(sink.broker.connection("events")) as cluster:
        end = cluster.ends(sink.markers, 1, is_committed=False)[0]
        assert len(list(cluster.read(sink.markers, 0, 0, end))) == 1
    assert target.commit(version, token) is Outcome.COMMITTED


def test_a_process_that_was_suspended_before_its_commit_commits_nothing_more(sink, monkeypatch):
    """It has sent its records; meanwhile another one commits the same version."""
    target, version = sink.target(), sink.version(1, (1, "a"))
    token, others = target.prepare(version, None), []

    class Suspended(Producer):
        def commit_transaction(self, *given):
            if not others:
                others.append("at once, or it would suspend itself")
                others[:] = [sink.target().commit(version, token)]
            super().commit_transaction(*given)

    monkeypatch.setattr("weir.kafka.cluster.Producer", Suspended)
    assert target.commit(version, token) is Outcome.COMMITTED
    assert others == [Outcome.COMMITTED]
    assert sink.rows() == [(1, "a")]


def test_a_transaction_that_took_too_long_is_made_again(sink, monkeypatch):
    """The broker ends it meanwhile."""
    target, version = sink.target(), sink.version(1, (1, "a"))
    token, slow = target.prepare(version, None), []

    class Slow(Producer):
        def commit_transaction(self, *given):
            if not slow:
                slow.append(True)
                self.flush(10)
                Producer(  # as the coordinator does when the time is over: it raises the epoch of the id
                    {
                        "bootstrap.servers": sink.broker.address,
                        "transactional.id": f"weir/{sink.topic}",
                        "log_level": 0,
                    }
                ).init_transactions(30)
            super().commit_transaction(*given)

    monkeypatch.setattr("weir.kafka.cluster.Producer", Slow)
    assert target.commit(version, token) is Outcome.COMMITTED
    assert slow == [True]
    assert sink.rows() == [(1, "a")]


def test_a_broker_that_does_not_answer_is_away(sink, kafka_broker, monkeypatch):
    monkeypatch.setattr("weir.kafka.cluster.ANSWER_SECONDS", 0.5)
    made = kafka("dead", topic=sink.topic)
    dead = kafka_broker.connection("dead", **{"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(TargetAway, check=of_kind("kafka.away", conn_id="dead")):
        KafkaTarget(made.options, LocalReach(sink.versions.folder, dead)).prepare(sink.version(1, (1, "a")), None)


@pytest.mark.soak
def test_writers_of_one_transactional_id_leave_each_epoch_once(sink):
    rows, epochs = [(at, "x") for at in range(500)], [Epoch(f"2013010{day}T000000Z") for day in range(1, 7)]
    versions = [sink.version(1, *rows, epoch=epoch) for epoch in epochs]
    tokens = [sink.target().prepare(version, None) for version in versions]
    twice = [(version, token) for version, token in zip(versions, tokens, strict=True) for _ in range(2)]
    with ThreadPoolExecutor(len(twice)) as committing:
        outcomes = list(committing.map(lambda given: committed(sink, *given), twice))
    assert outcomes == [Outcome.COMMITTED] * len(twice)
    assert [len(sink.rows(version.epoch)) for version in versions] == [500] * len(versions)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_append_interrupted_at_any_line_leaves_the_epoch_whole_or_absent(kafka_broker, tmp_path):
    """As by a time-out of the task: the process goes on."""
    is_killed, line = True, 0
    while is_killed:
        line += 1
        sink, rows = Sink(kafka_broker, tmp_path), [(1, "a"), (2, "b")]
        version = sink.version(1, *rows)
        token = sink.target().prepare(version, None)
        is_killed = killed_at(line, {SOURCE}, partial(sink.target().commit, version, token))
        gc.collect()  # producers of interrupted commits are in cycles, and have threads each
        assert sink.rows() in ([], rows)
        assert sink.target().commit(version, token) is Outcome.COMMITTED
        assert sink.rows() == rows
    assert line > 20


@pytest.mark.soak
def test_a_broker_killed_while_an_epoch_is_sent_and_started_again_has_it_once(tmp_path):
    with running_kafka(tmp_path / "broker") as broker:
        sink = Sink(broker, tmp_path)
        rows = [(number, "x" * 100) for number in range(200_000)]
        for turn, pause in enumerate((0.2, 0.5, 0.8, 1.2, 1.6, 2.5)):
            epoch = Epoch(f"2013010{turn + 1}T000000Z")
            version = sink.version(1, *rows, epoch=epoch)
            token = sink.target().prepare(version, None)
            with ThreadPoolExecutor() as committing:
                outcome = committing.submit(committed, sink, version, token)
                time.sleep(pause)
                broker.restart()  # not in a thread of its own: a server ends with the thread that has started it
                assert outcome.result() is Outcome.COMMITTED
            assert sink.target().commit(version, token) is Outcome.COMMITTED
            assert len(sink.rows(epoch)) == len(rows)


def committed(sink, version, token):
    """Commit as upkeep does, until the target answers."""
    while True:
        with suppress(Retryable):
            return sink.target().commit(version, token)


@pytest.mark.soak
def test_a_transaction_that_the_broker_has_ended_is_made_again(sink, monkeypatch):
    """What a killed process had open ends by itself, too, and holds up no reader longer than its time-out."""
    monkeypatch.setattr("weir.sinks.targets.kafka._SHORTEST_TRANSACTION", 2.0)
    target, version = sink.target(), sink.version(1, (1, "a"))
    token, slow = target.prepare(version, None), []

    class Slow(Producer):
        def commit_transaction(self, *given):
            if not slow:
                slow.append(self.flush(10))
                time.sleep(4)  # longer than the broker lets a transaction be open
            super().commit_transaction(*given)

    monkeypatch.setattr("weir.kafka.cluster.Producer", Slow)
    assert target.commit(version, token) is Outcome.COMMITTED
    assert slow == [0]
    assert sink.rows() == [(1, "a")]


@pytest.mark.soak
def test_a_login_and_rights_that_are_refused_are_told(tmp_path):
    with running_kafka(tmp_path / "broker", **secured()) as broker:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "weir"}
        admin = {**login, "sasl.username": "admin", "sasl.password": "of-admin"}
        sink = Sink(broker, tmp_path, account=admin)
        version = sink.version(1, (1, "a"))
        sink.account = {**login, "sasl.password": "wrong"}
        with pytest.raises(Misconfigured, check=of_kind("kafka.login_refused", conn_id="events")) as refused:
            sink.target().prepare(version, None)
        assert "wrong" not in str(refused.value)
        sink.account = {**login, "sasl.password": "of-weir"}
        with pytest.raises(Misconfigured, check=of_kind("kafka.right_missing")):
            sink.target().prepare(version, None)
        allow(sink, "TOPIC", sink.topic, "DESCRIBE", "DESCRIBE_CONFIGS")
        with pytest.raises(Misconfigured, check=of_kind("sinks.kafka_right_missing", missing=["WRITE"])):
            sink.target().prepare(version, None)
        allow(sink, "TOPIC", sink.topic, "WRITE")
        with pytest.raises(Misconfigured, check=of_kind("kafka.right_missing")):
            sink.target().prepare(version, None)
        allow(sink, "TOPIC", sink.markers, "CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS")
        with pytest.raises(Misconfigured, check=of_kind("kafka.right_missing")):
            sink.target().prepare(version, None)
        allow(sink, "TRANSACTIONAL_ID", f"weir/{sink.topic}", "WRITE", "DESCRIBE")
        assert sink.publish(sink.target(), version) is Outcome.COMMITTED
        assert sink.rows() == [(1, "a")]


def secured():
    """Settings of a broker with the accounts `admin`, who may do all, and `weir`, who may do what it is allowed to."""
    users = "".join(f' user_{name}="of-{name}"' for name in ("admin", "weir"))
    own = 'username="admin" password="of-admin"'
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {own}{users};"
    return {
        "listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
        "listener_name_plaintext_plain_sasl_jaas_config": module,
        "listener_name_plaintext_sasl_enabled_mechanisms": "PLAIN",
        "sasl_mechanism_inter_broker_protocol": "PLAIN",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:admin;User:ANONYMOUS",
    }


def allow(sink, kind, name, *operations):
    rules = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.LITERAL,
            "User:weir",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    sink.admin("create_acls", rules)

"""Kafka's clients for targets and sources: what a connection says, facts about topics, reading of ranges.

Invariants: what is read is committed. A range is read to its end or an error is raised; it never ends early because
nobody answers, or because somebody's transaction is open. No error shows a secret. The client that asks is closed by
the thread that has opened it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import (
    Message as Record,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from weir.connections import Connection
from weir.errors import Misconfigured, Retryable, WeirError
from weir.secrecy import without_secrets

__all__ = ["Cluster", "KafkaError", "KafkaException", "Record", "Topic", "TopicPartition"]

ANSWER_SECONDS: Final = 30.0
"""How long a request may take."""

SILENT_SECONDS: Final = 60.0
"""How long a read may bring nothing before it is given up."""

DEFAULT_MAX_TRANSACTION: Final = 900.0
"""Kafka's own transaction.max.timeout.ms, in seconds, where the account may not ask for the broker's."""

_AT_ONCE: Final = 1000
_OF_AIRFLOW: Final = frozenset({"error_cb"})
"""Extras of Airflow's own Kafka connections that are no settings of the client library."""

_QUIET: Final = {"log_level": 2, "socket.keepalive.enable": True, "reconnect.backoff.max.ms": 2000}
_READING: Final = {
    "group.id": "weir",  # required; nothing is committed by it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "max.poll.interval.ms": 86_400_000,  # a store may be slow between two polls
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 5,  # or it waits for a second whenever its queue is full
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 50_000,
    "max.partition.fetch.bytes": 4_194_304,
    "check.crcs": True,
}
_RIGHTS: Final = frozenset(
    {
        *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        *(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    }
)
_LOGIN: Final = frozenset(
    {
        *(KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED),  # noqa: SLF001  so librdkafka's are named
        *(KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE, KafkaError._SSL),  # noqa: SLF001
    }
)
_REFUSED: Final = frozenset(
    {
        *(KafkaError.INVALID_TRANSACTION_TIMEOUT, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG),
        *(KafkaError.TOPIC_EXCEPTION, KafkaError._INVALID_ARG, KafkaError.UNSUPPORTED_VERSION),  # noqa: SLF001
    }
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its id, which another one of the same name does not have, its settings, and what the account may do."""

    name: str
    id: str
    partitions: int
    settings: Mapping[str, str]
    rights: frozenset[str]

    @property
    def is_compacted(self) -> bool:
        """Report whether Kafka removes records whose key has a later one."""
        return "compact" in self.settings.get("cleanup.policy", "")

    @property
    def longest(self) -> int:
        """The bytes of the largest batch of records that it takes."""
        return int(self.settings.get("max.message.bytes", 1_048_588))


class Cluster:
    """The cluster of an Airflow connection of type kafka. Raises Misconfigured for another connection.

    All methods raise Retryable where it does not answer, and Misconfigured where it refuses. It is used in a `with`
    statement: left to the garbage collector, the client that asks may be destroyed while its own thread has an answer,
    and then the client library aborts the process (github.com/confluentinc/confluent-kafka-python/pull/2131).
    """

    def __init__(self, connection: Connection) -> None:
        self.conn_id = connection.id
        self._told: list[KafkaError] = []
        """What background threads say: the call that waits for a login only knows that time has run out."""
        # It knows the list alone: clients in a cycle of references would be kept until the next collection.
        self._settings = {**settings_of(connection), **_QUIET, "error_cb": self._told.append}
        self._opened: AdminClient | None = None

    def __enter__(self) -> Self:
        with self.reached("its brokers"):
            self._opened = AdminClient(self._settings)
        return self

    def __exit__(self, *_raised: object) -> None:
        opened, self._opened = self._admin, None
        opened.__exit__(None, None, None)

    def topic(self, name: str) -> Topic | None:
        """Describe a topic; None where there is none that the account may see."""
        with self.reached(f"topic {name}"):
            asked = self._admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)
            try:
                found = self._answer(asked[name])
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise
            return Topic(
                name=name,
                id=str(found.topic_id),
                partitions=len(found.partitions),
                settings=self._described(ConfigResource.Type.TOPIC, name),
                rights=frozenset(each.name for each in found.authorized_operations or ()),
            )

    def create_compacted(self, name: str) -> None:
        """Make a topic of one partition, of which Kafka keeps the last record of each key; another may have made it."""
        with self.reached(f"topic {name}"):
            made = NewTopic(name, 1, config={"cleanup.policy": "compact"})
            try:
                self._answer(self._admin.create_topics([made])[name])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def longest_transaction(self) -> float:
        """Return the seconds that a transaction may take, or Kafka's own default if the account may not ask."""
        with self.reached("its brokers"):
            brokers = list(self._admin.list_topics(timeout=ANSWER_SECONDS).brokers)
        try:
            with self.reached("its brokers"):
                found = [self._described(ConfigResource.Type.BROKER, str(each)) for each in brokers]
        except Misconfigured:
            return DEFAULT_MAX_TRANSACTION
        given = [float(each["transaction.max.timeout.ms"]) for each in found if "transaction.max.timeout.ms" in each]
        return min(given) / 1000 if given else DEFAULT_MAX_TRANSACTION

    def ends(self, topic: str, partitions: int, *, is_committed: bool = True) -> dict[int, int]:
        """Return the last stable offset of each partition, or where the partition ends."""
        return self._offsets(topic, partitions, OffsetSpec.latest(), is_committed=is_committed)

    def beginnings(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the first offset of each partition that is still there."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def at_time(self, topic: str, partitions: int, time: datetime) -> dict[int, int | None]:
        """Return the first offset of each partition whose record has this time or a later one; None where none has."""
        spec = OffsetSpec.for_timestamp(round(time.timestamp() * 1000))
        found = self._offsets(topic, partitions, spec, is_committed=False)
        return {number: None if offset < 0 else offset for number, offset in found.items()}

    def _offsets(self, topic: str, partitions: int, spec: Any, *, is_committed: bool = True) -> dict[int, int]:
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(topic, number): spec for number in range(partitions)}
        with self.reached(f"topic {topic}"):
            asked = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=ANSWER_SECONDS)
            return {at.partition: self._answer(each).offset for at, each in asked.items()}

    def read(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Record]:
        """Yield the committed records of a partition from `begin` until `end`, which belongs to the next range.

        Offsets that hold no record are passed over: those of aborted transactions, of markers, of what compaction took.
        Raises Retryable if an open transaction hides what is before `end`.
        """
        with self.reached(f"topic {topic}"), closing(Consumer({**self._settings, **_READING})) as consumer:
            consumer.assign([TopicPartition(topic, partition, begin)])
            at, until = begin, time.monotonic() + SILENT_SECONDS
            while at < end:
                first = consumer.poll(1.0)  # `consume` alone would wait until there are so many
                for record in [] if first is None else [first, *consumer.consume(_AT_ONCE, timeout=0)]:
                    error = record.error()
                    if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        continue  # the client library asks for a group that nothing needs
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                        raise KafkaException(error)
                    until = until if error is not None else time.monotonic() + SILENT_SECONDS
                    at = record.offset() if error is not None else record.offset() + 1
                    if at > end or (error is None and record.offset() >= end):
                        return
                    if error is None:
                        yield record
                if at < end and time.monotonic() > until:
                    raise Retryable.of("kafka.read_stalled", topic=topic, partition=partition, at=at, end=end)

    def producer(self, topic: str, transactional_id: str, seconds: float, longest: int) -> Producer:
        """Take a transactional id: what was open is ended, and who had it is fenced. Raises KafkaException.

        The producer's transactions last at most so long. It is for a topic that is there.
        """
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(seconds * 1000),
            "message.max.bytes": min(max(longest, 1000), 1_000_000_000),
            "partitioner": "murmur2_random",  # as Kafka's own clients do
            "queue.buffering.max.kbytes": 65_536,
            "delivery.report.only.error": True,
            "linger.ms": 5,
        }
        made = Producer({**self._settings, **own})
        made.list_topics(topic, timeout=ANSWER_SECONDS)  # once it is connected, an id is taken without a pause of 0.5 s
        made.init_transactions(ANSWER_SECONDS)
        return made

    @contextmanager
    def reached(self, what: str) -> Iterator[None]:
        """Translate the errors of the client library."""
        try:
            yield
        except KafkaException as error:
            raise self.said(what, error.args[0]) from error
        except TimeoutError as error:
            raise self.said(what, KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001

    def said(self, what: str, error: KafkaError) -> WeirError:
        """Return an error of the client library as one of ours."""
        login = error if error.code() in _LOGIN else self._login
        told = without_secrets((login or error).str())
        if login is not None:
            return Misconfigured.of("kafka.login_refused", conn_id=self.conn_id, said=told)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            return Misconfigured.of("kafka.offsets_dropped", what=what, said=told)
        if error.code() in _RIGHTS:
            return Misconfigured.of("kafka.right_missing", conn_id=self.conn_id, what=what, said=told)
        if error.code() in _REFUSED:
            return Misconfigured.of("kafka.refused", conn_id=self.conn_id, what=what, said=told)
        return Retryable.of("kafka.away", conn_id=self.conn_id, what=what, said=told)

    @property
    def _admin(self) -> AdminClient:
        if self._opened is None:
            raise RuntimeError("a Cluster is used in a `with` statement")
        return self._opened

    def _described(self, kind: Any, name: str) -> dict[str, str]:
        (asked,) = self._admin.describe_configs([ConfigResource(kind, name)]).values()
        return {name: cast("str", each.value) for name, each in self._answer(asked).items()}

    def _answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer. That a login was refused is told only to who polls meanwhile."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return asked.result(0.2)
            except TimeoutError:
                self._admin.poll(0)
                if self._login is not None or time.monotonic() > deadline:
                    raise

    @property
    def _login(self) -> KafkaError | None:
        """Return what was said of a login that was refused."""
        return next((each for each in self._told if each.code() in _LOGIN), None)


def settings_of(connection: Connection) -> dict[str, Any]:
    """Return the client library's settings in an Airflow connection of type kafka: those in its extra.

    Host and port are one of "bootstrap.servers" where the extra has none. Raises Misconfigured.
    """
    if connection.kind != "kafka":
        raise Misconfigured.of("connections.not_kafka", conn_id=connection.id, kind=connection.kind)
    plain = {name: each for name, each in connection.extra.items() if isinstance(each, str | int | float | bool)}
    found: dict[str, Any] = {name: each for name, each in plain.items() if name not in _OF_AIRFLOW}
    if not found.get("bootstrap.servers") and connection.host:
        found["bootstrap.servers"] = f"{connection.host}:{connection.port or 9092}"
    if not found.get("bootstrap.servers"):
        raise Misconfigured.of("connections.kafka_without_servers", conn_id=connection.id)
    if connection.login:
        found.setdefault("sasl.username", connection.login)
        found.setdefault("sasl.password", connection.password)
    return found

"""A topic of Kafka: the records of an epoch and its marker are in one transaction.

Kafka has no prepared transaction that another process could finish. So `prepare` opens none, and `commit` does all in
one process: it takes the topic's transactional id, which ends whatever another process has open and fences it; only
then it reads the markers, and sends if that of the version is not among them. Any error after that means "unknown":
commit begins again with taking the id.

Invariant 12: whoever sends has read the markers after taking the id, and all markers until then were decided by taking
it. So an epoch is in the topic once, whole, for readers with isolation.level=read_committed.

Source of the protocol: KIP-98, and KIP-447 on fencing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Producer

from weir.dataflow.targets import MARKER_TOPIC
from weir.errors import Misconfigured, Retryable, WeirError
from weir.kafka.cluster import Cluster, KafkaError, KafkaException, Topic
from weir.sinks.protocol import Held, Outcome, SinkTarget, TargetAway, TargetConflict, Token, Version, outcome_of
from weir.sinks.rows import batches
from weir.sinks.targets.kafka_records import (
    OVERHEAD,
    Keys,
    Markers,
    Records,
    headers_of,
    marker_key,
    markers_in,
    open_keys,
    written,
)
from weir.store.time_limit import pauses

_TURNS: Final = 8

_ROWS_A_SECOND: Final = 20_000
_BYTES_A_SECOND: Final = 4 * 2**20
"""A fifth of what a broker on a small machine takes, so that an estimate is too long rather than too short."""

_SHORTEST_TRANSACTION: Final = 60.0
_CLAIM: Final = ""
"""The epoch in the marker of a sink that has prepared a version: from then on the topic is its."""

_ABORT_SECONDS: Final = 10.0
_UNTAKEN: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG})


class _Unsettled(TargetAway):
    """A transaction failed, and what became of it is unknown."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The topic of a target, and that of its markers, in a cluster that is reached."""

    cluster: Cluster
    topic: Topic
    markers: Topic


class KafkaTarget(SinkTarget):
    """A topic, by `append` or `upsert`."""

    def prepare(self, version: Version, held: Held | None) -> Token:
        """Make all records without sending any, and check that topic and account take them.

        Makes the topic of markers unless it is there, and marks the topic as this sink's.
        """
        records = self._records(version)
        with self._reached() as cluster:
            place = self._place(cluster, {} if held is None else held.token, may_create=True)
            markers = self._markers(place)
            is_known = self._require_sole_owner(version, place, markers)
            self._require_partitions(version, place, markers)
            if self._seen(version, place, markers) is Outcome.ABSENT:
                self._require_new(version, place, markers)
            seconds = self._require_sendable(version, place, records)
            if not is_known:
                self._claim(version, place, seconds)
        return {"topic_id": place.topic.id, "markers_id": place.markers.id, "seconds": seconds}

    def commit(self, version: Version, token: Token) -> Outcome:
        """Take the transactional id, read the markers, and send records and marker in one transaction."""
        for turn, pause in enumerate(pauses(), 1):
            try:
                with self._reached() as cluster:
                    return self._commit(version, self._place(cluster, token), token["seconds"])
            except _Unsettled:
                if turn == _TURNS:
                    raise
            # Of two processes that take the id from each other, one is to be quicker.
            time.sleep(pause)
        raise AssertionError("the last turn returns or raises")

    def recover(self, version: Version, token: Token) -> Outcome:
        """Read the markers; where a transaction that somebody has left open hides some, it is ended before."""
        with self._reached() as cluster:
            place = self._place(cluster, token)
            found = self._seen(version, place, self._markers(place))
            if found is Outcome.ABSENT and self._is_hidden(place):
                self._taken(place, _SHORTEST_TRANSACTION)
                found = self._seen(version, place, self._markers(place, is_taken=True))
            return found

    def examine(self) -> None:
        """Look at the topic, its markers if there are any, and the rights. Raises Misconfigured or TargetAway."""
        with self._reached() as cluster:
            self._described(cluster)

    def _commit(self, version: Version, place: _Place, seconds: float) -> Outcome:
        found = self._seen(version, place, self._markers(place))
        if found is not Outcome.ABSENT:  # a marker that is there is certain: only its absence is not
            return found
        producer = self._taken(place, seconds)
        markers = self._markers(place, is_taken=True)
        found = self._seen(version, place, markers)
        if found is not Outcome.ABSENT:
            return found
        self._require_sole_owner(version, place, markers)
        self._require_new(version, place, markers)
        self._require_partitions(version, place, markers)
        with self._keys_before(version, place, markers) as keys, self._transaction(place, producer, seconds) as send:
            self._send(version, keys, send)
            self._mark(version, version.epoch, place, send)
            now = place.cluster.topic(self._topic)
            if now is None or now.id != place.topic.id:
                raise _Unsettled.of("sinks.kafka_topic_made_again", topic=self._topic)
        if self._is_hidden(place):  # brokers answer first, and let readers see a transaction a moment later
            self._markers(place, is_taken=True)
        return Outcome.COMMITTED

    def _claim(self, version: Version, place: _Place, seconds: float) -> None:
        """Make the topic the sink's before anything is published: of two that begin at once, one is refused here."""
        producer = self._taken(place, seconds)
        self._require_sole_owner(version, place, self._markers(place, is_taken=True))
        with self._transaction(place, producer, seconds) as send:
            self._mark(version, _CLAIM, place, send)

    def _taken(self, place: _Place, seconds: float) -> Producer:
        """Take the transactional id: what was open is ended, and who had it is fenced."""
        with self._unsettled(place):
            return place.cluster.producer(self._topic, f"weir/{self._topic}", seconds, place.topic.longest)

    @contextmanager
    def _transaction(self, place: _Place, producer: Producer, seconds: float) -> Iterator[Callable[..., None]]:
        """Yield what sends a record in a transaction, and commit it at the end; else it is aborted where possible.

        Also where the task is interrupted: a producer that is destroyed while the library adds partitions to its
        transaction may abort the process; once an abort was asked for, it adds none.
        """
        failed: list[KafkaError] = []

        def send(topic: str, value: bytes | None, key: bytes | None, **more: Any) -> None:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error), **more)
                    break
                except BufferError:  # it keeps no more than some megabytes
                    producer.poll(0.1)
                    _require_sent(failed)
            producer.poll(0)
            _require_sent(failed)

        try:
            with self._unsettled(place):
                producer.begin_transaction()
                yield send
                producer.commit_transaction(seconds)
        except BaseException as error:
            with suppress(KafkaException):  # one in doubt is not aborted by that
                producer.abort_transaction(_ABORT_SECONDS)
            refused = next((each for each in failed if each.code() in _UNTAKEN), None)
            if refused is None or not isinstance(error, WeirError):
                raise
            raise TargetConflict.of("sinks.kafka_record_refused", topic=self._topic, error=refused.str()) from error

    def _send(self, version: Version, keys: Keys | None, send: Callable[..., None]) -> None:
        headers, rows = headers_of(version), 0
        records = self._records(version)
        for batch in batches(self.reach, version, records.columns):
            for key, value in records.of(batch):
                rows += 1
                later = keys.take(key) if keys is not None and key is not None else None
                if later is None or later <= version.epoch:
                    send(self._topic, value, key, headers=headers)
        if rows != version.rows:
            raise Retryable.of("sinks.s3_rows_differ", rows=rows, version=version, expected=version.rows)
        for key, partition in keys.left_of(version.epoch) if keys is not None else ():
            send(self._topic, None, key, headers=headers, partition=partition)

    def _mark(self, version: Version, epoch: str, place: _Place, send: Callable[..., None]) -> None:
        said = {
            "number": version.number if epoch else 0,
            "digest": version.digest if epoch else "",
            "rows": version.rows if epoch else 0,
            "attempt": version.attempt,
            "topic_id": place.topic.id,
            "partitions": place.topic.partitions,
        }
        send(place.markers.name, json.dumps(said).encode(), marker_key(version.owner, epoch))

    @contextmanager
    def _keys_before(self, version: Version, place: _Place, markers: Markers) -> Iterator[Keys | None]:
        """Yield the keys in the topic, each with the epoch that has written it last; None where that does not matter.

        It does where the sink has published this epoch, or a later one: the topic is read once.
        """
        published = [
            epoch
            for (owner, epoch), found in markers.items()
            if owner == version.owner and epoch >= version.epoch and found["topic_id"] == place.topic.id
        ]
        if self._mode != "upsert" or not published:
            yield None
            return
        with open_keys() as keys:
            keys.note(self._written(version, place))
            yield keys

    def _written(self, version: Version, place: _Place) -> Iterator[tuple[bytes, str | None, int]]:
        name, partitions = place.topic.name, place.topic.partitions
        beginnings = place.cluster.beginnings(name, partitions)
        # To the very end: what is committed may lie after records of a transaction that somebody else has open.
        ends = place.cluster.ends(name, partitions, is_committed=False)
        for partition in range(partitions):
            records = place.cluster.read(name, partition, beginnings[partition], ends[partition])
            yield from written(records, version.owner)

    def _seen(self, version: Version, place: _Place, markers: Markers) -> Outcome:
        number, digest = self._marked(version, place, markers)
        return outcome_of(version, number, digest)

    def _marked(self, version: Version, place: _Place, markers: Markers) -> tuple[int, str | None]:
        """Return number and digest in the marker of an epoch; 0 if there is none, or its topic was deleted."""
        found = markers.get((version.owner, version.epoch))
        if found is None or found["topic_id"] != place.topic.id:
            return 0, None
        return int(found["number"]), str(found["digest"])

    def _require_new(self, version: Version, place: _Place, markers: Markers) -> None:
        number, _ = self._marked(version, place, markers)
        if self._mode == "append" and number:
            raise TargetConflict.of("sinks.kafka_append_twice", topic=self._topic, number=number, epoch=version.epoch)

    def _require_sole_owner(self, version: Version, place: _Place, markers: Markers) -> bool:
        """Require that no other sink publishes into the topic; report whether this one has."""
        owners = {owner for (owner, _), found in markers.items() if found["topic_id"] == place.topic.id}
        other = next(iter(sorted(owners - {version.owner})), None)
        if other is not None:
            raise Misconfigured.of("sinks.kafka_owned_by_another", topic=self._topic, other=other, owner=version.owner)
        return version.owner in owners

    def _require_partitions(self, version: Version, place: _Place, markers: Markers) -> None:
        """Require that keys are in the partitions in which they were: Kafka gives no order between two."""
        before = {
            int(found["partitions"])
            for (owner, _), found in markers.items()
            if owner == version.owner and found["topic_id"] == place.topic.id
        } - {place.topic.partitions}
        if self._mode == "upsert" and before:
            raise TargetConflict.of(
                "sinks.kafka_partitions_added",
                topic=self._topic,
                before=max(before),
                partitions=place.topic.partitions,
            )

    def _require_sendable(self, version: Version, place: _Place, records: Records) -> float:
        """Make all records; return the seconds that the transaction may take. Raises Misconfigured."""
        longest = place.topic.longest - OVERHEAD - sum(len(name) + len(each) for name, each in headers_of(version))
        sizes = _Sizes()
        with open_keys() as keys:
            twice = keys.first_twice(self._checked(version, records, longest, sizes))
        if twice is not None:
            raise Misconfigured.of("sinks.kafka_key_twice", version=version, key=_shown(twice), topic=self._topic)
        estimated = sizes.rows / _ROWS_A_SECOND + sizes.bytes / _BYTES_A_SECOND
        allowed = place.cluster.longest_transaction()
        if estimated > allowed:
            raise Misconfigured.of(
                "sinks.kafka_takes_too_long",
                version=version,
                rows=sizes.rows,
                megabytes=sizes.bytes // 2**20,
                estimated=round(estimated),
                allowed=round(allowed),
            )
        return min(allowed, max(_SHORTEST_TRANSACTION, 4 * estimated))

    def _checked(self, version: Version, records: Records, longest: int, sizes: _Sizes) -> Iterator[bytes]:
        """Make all records, require that each is taken, and yield the keys that have to be unique."""
        is_upsert = self._mode == "upsert"
        for batch in batches(self.reach, version, records.columns):
            null = records.has_null_key(batch) if is_upsert else None
            if null is not None:
                raise Misconfigured.of("sinks.kafka_key_null", version=version, name=null, topic=self._topic)
            for key, value in records.of(batch):
                size = len(value) + len(key or b"")
                if size > longest:
                    raise Misconfigured.of("sinks.kafka_record_too_long", version=version, size=size, longest=longest)
                sizes.rows, sizes.bytes = sizes.rows + 1, sizes.bytes + size
                if is_upsert and key is not None:
                    yield key

    def _place(self, cluster: Cluster, token: Mapping[str, Any], *, may_create: bool = False) -> _Place:
        """Describe both topics, as they have to be. Raises Misconfigured or TargetConflict."""
        name = f"{MARKER_TOPIC}{self._topic}"
        topic, markers = self._described(cluster)
        is_same = token.get("topic_id") == topic.id
        if is_same and (markers is None or markers.id != token["markers_id"]):
            raise TargetConflict.of("sinks.kafka_markers_gone", topic=self._topic, markers=name)
        if markers is None and may_create:
            cluster.create_compacted(name)
            markers = self._required_markers(self._created(cluster, name))
        if markers is None:
            raise TargetConflict.of("sinks.kafka_markers_gone", topic=self._topic, markers=name)
        return _Place(cluster, topic, markers)

    def _described(self, cluster: Cluster) -> tuple[Topic, Topic | None]:
        """Describe the topic, and that of its markers if it is there. Raises Misconfigured."""
        topic = cluster.topic(self._topic)
        if topic is None:
            raise Misconfigured.of("sinks.kafka_topic_missing", topic=self._topic, conn_id=self._conn_id)
        self._require_rights(topic, {"READ", "WRITE"} if self._mode == "upsert" else {"WRITE"})
        if topic.is_compacted != (self._mode == "upsert"):
            policy = topic.settings.get("cleanup.policy")
            raise Misconfigured.of("sinks.kafka_policy_unfit", topic=self._topic, mode=self._mode, policy=policy)
        markers = cluster.topic(f"{MARKER_TOPIC}{self._topic}")
        return topic, None if markers is None else self._required_markers(markers)

    def _required_markers(self, markers: Topic) -> Topic:
        self._require_rights(markers, {"READ", "WRITE"})
        if markers.partitions != 1 or markers.settings.get("cleanup.policy") != "compact":
            raise Misconfigured.of("sinks.kafka_markers_unfit", markers=markers.name)
        return markers

    def _created(self, cluster: Cluster, name: str) -> Topic:
        """Describe a topic that was made just now; brokers know of it a moment later."""
        for pause in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
            with suppress(Retryable):
                found = cluster.topic(name)
                if found is not None and found.partitions and cluster.ends(name, found.partitions):
                    return found
            time.sleep(pause)
        raise TargetAway.of("sinks.kafka_markers_slow", markers=name)

    def _require_rights(self, topic: Topic, needed: set[str]) -> None:
        missing = needed - topic.rights if topic.rights else None  # older brokers do not tell
        if missing:
            raise Misconfigured.of(
                "sinks.kafka_right_missing", conn_id=self._conn_id, topic=topic.name, missing=sorted(missing)
            )

    def _is_hidden(self, place: _Place) -> bool:
        """Report whether a transaction has written markers that readers do not see yet."""
        name = place.markers.name
        return place.cluster.ends(name, 1) != place.cluster.ends(name, 1, is_committed=False)

    def _markers(self, place: _Place, *, is_taken: bool = False) -> Markers:
        """Read the markers up to the last stable offset, and once the id is taken, to the very end.

        Then another's open transaction alone can hide some, which is waited for.
        """
        name = place.markers.name
        (begin,), (end,) = (
            each.values()
            for each in (place.cluster.beginnings(name, 1), place.cluster.ends(name, 1, is_committed=not is_taken))
        )
        return markers_in(place.cluster.read(name, 0, begin, end))

    @contextmanager
    def _unsettled(self, place: _Place) -> Iterator[None]:
        """Translate what fails in a transaction: only what refuses is certain."""
        try:
            yield
        except KafkaException as error:
            said = place.cluster.said(f"topic {self._topic}", error.args[0])
            raise (said if isinstance(said, Misconfigured) else _Unsettled(str(said))) from error

    @contextmanager
    def _reached(self) -> Iterator[Cluster]:
        """Reach the cluster; what fails there is TargetAway."""
        try:
            with Cluster(self.reach.connection(self._conn_id)) as cluster:
                yield cluster
        except Retryable as error:
            if isinstance(error, TargetAway) or not isinstance(error.__cause__, KafkaException | TimeoutError):
                raise
            raise TargetAway(*error.args) from error

    def _records(self, version: Version) -> Records:
        return Records(self._topic, version.spark_schema, self.options["key"], self.options["value"])

    @property
    def _conn_id(self) -> str:
        return str(self.options["conn_id"])

    @property
    def _topic(self) -> str:
        return str(self.options["topic"])

    @property
    def _mode(self) -> str:
        return str(self.options["mode"])


@dataclass(slots=True)
class _Sizes:
    """The records of a version, counted."""

    rows: int = 0
    bytes: int = 0


def _require_sent(failed: list[KafkaError]) -> None:
    """Raise what the broker has said of a record that it did not take, if it has."""
    for error in failed:
        raise KafkaException(error)


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")

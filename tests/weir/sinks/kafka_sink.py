"""A topic of a test, its versions, and what a consumer that is not Weir's reads in it."""

import json
import time
import uuid

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from weir.dataflow import kafka
from weir.sinks.targets.kafka import KafkaTarget
from weir.testing.sink_contract import DAY, LocalReach, Versions

CONN_ID = "events"


class Sink:
    """A sink into a topic of its own."""

    def __init__(self, broker, folder, mode="append", partitions=2, account=None, **settings):
        self.broker, self.mode, self.account = broker, mode, account or {}
        self.topic = f"delays.{uuid.uuid4().hex}"
        self.versions = Versions(folder)
        self._client = {"bootstrap.servers": broker.address, "log_level": 0, **self.account}
        self._admin = AdminClient(self._client)
        self._settings, self._partitions = settings, partitions
        self.create()

    def create(self):
        policy = "compact" if self.mode == "upsert" else "delete"
        given = {"cleanup.policy": policy, **{name.replace("_", "."): value for name, value in self._settings.items()}}
        self.admin("create_topics", [NewTopic(self.topic, self._partitions, 1, config=given)])
        self._until(lambda: self.topic in self._admin.list_topics(timeout=10).topics)

    def delete(self, topic=None):
        topic = topic or self.topic
        self.admin("delete_topics", [topic])
        self._until(lambda: topic not in self._admin.list_topics(timeout=10).topics)

    def change(self, topic, name, value):
        """Change a setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin("incremental_alter_configs", [resource])

        def is_known():
            (answer,) = self._admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
            return answer.result(30)[name].value == value

        self._until(is_known)

    def _until(self, is_known):
        """Wait until a broker knows of what it has answered already: that is a moment later."""
        deadline = time.monotonic() + 60
        while not is_known():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def admin(self, verb, *arguments):
        for answer in getattr(self._admin, verb)(*arguments).values():
            answer.result(30)

    @property
    def markers(self):
        return f"weir-published-{self.topic}"

    def target(self, **options):
        given = {"key": "k", **options} if self.mode == "upsert" else options
        made = kafka(CONN_ID, topic=self.topic, mode=self.mode, **given)
        return KafkaTarget(
            made.options, LocalReach(self.versions.folder, self.broker.connection(CONN_ID, **self.account))
        )

    def version(self, number, *rows, epoch=DAY, sink="delays"):
        return self.versions.version(number, rows, epoch=epoch, sink=sink)

    def publish(self, target, version):
        return target.commit(version, target.prepare(version, None))

    def records(self):
        """What a consumer that reads what is committed finds now, partition by partition."""
        return read_committed(self._client, self.topic, self._partitions)

    def rows(self, epoch=DAY):
        """The rows of an epoch, as somebody sees them who keeps all records, or the last one of each key."""
        found = {}
        for at, record in enumerate(self.records()):
            found[record.key() if self.mode == "upsert" else at] = record
        return sorted(
            (tuple(json.loads(each.value()).values()) for each in found.values() if is_of(each, epoch)), key=repr
        )


def is_of(record, epoch):
    return record.value() is not None and dict(record.headers() or ())["weir.epoch"] == epoch.encode()


def read_committed(client, topic, partitions):
    settings = {
        **client,
        "group.id": "somebody else",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found, ended = [], set()
        while len(ended) < partitions:
            for record in [consumer.poll(1.0), *consumer.consume(1000, 0)]:
                if record is None:
                    continue
                if record.error() is None:
                    found.append(record)
                else:
                    assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
                    ended.add(record.partition())
        return sorted(found, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()

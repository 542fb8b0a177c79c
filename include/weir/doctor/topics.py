"""Whether the topics of Kafka that a dataflow names are as it needs them.

Invariant: nothing is changed but the state of the transactional id `weir/doctor`, which nothing else uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from weir.connections import Connections
from weir.dataflow import Stage
from weir.errors import Message, WeirError
from weir.extras import needed_for
from weir.sinks.protocol import Reach

SOURCE: Final = "weir_spark.sources.kafka:resolve"

_ID: Final = "weir/doctor"
_SECONDS: Final = 10.0


def topic_problems(stage: Stage, look_up: Connections) -> Iterator[str]:
    """Yield what is wrong with the topics of a stage: brokers, rights, settings, transactions."""
    targets = [each for each in stage.targets if each.kind == "kafka"]
    if not targets and stage.resolve != SOURCE:
        return
    try:
        with needed_for(f"Kafka, for stage {stage.name!r},"):
            from weir.kafka.cluster import Cluster, KafkaException  # noqa: PLC0415  only such a stage needs it
            from weir.sinks.targets.kafka import KafkaTarget  # noqa: PLC0415
        if stage.resolve == SOURCE:
            conn_id, topic = (str(stage.options[name]) for name in ("conn_id", "topic"))
            with Cluster(look_up(conn_id)) as cluster:
                found = cluster.topic(topic)
            if found is None:
                yield Message("sources.kafka_topic_missing", topic=topic, conn_id=conn_id)
            elif found.rights and "READ" not in found.rights:
                yield Message("sinks.kafka_right_missing", conn_id=conn_id, topic=topic, missing=["READ"])
        for target in targets:
            KafkaTarget(target.options, cast("Reach", _Connections(look_up))).examine()
            conn_id, topic = (str(target.options[name]) for name in ("conn_id", "topic"))
            with Cluster(look_up(conn_id)) as cluster:
                try:
                    cluster.producer(topic, _ID, _SECONDS, 0)
                except KafkaException as error:
                    yield str(cluster.said("transactions", error.args[0]))
    except WeirError as error:
        yield error.args[0]


@dataclass(frozen=True, slots=True)
class _Connections:
    """What a target reaches while it is examined: no version, and so no file."""

    connection: Connections

"""What a topic of Kafka costs: rows a second into it and out of it, and the memory that they take.

    pytest tests/benchmarks/test_kafka.py --benchmark-only -s --sink-rows 10000000

One broker on the same machine; a record has about 120 bytes of JSON.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.benchmarks.test_sinks import EPOCH, MIB, memory, seconds, version_of
from tests.weir_spark.sources.conftest import looked_up

from weir.dataflow import json, kafka, kafka_source
from weir.dataflow.resolving import ResolveContext
from weir.sinks.targets.kafka import KafkaTarget
from weir.testing.sink_contract import LocalReach
from weir_spark.sources import kafka as reading

SCHEMA = "k BIGINT, carrier STRING, day DATE, delay INT, distance DOUBLE, text STRING"
INTERVAL = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))


@pytest.mark.timeout(3600)
def test_rows_into_a_topic_and_out_of_it(kafka_broker, tmp_path, benchmark, request):
    connection, topic = kafka_broker.connection("broker"), kafka_broker.create_topic("measured")
    version = version_of(tmp_path, request.config.getoption("--sink-rows"), 1)
    target = KafkaTarget(kafka("broker", topic=topic, key="k").options, LocalReach(tmp_path, connection))
    stage = kafka_source("events", "broker", topic=topic, value=json(SCHEMA))
    context = ResolveContext("flow", EPOCH, INTERVAL, 1, {}, stage.options, looked_up(connection))
    token = measured("prepare", version.rows, lambda: target.prepare(version, None))
    measured("commit", version.rows, lambda: target.commit(version, token))
    (split,) = reading.resolve(context).splits
    sizes = []
    measured("read", version.rows, lambda: reading.load(connection, split, lambda _, data: sizes.append(len(data))))
    print(f"| {len(sizes)} file(s) | {sum(sizes) / MIB:.0f} MiB |", flush=True)
    benchmark.pedantic(lambda: target.recover(version, token), rounds=1)


def measured(what, rows, act):
    """Do it, print what it took, and return its answer."""
    answers = []
    with memory() as most:
        took = seconds(lambda: answers.append(act()))
    print(f"\n| {what} | {rows} | {took:.1f} s | {rows / took:.0f} rows/s | {most[0] / MIB:.0f} MiB |", flush=True)
    assert most[0] < 512 * MIB
    return answers[0]

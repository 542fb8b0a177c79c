"""`weir check --connections` looks at the topics that a dataflow names."""

import pytest
from tests.messages.kinds import messages_in

from weir.connections import Connection
from weir.dataflow import Dataflow, Stage, blocking, kafka, kafka_source, sink
from weir.doctor.declarations import connection_problems

pytestmark = pytest.mark.xdist_group("kafka")


@pytest.fixture
def look_up(kafka_broker):
    known = {
        "broker": kafka_broker.connection("broker"),
        "other": Connection(id="other", kind="http"),
        "empty": Connection(id="empty", kind="kafka"),
    }
    return known.__getitem__


@pytest.fixture
def topic(kafka_broker):
    return kafka_broker.create_topic("examined")


def problems(look_up, conn_id, read, written, **options):
    events = kafka_source("events", conn_id, topic=read)
    copied = Stage("copied", "pipelines.copies:copied", [blocking(events)])
    flow = Dataflow("flow", [events, copied, sink(copied, "copy", to=kafka(conn_id, topic=written, **options))])
    return [(each.stage, each.text) for each in connection_problems("dags/flow.py", flow, look_up)]


def test_topics_that_are_as_they_have_to_be_are_no_problem(look_up, topic):
    assert problems(look_up, "broker", topic, topic) == []


def test_topics_that_are_missing_or_unfit_are_told_with_their_stage(look_up, topic):
    found = problems(look_up, "broker", "no.topic", topic, mode="upsert", key="k")
    kinds = [(stage, message.kind) for stage, text in found for message in messages_in(text)]
    assert kinds == [("events", "sources.kafka_topic_missing"), ("copy", "sinks.kafka_policy_unfit")]


@pytest.mark.parametrize(
    ("conn_id", "kind"), [("other", "connections.not_kafka"), ("empty", "connections.kafka_without_servers")]
)
def test_a_connection_that_names_no_broker_is_told(look_up, topic, conn_id, kind):
    found = problems(look_up, conn_id, topic, topic)
    assert [message.kind for _, text in found for message in messages_in(text)] == [kind, kind]

"""What a connection of type kafka says to the client library."""

import psutil
import pytest
from tests.messages.kinds import of_kind

from weir.connections import Connection, secrets_of
from weir.errors import Misconfigured, Retryable
from weir.kafka.cluster import Cluster, settings_of

NOBODY = Connection(id="k", kind="kafka", host="127.0.0.1", port=1)


def test_the_extra_has_the_settings_and_host_and_login_stand_in_for_some():
    extra = {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN", "error_cb": "module.function", "nested": {}}
    assert settings_of(Connection(id="k", kind="kafka", extra=extra)) == {
        "bootstrap.servers": "a:1",
        "sasl.mechanism": "PLAIN",
    }
    plain = Connection(id="k", kind="kafka", host="b", login="me", password="of-me")
    expected = {"bootstrap.servers": "b:9092", "sasl.username": "me", "sasl.password": "of-me"}
    assert settings_of(plain) == expected
    assert "of-me" not in repr(plain)


def test_what_is_secret_of_a_connection_is_known():
    extra = {"sasl.password": "of-sasl", "ssl.key.password": "of-key", "sasl.oauthbearer.client.secret": "of-client"}
    assert set(extra.values()) <= set(secrets_of(Connection(id="k", kind="kafka", extra=extra)))


@pytest.mark.parametrize(
    ("connection", "kind"),
    [
        (Connection(id="k", kind="http", host="b"), "not_kafka"),
        (Connection(id="k", kind="kafka"), "kafka_without_servers"),
    ],
)
def test_a_connection_that_leads_to_no_broker_is_refused(connection, kind):
    with pytest.raises(Misconfigured, check=of_kind(f"connections.{kind}", conn_id="k")):
        settings_of(connection)


def test_a_client_ends_with_its_use_whoever_still_refers_to_it(monkeypatch):
    """Left to the garbage collector, it may be destroyed in its own thread, which ends the process."""
    monkeypatch.setattr("weir.kafka.cluster.ANSWER_SECONDS", 0.1)
    before = psutil.Process().num_threads()
    cluster = Cluster(NOBODY)
    with cluster, pytest.raises(Retryable, check=of_kind("kafka.away")):
        cluster.ends("events", 1)
    assert psutil.Process().num_threads() == before

"""Connections as sinks and sources use them, outside of Airflow's tasks."""

from __future__ import annotations

import json

import pytest

from weir.connections import from_environment
from weir.errors import Misconfigured

FIELDS = ("kind", "host", "port", "database", "login", "password")


def values(connection):
    return tuple(getattr(connection, name) for name in FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            {"conn_type": "postgres", "host": "db", "port": 5433, "schema": "reports", "login": "me", "password": "s/3"}
        ),
        json.dumps(
            {
                "conn_type": "postgres",
                "host": "db",
                "port": "5433",
                "schema": "reports",
                "login": "me",
                "password": "s/3",
            }
        ),
        "postgres://me:s%2F3@db:5433/reports",
        "postgresql://me:s%2F3@db:5433/reports",
    ],
)
def test_json_and_uri_say_the_same(text):
    found = from_environment("target_db", {"AIRFLOW_CONN_TARGET_DB": text})
    assert found.id == "target_db"
    assert values(found) == ("postgres", "db", 5433, "reports", "me", "s/3")
    assert dict(found.extra) == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"conn_type": "postgres", "extra": {"sslmode": "require"}}',
        '{"conn_type": "postgres", "extra": "{\\"sslmode\\": \\"require\\"}"}',
        "postgres://?sslmode=require",
        "postgres://?__extra__=%7B%22sslmode%22%3A+%22require%22%7D",
    ],
)
def test_the_extra_is_decoded(text):
    assert dict(from_environment("c", {"AIRFLOW_CONN_C": text}).extra) == {"sslmode": "require"}


def test_a_missing_connection_is_named_with_how_to_set_it():
    with pytest.raises(Misconfigured, match="AIRFLOW_CONN_TARGET_DB"):
        from_environment("target_db", {})


@pytest.mark.parametrize(
    "text", ["{not json", "secret-word", '{"conn_type": "x", "extra": "secret-word"}', "a://h:secret-word/"]
)
def test_an_unreadable_connection_is_refused_without_its_text(text):
    with pytest.raises(Misconfigured, match="AIRFLOW_CONN_C is neither") as refused:
        from_environment("c", {"AIRFLOW_CONN_C": text})
    assert "secret-word" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_connection_never_shows_its_password_or_extra():
    found = from_environment("c", {"AIRFLOW_CONN_C": "postgres://me:s3cret@db/x?token=t0ken"})
    assert "s3cret" not in repr(found)
    assert "t0ken" not in repr(found)

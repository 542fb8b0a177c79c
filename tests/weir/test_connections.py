"""Connections as sinks and sources use them, outside of Airflow's tasks."""

from __future__ import annotations

import json

import pytest
from tests.messages.kinds import of_kind

from weir.connections import Connection, S3Account, as_variable, from_environment
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
    with pytest.raises(
        Misconfigured, check=of_kind("connections.connection_malformed", name="AIRFLOW_CONN_C")
    ) as refused:
        from_environment("c", {"AIRFLOW_CONN_C": text})
    assert "secret-word" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_connection_never_shows_its_password_or_extra():
    found = from_environment("c", {"AIRFLOW_CONN_C": "postgres://me:s3cret@db/x?token=t0ken"})
    assert "s3cret" not in repr(found)
    assert "t0ken" not in repr(found)


def test_an_account_for_s3_is_what_the_aws_connection_says():
    extra = {"endpoint_url": "http://minio:9000", "region_name": "eu-west-1", "aws_session_token": "t"}
    account = S3Account.of_connection(Connection(id="aws_id", kind="aws", login="me", password="s/3", extra=extra))
    assert account.for_s3fs() == {
        "key": "me",
        "secret": "s/3",
        "token": "t",
        "endpoint_url": "http://minio:9000",
        "client_kwargs": {"region_name": "eu-west-1"},
    }
    assert account.for_object_store() == {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "s/3",
        "AWS_SESSION_TOKEN": "t",
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_REGION": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }
    assert "s/3" not in repr(account)


def test_the_endpoint_of_s3_alone_goes_before_that_of_all_services():
    extra = {"endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "http://s3"}}}
    assert S3Account.of_connection(Connection(id="aws_id", kind="aws", extra=extra)).endpoint == "http://s3"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "postgres"}, of_kind("connections.not_aws")),
        ({"kind": "aws", "extra": {"role_arn": "arn:aws:iam::1:role/a"}}, of_kind("connections.aws_extra_unknown")),
        (
            {"kind": "aws", "extra": {"session_kwargs": {"profile_name": "a"}}},
            of_kind("connections.aws_extra_unknown", foreign="profile_name"),
        ),
    ],
)
def test_a_connection_that_is_no_account_for_s3_is_refused(given, message):
    with pytest.raises(Misconfigured, check=message):
        S3Account.of_connection(Connection(id="aws_id", **given))


def test_an_account_of_the_environment_may_leave_all_to_the_client():
    assert S3Account.of_environment({}).for_s3fs() == {}
    assert S3Account.of_environment({}).for_object_store() == {}
    assert S3Account.of_environment({"AWS_DEFAULT_REGION": "eu"}).for_s3fs() == {"client_kwargs": {"region_name": "eu"}}


def test_a_connection_goes_into_another_process_by_its_environment():
    given = Connection(
        id="shop", kind="postgres", host="db", port=5433, login="me", password="s/3", extra={"sslmode": "require"}
    )
    assert from_environment("shop", dict([as_variable(given)])) == given

"""Weir's settings and Airflow connections, as a task finds them.

Invariants: a missing one is named, with how to set it; one that Airflow could not look up is never treated as missing.
Every part of the connection of the store is either used or refused by name, never ignored; no message has a secret.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Connection
from airflow.sdk.exceptions import (
    AirflowNotFoundException,
    AirflowRuntimeError,
    AirflowSecretsBackendAccessDenied,
    ErrorType,
)
from airflow.sdk.log import mask_secret

from weir import connections, secrecy
from weir.errors import Misconfigured, Retryable
from weir.secrecy import secrets_of_account
from weir.secret_forms import literal_forms
from weir.settings import LEDGER_CONNECTION, STORE_CONNECTION, Settings, StoreConnection, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Connection


_VARIABLE: Final = "AIRFLOW__WEIR__"
_API_EXAMPLE = '\'{"conn_type": "http", "host": "http://airflow:8080", "login": "weir", "password": "..."}\''
_SPARK_EXAMPLE = '\'{"conn_type": "spark_connect", "host": "spark", "port": 15002}\''


class AirflowConnections:
    """The connections `weir_store` and `weir_ledger`; both may be missing."""

    def store(self) -> StoreConnection | None:
        """Look up where the store is, and how to get in."""
        found = _look_up(STORE_CONNECTION)
        return None if found is None else store_connection(found)

    def ledger(self) -> str | None:
        """Look up where the ledger is."""
        found = _look_up(LEDGER_CONNECTION)
        return None if found is None else ledger_url(found)


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read Weir's settings: the environment, the section [weir] of Airflow's configuration, then Airflow's connections.

    The store's options, and the password of the ledger's URL, are hidden in Airflow's logs from here on.
    """
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    found = read_settings(
        environ, lambda key: conf.get("weir", key, fallback=None), AirflowConnections(), section(conf, os.environ)
    )
    hide(found.store_options)
    hide_everywhere(secrets_of_account("", "", found.ledger))
    return found


def section(conf: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Return all options that Airflow's configuration `conf` has in the section [weir].

    Not by its `getsection`, which returns nothing where only environment variables set options of the section.
    """
    keys = set(conf.options("weir")) if conf.has_section("weir") else set()
    keys |= {name.removeprefix(_VARIABLE).lower() for name in environ if name.startswith(_VARIABLE)}
    found = {key: conf.get("weir", key, fallback=None) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def api_connection(found: Settings) -> Connection:
    """Return the connection by which a task asks Airflow to clear task instances."""
    return _connection(
        found.api_conn_id,
        "Weir needs it to clear the producers of lost results. Use an account that may edit task instances and runs of "
        f"Weir's DAGs. For example AIRFLOW_CONN_{found.api_conn_id.upper()}={_API_EXAMPLE}",
    )


def spark_connection(found: Settings, conn_id: str | None = None) -> Connection:
    """Return the connection to the engine that computes the regions: that of this id, or of the settings."""
    wanted = conn_id or found.spark_conn_id
    return _connection(
        wanted,
        f"Weir needs it to compute. For example AIRFLOW_CONN_{wanted.upper()}={_SPARK_EXAMPLE}, or a connection of the "
        "type 'spark' for spark-submit",
    )


def user_connection(conn_id: str) -> connections.Connection:
    """Return the connection that a sink, a source or a receiver of notifications names.

    Raises Misconfigured or Retryable.
    """
    given = _connection(
        conn_id, f"The dataflow names it. Create it in Airflow, or set AIRFLOW_CONN_{conn_id.upper()} for every worker"
    )
    return _as_weir_has_it(given)


def user_variable(key: str) -> str:
    """Return the variable that a function names, as text. Raises Misconfigured or Retryable."""
    from airflow.sdk import Variable  # noqa: PLC0415  only functions of users need it

    try:
        found: object = Variable.get(key)
    except AirflowSecretsBackendAccessDenied as error:
        raise Misconfigured.of("connections.variable_refused", key=key, error=error) from error
    except AirflowRuntimeError as error:
        if error.error.error is ErrorType.VARIABLE_NOT_FOUND:
            _make_sure_that_airflow_answered("variable", key)
            raise Misconfigured.of("connections.variable_unknown", key=key, type=key.upper()) from error
        raise _no_answer("variable", key, error) from error
    hide_everywhere(connections.secrets_of_variable(key, str(found)))
    return str(found)


def _connection(conn_id: str, advice: str) -> Connection:
    found = _look_up(conn_id)
    if found is None:
        raise Misconfigured.of("connections.connection_unknown", conn_id=conn_id, advice=advice)
    hide_everywhere(connections.secrets_of(_as_weir_has_it(found)))
    return found


def _as_weir_has_it(found: Connection) -> connections.Connection:
    return connections.Connection(
        id=found.conn_id,
        kind=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        database=found.schema or "",
        login=found.login or "",
        password=found.password or "",
        extra=found.extra_dejson,
    )


def _look_up(conn_id: str) -> Connection | None:
    """Return a connection, or None if it is definitely not defined."""
    try:
        connection: Connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        _make_sure_that_airflow_answered("connection", conn_id)
        return None
    except AirflowSecretsBackendAccessDenied as error:
        raise Misconfigured.of("connections.connection_refused", conn_id=conn_id, error=error) from error
    except AirflowRuntimeError as error:
        raise _no_answer("connection", conn_id, error) from error
    return connection


def _make_sure_that_airflow_answered(what: str, name: str) -> None:
    """Ask again, directly: Airflow's chain of secrets backends (3.3.2) treats an error of its API as "not defined"."""
    from airflow.sdk.execution_time import task_runner  # noqa: PLC0415  only a task has it loaded
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection, GetVariable  # noqa: PLC0415

    supervisor = getattr(task_runner, "SUPERVISOR_COMMS", None)
    if supervisor is None:
        return
    try:
        answer = supervisor.send(GetConnection(conn_id=name) if what == "connection" else GetVariable(key=name))
    except AirflowRuntimeError as error:
        raise _no_answer(what, name, error) from error
    missing = (ErrorType.CONNECTION_NOT_FOUND, ErrorType.VARIABLE_NOT_FOUND)
    if not isinstance(answer, ErrorResponse) or answer.error not in missing:
        raise _no_answer(what, name, type(answer).__name__)


def _no_answer(what: str, name: str, found: object) -> Retryable:
    return Retryable.of("connections.airflow_silent", what=what, name=name, found=found)


_EXAMPLE = '\'{"conn_type": "postgres", "host": "db", "login": "weir", "password": "...", "schema": "weir"}\''


def ledger_url(connection: Connection) -> str:
    """Return the SQLAlchemy URL of a connection of type `postgres`; its extra, such as `sslmode`, goes to libpq.

    Its host may be several, separated by commas, each with its port if they differ: `db1:5432,db2:5433`.
    Raises Misconfigured for another type, or one without a host or a database.
    """
    from sqlalchemy.engine import URL  # noqa: PLC0415  it is slow to import, and most ledgers are set by their URL

    where = f"the Airflow connection {connection.conn_id}"
    if connection.conn_type != "postgres":
        raise Misconfigured.of(
            "connections.ledger_connection_of_other_type",
            where=where,
            conn_type=connection.conn_type,
            type=connection.conn_id.upper(),
            example=_EXAMPLE,
        )
    if not connection.host or not connection.schema:
        missing = "host" if not connection.host else "schema (the name of the database)"
        raise Misconfigured.of(
            "connections.ledger_connection_incomplete", where=where, missing=missing, example=_EXAMPLE
        )
    hosts = [host.strip() for host in connection.host.split(",")]
    default = f":{connection.port}" if connection.port else ""
    several = tuple(host if ":" in host else f"{host}{default}" for host in hosts) if len(hosts) > 1 else ()
    url = URL.create(
        "postgresql+psycopg2",
        username=connection.login or None,
        password=connection.password or None,
        host=None if several else connection.host,
        port=None if several else connection.port,
        database=connection.schema,
        query={**extra_of(connection), **({"host": several} if several else {})},
    )
    return url.render_as_string(hide_password=False)


def extra_of(connection: Connection) -> dict[str, str]:
    """Read the extra as texts for libpq. Raises Misconfigured if it is no JSON object of plain values."""
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict) or any(isinstance(value, dict | list) for value in extra.values()):
        raise Misconfigured.of("connections.extra_malformed", conn_id=connection.conn_id)
    return {key: str(value) for key, value in extra.items() if value is not None}


_COMMON = ("url", "storage_options")

_AWS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "endpoint_url": "endpoint_url",
    "profile_name": "profile",
    "config_kwargs": "config_kwargs",
}
"""Extras of Airflow's AWS connection and what s3fs calls them; `region_name` and `verify` go to botocore's client."""

_AWS_CLIENT = ("region_name", "verify")

_OPEN = frozenset(
    {"account_name", "anon", "endpoint_url", "profile", "project", "region_name", "requester_pays", "use_ssl", "verify"}
)
"""Options that are no secret: with a region's name hidden, logs would be unreadable."""


def store_connection(connection: Connection) -> StoreConnection:
    """Read a connection of type `aws`, or of any type with fsspec's options in its extra `storage_options`.

    The extra `url` is the store's. Raises Misconfigured for anything that Weir would have to ignore.
    """
    extra = _extra_of(connection)
    given = extra.get("storage_options") or {}
    if not isinstance(given, dict):
        raise _refused(connection, "`storage_options` in its extra is not a JSON object of fsspec options")
    if connection.conn_type == "aws":
        options = _aws_options(connection, extra) | given
    else:
        options = _other_options(connection, extra, given)
    url = extra.get("url")
    if url is not None and not isinstance(url, str):
        raise _refused(connection, f"`url` in its extra is a {type(url).__name__}, expected text")
    return StoreConnection(url, options)


def hide(options: Mapping[str, Any]) -> None:
    """Hide the secrets among a store's options, as `hide_everywhere` does."""
    for key, value in options.items():
        if isinstance(value, dict):
            hide(value)
        elif isinstance(value, str) and value and key not in _OPEN:
            hide_everywhere([value])


def hide_everywhere(secrets: Iterable[str]) -> None:
    """Hide secrets in what Weir records and tells, and in the logs of this task and of its supervisor.

    Airflow's masker knows nothing but texts: it is told those in which programs write a secret.
    """
    found = set(secrets)
    secrecy.hide(*found)
    forms = sorted({form for secret in found for form in literal_forms(secret)})
    if forms:
        mask_secret(forms)


def _aws_options(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(extra.keys() - {*_COMMON, *_AWS, *_AWS_CLIENT, "service_config"})
    if unknown:
        known = ", ".join((*_COMMON, *_AWS, *_AWS_CLIENT))
        raise _refused(
            connection,
            f"its extra has {', '.join(unknown)}, which Weir does not use; known are {known}. To assume a role, give "
            "it to the workers, or name a profile of their AWS configuration that does",
        )
    if connection.host:
        raise _refused(connection, "it has a host: set `endpoint_url` in its extra for a store that is not Amazon's")
    if bool(connection.login) is not bool(connection.password):
        raise _refused(connection, "it has only one of login (the key's id) and password (the secret key)")
    found = {name: extra[key] for key, name in _AWS.items() if extra.get(key)}
    if connection.login:
        found |= {"key": connection.login, "secret": connection.password}
    endpoint = (extra.get("service_config") or {}).get("s3", {}).get("endpoint_url")
    if endpoint:
        found["endpoint_url"] = endpoint
    client = {key: extra[key] for key in _AWS_CLIENT if extra.get(key) is not None}
    return found | ({"client_kwargs": client} if client else {})


def _other_options(connection: Connection, extra: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "storage_options" not in extra and connection.conn_type not in {"generic", "", None}:
        raise _refused(
            connection,
            f"it has the type {connection.conn_type!r}, which Weir does not know: use the type aws, or any type with "
            "the options of the store's fsspec file system as `storage_options` in the extra",
        )
    used = connection.login or connection.password or connection.host
    unknown = sorted(extra.keys() - set(_COMMON))
    if used or unknown:
        raise _refused(
            connection,
            f"it has {', '.join(unknown) or 'a login, password or host'}, which Weir does not use with the type "
            f"{connection.conn_type!r}: set it in `storage_options` in the extra",
        )
    return given


def _extra_of(connection: Connection) -> dict[str, Any]:
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise _refused(connection, "its extra is not a JSON object")
    return extra


def _refused(connection: Connection, why: str) -> Misconfigured:
    return Misconfigured.of(
        "connections.store_connection_unusable",
        conn_id=connection.conn_id,
        why=why,
        type=connection.conn_id.upper(),
    )

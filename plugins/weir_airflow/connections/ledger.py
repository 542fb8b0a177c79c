"""The ledger's URL, from an Airflow connection. Invariant: no error shows the password."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from weir.errors import Message, Misconfigured

if TYPE_CHECKING:
    from airflow.sdk import Connection


_EXAMPLE = '\'{"conn_type": "postgres", "host": "db", "login": "weir", "password": "...", "schema": "weir"}\''


def ledger_url(connection: Connection) -> str:
    """Return the SQLAlchemy URL of a connection of type `postgres`; its extra, such as `sslmode`, goes to libpq.

    Its host may be several, separated by commas, each with its port if they differ: `db1:5432,db2:5433`.
    Raises Misconfigured for another type, or one without a host or a database.
    """
    from sqlalchemy.engine import URL  # noqa: PLC0415  it is slow to import, and most ledgers are set by their URL

    where = f"the Airflow connection {connection.conn_id}"
    if connection.conn_type != "postgres":
        raise Misconfigured(
            Message(
                "connections.ledger_connection_of_other_type",
                where=where,
                conn_type=connection.conn_type,
                type=connection.conn_id.upper(),
                example=_EXAMPLE,
            )
        )
    if not connection.host or not connection.schema:
        missing = "host" if not connection.host else "schema (the name of the database)"
        raise Misconfigured(
            Message("connections.ledger_connection_incomplete", where=where, missing=missing, example=_EXAMPLE)
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
        raise Misconfigured(Message("connections.extra_malformed", conn_id=connection.conn_id))
    return {key: str(value) for key, value in extra.items() if value is not None}

"""An Airflow connection to a database of a test."""

import psycopg2

from weir.connections import Connection


def connection_to(url, name="db"):
    """The connection to a database of PostgreSQL, by its URL as SQLAlchemy has it, or libpq."""
    given = psycopg2.extensions.parse_dsn(url.replace("+psycopg2", ""))
    return Connection(
        id=name,
        kind="postgres",
        host=given["host"],
        port=int(given["port"]),
        database=given["dbname"],
        login=given["user"],
        password=given.get("password", ""),
    )

"""A table of a state in a database of a test."""

import psycopg2
import pyarrow as pa

from weir.connections import Connection
from weir.sinks.targets.postgres_server import PostgresServer
from weir.state_tables.postgres import PostgresStateTable

OWN = [("_weir_deleted", pa.bool_()), ("_weir_updated", pa.int64())]
"""The columns that rows have besides those of the user."""


def table_in(url, name):
    given = psycopg2.extensions.parse_dsn(url)
    connection = Connection(
        id="db",
        kind="postgres",
        host=given["host"],
        port=int(given["port"]),
        database=given["dbname"],
        login=given["user"],
        password=given.get("password", ""),
    )
    return PostgresStateTable(PostgresServer(lambda _: connection, "db", name), "flow.state")

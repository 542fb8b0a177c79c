"""A table of a state in a database of a test."""

import pyarrow as pa
from tests.builders.connections import connection_to

from weir.sinks.targets.postgres_server import PostgresServer
from weir.state_tables.postgres import PostgresStateTable

OWN = [("_weir_deleted", pa.bool_()), ("_weir_updated", pa.int64())]
"""The columns that rows have besides those of the user."""


def table_in(url, name):
    return PostgresStateTable(PostgresServer(lambda _: connection_to(url), "db", name), "flow.state")

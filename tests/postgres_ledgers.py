"""Ledgers on PostgreSQL that keep their connections, for tests that do not fork: to connect takes most of their time.

All share the statements that were compiled in this process.
"""

from sqlalchemy import func, select
from sqlalchemy.pool import QueuePool

from weir.ledger.database import postgres
from weir.ledger.database.tables import Table
from weir.ledger.ledger import Ledger

_COMPILED, _DIALECTS = {}, {}


def ledger_that_stays_connected(url):
    """Open a ledger that was migrated before; `close` ends its connections."""
    usual, postgres.NullPool = postgres.NullPool, QueuePool
    try:
        ledger = Ledger.open_as_it_is(url)
    finally:
        postgres.NullPool = usual
    engine = ledger._engine
    engine.dialect = _DIALECTS.setdefault(engine.name, engine.dialect)  # compiled statements are those of a dialect
    engine.update_execution_options(compiled_cache=_COMPILED)
    return ledger


def fill(target, source):
    """Copy all rows of a ledger to an empty one on PostgreSQL."""
    with source.transaction() as session, target._engine.begin() as connection:
        for table in Table.metadata.sorted_tables:
            rows = [dict(row) for row in session.execute(select(table)).mappings()]
            if rows:
                connection.execute(table.delete())  # the id of its own
                connection.execute(table.insert(), rows)
            if rows and "id" in table.c and table.c.id.autoincrement is True:
                numbers = func.pg_get_serial_sequence(table.name, "id")
                connection.execute(select(func.setval(numbers, max(row["id"] for row in rows))))
    source.close()
    return target

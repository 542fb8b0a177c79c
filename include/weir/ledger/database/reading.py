"""Transactions that only read, the same on SQLite and PostgreSQL.

Invariant: what PostgreSQL refuses in such a transaction, SQLite refuses too: a write, and a read that locks rows
(SQLite ignores FOR UPDATE). So a test on SQLite fails where only PostgreSQL would have, in production.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import UpdateBase

from weir.errors import Internal

_READS = "weir_reads"
"""The option of a connection whose transaction only reads."""

_SNAPSHOT: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""PostgreSQL's; a transaction of SQLite sees one instant anyway."""


def reading_options(dialect: str) -> dict[str, Any]:
    """Return the options of a connection that sees one instant, whatever is committed meanwhile, and writes nothing."""
    return {_READS: True, **(_SNAPSHOT if dialect == "postgresql" else {})}


def begin_as(session: Session, *, reads: bool) -> None:
    """Begin the session's transaction, one that only reads or one that writes."""
    session.connection(execution_options=reading_options(session.get_bind().dialect.name) if reads else {_READS: False})


def is_reading(connection: Connection) -> bool:
    """Report whether a connection's transaction only reads."""
    return bool(connection.get_execution_options().get(_READS))


def is_writing(connection: Connection) -> bool:
    """Report whether a connection's transaction is one of a ledger that writes."""
    return connection.get_execution_options().get(_READS) is False


def refuse_writing(engine: Engine) -> None:
    """Raise Internal for each statement of a reading transaction that writes or locks."""
    event.listen(engine, "before_execute", _refuse)


def _refuse(connection: Connection, statement: Any, *_more: Any) -> None:
    if not is_reading(connection):
        return
    is_locking = getattr(statement, "_for_update_arg", None) is not None
    if is_locking or isinstance(statement, UpdateBase):
        what = "lock rows" if is_locking else "write"
        raise Internal.of("ledger.write_while_reading", what=what, statement=statement)

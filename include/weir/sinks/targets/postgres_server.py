"""Transactions of a server that holds tables of Weir, and rows that are copied into them.

Invariant: whatever account and database have, a transaction reads what was committed before its last statement, and
times are in UTC. What fails is told from what passes, and a server that falls silent ends a transaction.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg2
from psycopg2 import sql

from weir.connections import Connection
from weir.errors import Misconfigured, Retryable, first_line
from weir.refusals import is_login_refused, is_passing, login_line
from weir.sinks.protocol import TargetAway, TargetConflict
from weir.sinks.targets.postgres_columns import Column
from weir.sinks.targets.postgres_watch import ServerSilent, watched

# Not as options of the connection: a pooler between us and the server would refuse them, or leave them to others.
_SESSION: Final = (
    "set local lock_timeout = '60s'; set local idle_in_transaction_session_timeout = '10min';"
    " set local datestyle = 'ISO'; set local timezone = 'UTC'"
)
LOCKS: Final = (20, "500ms", 2.0)
"""How often a lock is asked for that nobody else may have, for how long each time, and the pause in seconds."""

_COPY_BYTES: Final = 2**18
_OWN_END: Final = "error in .read() call"
"""What psycopg2 has the server cancel a COPY with, so that it looks like a time-out: SQLSTATE 57014."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """The server of an Airflow connection, for `table`; errors name it, what `mends` a refusal, and what comes then."""

    connection: Callable[[str], Connection]
    conn_id: str
    table: str
    mends: str = "Change the table or its constraints"
    then: str = ", then clear weir_close"

    @contextmanager
    def transaction(self, about: str) -> Iterator[Any]:
        """Open a transaction, and commit it at the end; errors say that it is `about` something.

        Raises TargetAway where the server does not answer, Misconfigured for a login or a missing right, and
        TargetConflict for what it refuses.
        """
        parameters = self.connection(self.conn_id).for_libpq()
        connection = self.connect(parameters)
        try:
            with self._translated(about), watched(connection, parameters):
                # Whatever account and database have: a marker is read after the lock, and rows are UTF-8.
                connection.set_session(isolation_level="READ COMMITTED")
                connection.set_client_encoding("UTF8")
                with connection, connection.cursor() as cursor:
                    cursor.execute(_SESSION)
                    yield cursor
        finally:
            connection.close()

    @contextmanager
    def _translated(self, about: str) -> Iterator[None]:
        try:
            yield
        except ServerSilent as error:
            raise TargetAway.of("sinks.postgres_silent", table=self.table, error=error) from error
        except psycopg2.errors.InsufficientPrivilege as error:
            raise Misconfigured.of(
                "sinks.postgres_right_missing", conn_id=self.conn_id, table=self.table, error=first_line(error)
            ) from error
        except psycopg2.errors.ReadOnlySqlTransaction as error:
            raise TargetAway.of("sinks.postgres_read_only", table=self.table, error=first_line(error)) from error
        except psycopg2.Error as error:
            if is_passing(error.pgcode):
                raise TargetAway.of("sinks.postgres_silent", table=self.table, error=first_line(error)) from error
            raise self._refused(about, error) from error

    def _refused(self, about: str, error: psycopg2.Error) -> TargetConflict:
        mend = self.mends
        if isinstance(error, psycopg2.errors.QueryCanceled):
            mend = f"Give the account of connection {self.conn_id} more time, by its statement_timeout"
        elif isinstance(error, psycopg2.errors.UntranslatableCharacter):
            mend = "Take a database in UTF8, or leave out what this one cannot hold"
        return TargetConflict.of(
            "sinks.postgres_refused", version=about, table=self.table, error=first_line(error), mend=mend + self.then
        )

    def connect(self, parameters: Mapping[str, Any]) -> Any:
        """Open a connection. Raises TargetAway and Misconfigured."""
        try:
            return psycopg2.connect(**parameters)
        except psycopg2.OperationalError as error:
            if is_login_refused(error):
                raise Misconfigured.of(
                    "connections.postgres_login_refused", conn_id=self.conn_id, said=login_line(error)
                ) from error
            raise TargetAway.of("sinks.postgres_away", conn_id=self.conn_id, said=login_line(error)) from error
        except psycopg2.ProgrammingError as error:
            raise Misconfigured.of("sinks.postgres_unusable", conn_id=self.conn_id, error=first_line(error)) from error


def in_turns(cursor: Any, change: Callable[[], T]) -> T:
    """Make a change that nobody may read meanwhile, in a transaction of `PostgresServer`.

    Who waits for such a lock keeps all later readers waiting, so that it is asked for again and again, for a moment
    each time: less than the server takes to look for a deadlock. Raises psycopg2.errors.LockNotAvailable at last.
    """
    turns, patience, pause = LOCKS
    for turn in range(1, turns + 1):
        cursor.execute("savepoint weir_change; set local lock_timeout = %s", (patience,))
        try:
            done = change()
        except psycopg2.errors.LockNotAvailable:
            if turn == turns:
                raise
            cursor.execute("rollback to savepoint weir_change")
            time.sleep(pause)
        else:
            cursor.execute(f"release savepoint weir_change; {_SESSION}")
            return done
    raise AssertionError("the last turn returns or raises")


class _Stream(io.RawIOBase):
    """Chunks of bytes as a file that COPY reads; `error` is the one that their source has raised."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")
        self.error: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; fewer only where a chunk ends, none at the end."""
        while not self._rest:
            try:
                chunk = next(self._chunks, None)
            except BaseException as error:
                self.error = error
                raise
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)


def copy(cursor: Any, into: sql.Composable, names: Sequence[str], rows: Iterator[bytes]) -> int:
    """Copy rows of CSV into a table, and return how many it took; an error of `rows` is raised as it is."""
    statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(into, listed(names))
    stream = _Stream(rows)
    try:
        cursor.copy_expert(statement.as_string(cursor), stream, _COPY_BYTES)
    except psycopg2.Error as error:
        if stream.error is not None:  # psycopg2 has made it one of the server
            raise stream.error from None
        if _OWN_END in str(error):  # the same of an error in `_Stream` itself
            raise Retryable.of("sinks.postgres_rows_unread", error=first_line(error)) from error
        raise
    return int(cursor.rowcount)


def listed(names: Sequence[str]) -> sql.Composable:
    """Return names of columns as a list, as they are."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def defined(column: Column) -> sql.Composable:
    """Return a column as a table defines it."""
    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))

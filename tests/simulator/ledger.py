"""A real SQLite ledger in memory, whose transactions may be refused, cut off, or lose their answers.

Invariant: what one simulation wrote the next does not see, though both use one database. A commit whose answer is lost
may come true later, but before the next writing transaction begins: as on PostgreSQL, where the row of the dataflow is
locked until the server has decided. Until then nobody sees its changes. Each process knows by itself which revision it
has seen committed; a commit whose answer is lost it has not seen.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from tests.simulator.process import Process

from weir.errors import Retryable
from weir.ledger.database.reading import begin_as, refuse_writing
from weir.ledger.leases import CLOCK
from weir.ledger.ledger import Ledger

Watch = Callable[[list[str], list[Any]], None]
"""Is told the columns and the rows that a statement has answered."""


class WatchedConnection(sqlite3.Connection):
    """A connection that tells what its statements answer, where somebody watches it."""

    watch: Watch | None = None

    def cursor(self, *args: Any) -> Any:
        """Open a cursor."""
        return super().cursor(*args) if self.watch is None else super().cursor(_WatchedCursor)


class _WatchedCursor(sqlite3.Cursor):
    """SQLAlchemy fetches rows by these methods, and no others."""

    connection: WatchedConnection

    def execute(self, *args: Any) -> Any:
        super().execute(*args)
        self._tell([self.rowcount] if self.description is None else [])
        return self

    def fetchall(self) -> list[Any]:
        return self._tell(super().fetchall())

    def fetchmany(self, *args: Any) -> list[Any]:
        return self._tell(super().fetchmany(*args))

    def fetchone(self) -> Any:
        row = super().fetchone()
        self._tell([row])
        return row

    def _tell(self, rows: list[Any]) -> list[Any]:
        if self.connection.watch is not None and rows:
            self.connection.watch([each[0] for each in self.description or ()], rows)
        return rows


class SimulatedLedger(Ledger):
    """The ledger of one simulation: `process` uses it just now, and `now` is its clock.

    `observe` is called after each transaction that committed, with the process of one that came true late, and whether
    it has the ledger catch up. One that is to lose commits keeps `copies`, and answers a timeline as PostgreSQL does.
    """

    def __init__(
        self,
        process: Callable[[], Process],
        observe: Callable[[Process | None, bool], None],
        now: Callable[[], datetime],
        copies: int = 0,
    ) -> None:
        super().__init__(_engine())
        self._bound = _connection()
        self.connection: WatchedConnection = self._bound.connection.driver_connection  # type: ignore[assignment]
        self.connection.watch = None
        self.connection.deserialize(_empty())
        self.connection.execute("PRAGMA foreign_keys=ON")
        self._process, self._observe, self._now = process, observe, now
        self._in_doubt: tuple[bytes, Process, bool] | None = None
        self._copies: deque[bytes] = deque([_empty()], maxlen=copies + 1 if copies else 0)
        self._reads_timeline, self._timeline = copies > 0, 1
        self.connection.create_function("pg_current_wal_insert_lsn", 0, lambda: "")
        self.connection.create_function("pg_walfile_name", 1, lambda _: f"{self._timeline:08X}")

    def _session(self) -> Session:
        """Return a session on the only connection of the simulation, which stays open between transactions."""
        return Session(self._bound, expire_on_commit=False, info={CLOCK: self._now})

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """As a ledger does."""
        process, writes = self._process(), dataflow is not None
        process.step(Retryable("the ledger refuses"))
        process.may_delete = frozenset()
        if writes:
            self.decide()
        before = self.connection.serialize() if writes and process.may_commit_late else None
        seen = dict(process.seen)
        process.depth += 1
        try:
            with super().transaction(dataflow) as session:
                yield session
                process.step(Retryable("the ledger did not commit"))
        finally:
            process.depth -= 1
        if before is not None and process.commits_late():
            self._in_doubt = self.connection.serialize(), process, self._is_catching_up()
            process.sent_at = self._now()
            self.connection.deserialize(before)
            process.seen = seen
            raise Retryable("the ledger does not answer, and commits later")
        self._committed(None, is_catching_up=self._is_catching_up(), is_written=writes)
        try:
            process.step(Retryable("the ledger's answer is lost"), is_done=True)
        except Retryable:
            process.seen = seen
            raise

    @contextmanager
    def look(self) -> Iterator[Session]:
        """Open a session of which nothing stays, and which is no step of a process."""
        watch, self.connection.watch = self.connection.watch, None
        session = self._session()
        begin_as(session, reads=False)
        try:
            yield session
        finally:
            session.rollback()
            session.close()
            self.connection.watch = watch

    def saw(self, dataflow: str, revision: int) -> None:
        """As a ledger does, for the process alone; commands that no process runs remember nothing."""
        process = self._process()
        if process.number:
            process.seen[dataflow] = max(revision, process.seen.get(dataflow, 0))

    def seen(self, dataflow: str) -> int:
        """As a ledger does, for the process alone."""
        return self._process().seen.get(dataflow, 0)

    def _mark_behind(self, dataflow: str) -> None:
        process = self._process()
        process.step(Retryable("the ledger refuses"))
        self.decide()
        super()._mark_behind(dataflow)
        self._committed(None, is_catching_up=True, is_written=True)
        process.step(Retryable("the ledger's answer is lost"), is_done=True)

    def decide(self) -> None:
        """Let a commit come true whose answer was lost."""
        if self._in_doubt is None:
            return
        (state, process, is_catching_up), self._in_doubt = self._in_doubt, None
        self.connection.deserialize(state)
        self._committed(process, is_catching_up=is_catching_up, is_written=True)

    @property
    def kept_commits(self) -> int:
        """How many commits can be lost."""
        return len(self._copies) - 1

    def go_back(self, commits: int, *, is_promoted: bool = False) -> int:
        """Lose the last commits, as a replica has that becomes primary; return how many were lost.

        Its timeline is another one then if it `is_promoted`; else it is as if a backup was restored.
        There are only as many copies of earlier states as were asked for.
        """
        self._in_doubt = None
        lost = min(commits, self.kept_commits)
        for _ in range(lost):
            self._copies.pop()
        if lost > 0:
            self.connection.deserialize(self._copies[-1])
            self._timeline += is_promoted
        return max(lost, 0)

    def _committed(self, late: Process | None, *, is_catching_up: bool, is_written: bool) -> None:
        if is_written and self._copies.maxlen:
            self._copies.append(self.connection.serialize())
        self._observe(late, is_catching_up)


@cache
def _connection() -> Connection:
    return _engine().connect()


@cache
def _engine() -> Engine:
    """Return the engine of all simulations: it caches compiled statements."""
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False, "factory": WatchedConnection}
    )
    event.listen(engine, "connect", _let_us_begin)
    event.listen(engine, "begin", _begin)
    refuse_writing(engine)
    return engine


def _let_us_begin(connection: Any, _record: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.connection.driver_connection.execute("BEGIN IMMEDIATE")


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Ledger.open(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as found:
            found.execute("PRAGMA journal_mode=DELETE")  # memory has no write-ahead log
            return found.serialize()

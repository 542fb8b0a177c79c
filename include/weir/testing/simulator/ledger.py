"""A real SQLite ledger in memory, whose transactions may be refused, cut off, or lose their answers.

Invariant: what one simulation wrote the next does not see, though both use one database. A commit whose answer is lost
may come true later, but before the next writing transaction begins: as on PostgreSQL, where the row of the dataflow is
locked until the server has decided. Until then nobody sees its changes.
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

from weir.errors import Retryable
from weir.ledger.database.reading import refuse_writing
from weir.ledger.leases import CLOCK
from weir.ledger.ledger import Ledger
from weir.testing.simulator.process import Process


class SimulatedLedger(Ledger):
    """The ledger of one simulation: `process` uses it just now, and `now` is its clock.

    `observe` is called after each transaction that committed, with the process of one that came true late.
    """

    def __init__(
        self,
        process: Callable[[], Process],
        observe: Callable[[Process | None], None],
        now: Callable[[], datetime],
        copies: int = 0,
    ) -> None:
        super().__init__(_engine())
        self._bound = _connection()
        self.connection: sqlite3.Connection = self._bound.connection.driver_connection  # type: ignore[assignment]
        self.connection.deserialize(_empty())
        self.connection.execute("PRAGMA foreign_keys=ON")
        self._process, self._observe, self._now = process, observe, now
        self._in_doubt: tuple[bytes, Process] | None = None
        self._copies: deque[bytes] = deque([_empty()], maxlen=copies + 1 if copies else 0)

    def _session(self) -> Session:
        """Return a session on the only connection of the simulation, which stays open between transactions."""
        return Session(self._bound, expire_on_commit=False, info={CLOCK: self._now})

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """As a ledger does."""
        process, writes = self._process(), dataflow is not None
        process.step(Retryable("the ledger refuses"))
        if writes:
            self.decide()
        before = self.connection.serialize() if writes and process.may_commit_late else None
        process.depth += 1
        try:
            with super().transaction(dataflow) as session:
                yield session
                process.step(Retryable("the ledger did not commit"))
        finally:
            process.depth -= 1
        if before is not None and process.commits_late():
            self._in_doubt = self.connection.serialize(), process
            self.connection.deserialize(before)
            raise Retryable("the ledger does not answer, and commits later")
        self._committed(None, is_written=writes)
        process.step(Retryable("the ledger's answer is lost"))

    def decide(self) -> None:
        """Let a commit come true whose answer was lost."""
        if self._in_doubt is None:
            return
        (state, process), self._in_doubt = self._in_doubt, None
        self.connection.deserialize(state)
        self._committed(process, is_written=True)

    def go_back(self, commits: int) -> int:
        """Lose the last commits, as a replica has that becomes primary; return how many were lost.

        There are only as many copies of earlier states as were asked for.
        """
        self._in_doubt = None
        lost = min(commits, len(self._copies) - 1)
        for _ in range(lost):
            self._copies.pop()
        if lost > 0:
            self.connection.deserialize(self._copies[-1])
        return max(lost, 0)

    def _committed(self, late: Process | None, *, is_written: bool) -> None:
        if is_written and self._copies.maxlen:
            self._copies.append(self.connection.serialize())
        self._observe(late)


@cache
def _connection() -> Connection:
    return _engine().connect()


@cache
def _engine() -> Engine:
    """Return the engine of all simulations: it caches compiled statements."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
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

"""A real SQLite ledger in memory, whose transactions may be refused, cut off, or lose their answers.

Invariant: what one simulation wrote the next does not see, though both use one database.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from weir.errors import Retryable
from weir.ledger.database.reading import refuse_writing
from weir.ledger.ledger import Ledger


class SimulatedLedger(Ledger):
    """The ledger of one simulation. `step` is called around each transaction, `observe` after each that committed."""

    def __init__(
        self, enter: Callable[[int], None], step: Callable[[Exception], None], observe: Callable[[], None]
    ) -> None:
        super().__init__(_engine())
        self._bound = _connection()
        self.connection: sqlite3.Connection = self._bound.connection.driver_connection  # type: ignore[assignment]
        self.connection.deserialize(_empty())
        self.connection.execute("PRAGMA foreign_keys=ON")
        self._enter_depth, self._step, self._observe = enter, step, observe

    def _session(self) -> Session:
        """Return a session on the only connection of the simulation, which stays open between transactions."""
        return Session(self._bound, expire_on_commit=False)

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """As a ledger does."""
        self._step(Retryable("the ledger refuses"))
        self._enter_depth(1)
        try:
            with super().transaction(dataflow) as session:
                yield session
                self._step(Retryable("the ledger did not commit"))
        finally:
            self._enter_depth(-1)
        self._observe()
        self._step(Retryable("the ledger's answer is lost"))


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

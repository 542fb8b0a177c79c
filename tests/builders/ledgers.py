"""Ledgers and folders for hundreds of tests. Invariant: each is new, and is deleted when its test ends."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, Pool, QueuePool

from weir.ledger.database.reading import is_reading, refuse_writing
from weir.ledger.database.sqlite import begin, sqlite_engine
from weir.ledger.database.tables import RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import dataflow_of

_IN_MEMORY = Path("/dev/shm")  # where Linux keeps a file system in memory; used only if it is there

_COMPILED: dict[Any, Any] = {}
"""The statements that were compiled in this process."""


def new_ledger(path: Path) -> Ledger:
    """Open a new SQLite ledger at `path`; migrated once a process, then copied."""
    path.write_bytes(_empty_ledger())
    return copied_ledger(path)


class StoppingLedger(Ledger):
    """Calls `point` before and after the commit of each transaction that writes: a process may be killed there.

    `crossed` are the pairs of dataflows that a transaction has locked, or of which it has changed rows of the other.
    """

    def __init__(self, engine: Engine, point: Callable[[str, bool], None]) -> None:
        super().__init__(engine)
        self._point = point
        self._open: list[str] = []
        self.crossed: list[tuple[str, str]] = []

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """Give a session as a ledger does; `point` gets the dataflow, and whether its transaction is open still."""
        if dataflow is None:
            with super().transaction() as session:
                yield session
            return
        self.crossed += [(each, dataflow) for each in self._open]
        self._open.append(dataflow)
        try:
            with super().transaction(dataflow) as session:
                event.listen(session, "before_flush", partial(self._flush, dataflow))
                yield session
                self._point(dataflow, True)
        finally:
            self._open.remove(dataflow)
        self._point(dataflow, False)

    def _flush(self, dataflow: str, session: Session, *_: Any) -> None:
        for row in (*session.new, *session.dirty, *session.deleted):
            run = row.id if isinstance(row, RunRow) else getattr(row, "run", None)
            if run is not None and dataflow_of(run) != dataflow and session.is_modified(row):
                self.crossed.append((dataflow, f"{type(row).__name__} of {run}"))


def copied_ledger(path: Path) -> Ledger:
    """Open a copy of a SQLite ledger that this process has migrated, for tests that do not fork.

    It keeps its connections, and all of them share the statements that were compiled.
    """
    engine = sharing_engine(make_url(f"sqlite:///{path}"), QueuePool)
    refuse_writing(engine)
    return Ledger(engine)


def copy_file(of: Path, to: Path) -> None:
    """Put a SQLite database in the place of another one, or beside it."""
    with closing(sqlite3.connect(of)) as found, closing(sqlite3.connect(to)) as copy:
        found.backup(copy)


def sharing_engine(url: URL, pool: type[Pool] = NullPool) -> Engine:
    """Make an engine for a SQLite ledger that shares the statements that were compiled in this process.

    Where connections are kept, so is what SQLite has prepared on them: `PRAGMA query_only`, which expires all of it, is
    left to ledgers that are opened by their URL.
    """
    engine = sqlite_engine(url, pool)
    if pool is not NullPool:
        event.remove(engine, "begin", begin)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "do_connect", _keep_prepared)
    engine.dialect = _dialect()  # compiled statements are those of a dialect
    engine.update_execution_options(compiled_cache=_COMPILED)
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if is_reading(connection) else "BEGIN IMMEDIATE")


def _keep_prepared(_dialect: Dialect, _record: Any, _arguments: Any, settings: dict[str, Any]) -> None:
    settings["cached_statements"] = 1000


@cache
def _dialect() -> Dialect:
    return create_engine("sqlite://").dialect


@cache
def _empty_ledger() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Ledger.open(f"sqlite:///{path}").close()
        return path.read_bytes()


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Give an empty folder in memory, where the system has such: each commit and each file is flushed to disk."""
    folder = Path(tempfile.mkdtemp(prefix="weir-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

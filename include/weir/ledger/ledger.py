"""Opens the ledger and runs its transactions.

Invariant: a dataflow has one writing transaction at a time, which sees one instant of it. SQLite has one writing
transaction at a time; on PostgreSQL the dataflow's row is locked first. A transaction that only reads has a snapshot of
all dataflows, and waits for no other. So a decision and its consequences are atomic. Of another dataflow, one that
writes sees on PostgreSQL what is committed when it asks: it locks the rows that have to stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from weir.errors import Misconfigured, Retryable
from weir.ledger.database.postgres import (
    DRIVER,
    is_busy,
    is_coming,
    lock_dataflow,
    patiently,
    postgres_engine,
    postgres_error,
)
from weir.ledger.database.reading import begin_as, reading_options, refuse_writing
from weir.ledger.database.sqlite import sqlite_engine, sqlite_error
from weir.ledger.database.tables import DataflowRow

HEAD = "0011"
"""The newest migration; a ledger at any other revision is migrated or refused."""

_EXPECTED = "sqlite:////path/ledger.db or postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE"

ATTEMPTS = 3
"""How often work is tried whose connection breaks."""

T = TypeVar("T")

_STORE_ID = select(DataflowRow.__table__.c.store_id).limit(1)


class NotMigrated(Misconfigured):
    """The ledger is not there, or has the tables of an older Weir, and who opens it may not change that."""


class Ledger:
    """A database with Weir's tables, at the revision that this code knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_server = engine.dialect.name != "sqlite"
        self._store_id: str | None = None

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open `url`, creating or migrating its tables.

        Raises Misconfigured for a newer ledger, a network file system or a folder that cannot be written,
        and Retryable if the database does not answer.
        """
        parsed = _parsed(url)
        engine, shown = _engine(parsed), parsed.render_as_string(hide_password=True)
        with _database_errors(parsed):
            patiently(partial(_bring_to_head, engine, shown), is_busy)
        return cls(engine)

    @classmethod
    def open_as_it_is(cls, url: str) -> Ledger:
        """Open `url`, creating and migrating nothing: for a page, which a person may only read.

        Raises NotMigrated for one that is not there, or is at an older revision, Misconfigured for a newer one, and
        Retryable if the database does not answer.
        """
        parsed = _parsed(url)
        shown = parsed.render_as_string(hide_password=True)
        if parsed.drivername != DRIVER and not Path(parsed.database or "").exists():
            raise NotMigrated(f"there is no ledger {shown}, and a reader creates none: the first task or command does")
        engine = _engine(parsed)
        with _database_errors(parsed):
            _require_head(*patiently(partial(_revision, engine), is_busy), shown)
        return cls(engine)

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """Give a session that is committed at the end, or rolled back by an error.

        It excludes all other transactions of `dataflow`; without a dataflow it only reads. No store is asked in one
        that writes: all others wait for it. Waits for a server that is starting. Raises Retryable if the ledger does
        not answer: if that was to the commit, the changes may be there, or may still come. A later transaction of
        `dataflow` begins when that is decided; until it has looked, nothing that was written for them may be deleted.
        """
        with _database_errors(self._engine.url), self._begun(dataflow) as session:
            yield session
            session.commit()

    def perform(self, dataflow: str, work: Callable[[Session], T]) -> T:
        """Do `work` in a transaction, and again where its connection breaks.

        The connection may break after the commit, so `work` has to check whether it was already done. Raises Retryable
        if the connection breaks each time.
        """
        for _ in range(ATTEMPTS - 1):
            with suppress(Retryable), self.transaction(dataflow) as session:
                return work(session)
        with self.transaction(dataflow) as session:
            return work(session)

    def store_id(self) -> str | None:
        """Return the id of the store of the first begin, which never changes; None before. Raises Retryable."""
        if self._store_id is None:
            with self.transaction() as session:
                self._store_id = session.scalar(_STORE_ID)
        return self._store_id

    def _begun(self, dataflow: str | None) -> Session:
        def begin() -> Session:
            session = Session(self._engine, expire_on_commit=False)
            try:
                self._enter(session, dataflow)
            except BaseException:
                session.close()
                raise
            return session

        return patiently(begin, is_coming) if self._is_server else begin()

    def _enter(self, session: Session, dataflow: str | None) -> None:
        begin_as(session, reads=dataflow is None)  # SQLite's waits here for the lock of the whole database
        if dataflow is not None and self._is_server:
            lock_dataflow(session, dataflow)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Without the text, which may hold a password.
        raise Misconfigured(f"the ledger's URL cannot be read: expected {_EXPECTED}") from None
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername=DRIVER)
    if parsed.drivername != DRIVER and parsed.get_backend_name() != "sqlite":
        shown = parsed.render_as_string(hide_password=True)
        raise Misconfigured(f"the ledger {shown} is neither SQLite nor PostgreSQL with psycopg2: expected {_EXPECTED}")
    return parsed


def _engine(url: URL) -> Engine:
    engine = postgres_engine(url) if url.drivername == DRIVER else sqlite_engine(url)
    refuse_writing(engine)
    return engine


@contextmanager
def _database_errors(url: URL) -> Iterator[None]:
    shown = url.render_as_string(hide_password=True)
    try:
        yield
    except DBAPIError as error:
        found = postgres_error(error, shown) if url.drivername == DRIVER else sqlite_error(error, url, shown)
        if found is None:
            raise
        raise found from error


_migrating = threading.Lock()


def _bring_to_head(engine: Engine, shown: str) -> None:
    found, is_ledger = _revision(engine)
    if found == HEAD:
        return
    from weir.ledger.database.migrate import upgrade  # noqa: PLC0415 - alembic is slow to import and rarely needed

    _require_known(found, shown, is_ledger=is_ledger)
    with _migrating:
        upgrade(engine)


def _require_head(found: str | None, is_ledger: bool, shown: str) -> None:  # noqa: FBT001
    if found == HEAD:
        return
    _require_known(found, shown, is_ledger=is_ledger)
    raise NotMigrated(
        f"the ledger {shown} is at revision {found or 'none'}, older than {HEAD}, which this Weir needs: type `weir "
        "ledger upgrade`; the next task or command of this Weir migrates it, too"
    )


def _require_known(found: str | None, shown: str, *, is_ledger: bool) -> None:
    """Refuse another program's tables, and those of a newer Weir. Raises Misconfigured."""
    from weir.ledger.database.migrate import known_revisions  # noqa: PLC0415 - alembic is slow to import

    if found is not None and not is_ledger:
        raise Misconfigured(
            f"the database {shown} has the tables of another program, at revision {found} (of Airflow, perhaps?): give "
            "Weir a database of its own, and let WEIR_LEDGER name it"
        )
    if found is not None and found not in known_revisions():
        raise Misconfigured(
            f"the ledger {shown} is at revision {found}, newer than {HEAD}, the newest that this Weir knows: "
            "install the Weir that wrote it, or point WEIR_LEDGER to another ledger"
        )


def _revision(engine: Engine) -> tuple[str | None, bool]:
    """Return the revision of the database's tables, if they have one, and whether they are a ledger's."""
    with engine.connect().execution_options(**reading_options(engine.dialect.name)) as connection:
        tables = inspect(connection)
        if not tables.has_table("alembic_version"):
            return None, False
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return found, found == HEAD or tables.has_table(DataflowRow.__tablename__)

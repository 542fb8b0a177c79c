"""Opening the ledger and changing it.

Invariant: one writing transaction of a dataflow at a time, and every transaction sees one instant. SQLite serialises
all of them; on PostgreSQL the dataflow's row is locked first, and a transaction that only reads has a snapshot. So a
decision and what follows from it are one step that nobody sees half of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import URL, Engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from weir.errors import Misconfigured, Retryable
from weir.ledger.models import DataflowRow
from weir.ledger.postgres import (
    DRIVER,
    LOCK_SECONDS,
    is_coming,
    lock_dataflow,
    postgres_engine,
    postgres_error,
    read_only,
    was_committed,
)
from weir.ledger.sqlite import sqlite_engine, sqlite_error

HEAD = "0002"
"""The newest migration; a ledger at any other revision is migrated or refused."""

_EXPECTED = "sqlite:////path/ledger.db or postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE"

ATTEMPTS = 3
"""How often a transaction is begun anew whose connection broke."""

T = TypeVar("T")


class OutcomeUnknown(Retryable):
    """The connection broke while a transaction was committed, and nobody can say whether it was: a later try sees."""


class Ledger:
    """A database with Weir's tables, at the revision that this code knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shown = engine.url.render_as_string(hide_password=True)
        self._is_server = engine.dialect.name != "sqlite"

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open `url`, creating or migrating its tables.

        Raises Misconfigured for a newer ledger, a network file system or a folder that cannot be written,
        and Retryable if the database does not answer.
        """
        parsed = _parsed(url)
        engine, shown = _engine(parsed), parsed.render_as_string(hide_password=True)
        with _database_errors(parsed):
            _bring_to_head(engine, shown)
        return cls(engine)

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """Give a session that is committed at the end, or rolled back by an error.

        It shuts out all other transactions of `dataflow`; without one it is to read only. Waits for a server that is
        being started. Raises Retryable if the ledger does not answer.
        """
        with _database_errors(self._engine.url):
            session, number = self._begun(dataflow)
            with session:
                yield session
                self._commit(session, number)

    def perform(self, dataflow: str, work: Callable[[Session], T]) -> T:
        """Do `work`, which changes nothing but the ledger, in a transaction; anew if its connection broke.

        Raises Retryable if that happens again and again, or if it is not known whether it was committed.
        """
        for is_last in (False,) * (ATTEMPTS - 1) + (True,):
            try:
                with self.transaction(dataflow) as session:
                    done = work(session)
            except OutcomeUnknown:
                raise
            except Retryable:
                if is_last:
                    raise
            else:
                return done
        raise AssertionError("unreachable")

    def _begun(self, dataflow: str | None) -> tuple[Session, str | None]:
        """Begin a transaction; its number if it is to be known whether it was committed."""
        deadline, pause = time.monotonic() + LOCK_SECONDS, 0.05
        while True:
            session = Session(self._engine, expire_on_commit=False)
            try:
                return session, self._enter(session, dataflow)
            except DBAPIError as error:
                session.close()
                if not self._is_server or not is_coming(error) or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _enter(self, session: Session, dataflow: str | None) -> str | None:
        if not self._is_server:
            return None  # it began with the lock of all of the database
        if dataflow is not None:
            return lock_dataflow(session, dataflow)
        read_only(session)
        return None

    def _commit(self, session: Session, number: str | None) -> None:
        try:
            session.commit()
        except DBAPIError as error:
            if number is None or not error.connection_invalidated:
                raise
            fate = was_committed(self._engine, number)
            if fate is None:
                raise OutcomeUnknown(
                    f"the ledger {self._shown} did not answer while a transaction was committed, and does not say "
                    f"whether it was: {error.orig}"
                ) from error
            if not fate:
                raise

    def close(self) -> None:
        """Give the connections back."""
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
    return postgres_engine(url) if url.drivername == DRIVER else sqlite_engine(url)


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
    from weir.ledger.migrate import known_revisions, upgrade  # noqa: PLC0415 - alembic is slow to import and rarely needed

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
    with _migrating:
        upgrade(engine)


def _revision(engine: Engine) -> tuple[str | None, bool]:
    """The revision of the database's tables, if they have one, and whether they are a ledger's."""
    with engine.connect() as connection:
        tables = inspect(connection)
        if not tables.has_table("alembic_version"):
            return None, False
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return found, found == HEAD or tables.has_table(DataflowRow.__tablename__)

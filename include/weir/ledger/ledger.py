"""Opens the ledger and runs its transactions.

Invariant: a dataflow has one writing transaction at a time, which sees one instant of it. SQLite has one writing
transaction at a time; on PostgreSQL the dataflow's row is locked first. A transaction that only reads has a snapshot of
all dataflows, and waits for no other. So a decision and its consequences are atomic. Of another dataflow, one that
writes sees on PostgreSQL what is committed when it asks: it locks the rows that have to stay as they are.

Invariant 11: no transaction writes in a ledger that has lost commits of its dataflow. Each raises the dataflow's
revision; a process knows the highest one that it has seen committed, by itself or in a file of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoResultFound
from sqlalchemy.orm import Session

from weir.errors import LedgerBehind, Misconfigured, OtherBuild, Retryable
from weir.extras import needed_for
from weir.ledger.counts import Counted, counts_of, forget
from weir.ledger.database.dataset_tables import LedgerRow
from weir.ledger.database.postgres import (
    DRIVER,
    is_busy,
    is_coming,
    is_refused_timeline,
    lock_name,
    patiently,
    postgres_engine,
    postgres_error,
)
from weir.ledger.database.reading import begin_as, reading_options, refuse_writing
from weir.ledger.database.revision import (
    Revision,
    end_behind,
    mark_behind,
    raise_revision,
    read_revision,
)
from weir.ledger.database.sqlite import sqlite_engine, sqlite_error
from weir.ledger.database.tables import DataflowRow

HEAD = "287b33198ad3"
"""The revision of the tables, which is their fingerprint: a ledger at any other is refused."""

_EXPECTED = "sqlite:////path/ledger.db or postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE"

ATTEMPTS = 3
"""How often work is tried whose connection breaks."""

T = TypeVar("T")

_REVISION = "weir_revision"
"""In a session's `info`: the revision that its commit makes."""

_ENTERED = "weir_entered"
"""In a session's `info`: the transaction that raised the revision."""

_STORE_ID = select(DataflowRow.__table__.c.store_id).limit(1)


class NotMigrated(Misconfigured):
    """The ledger is not there, or has no tables, and who opens it may not change that."""


class Ledger:
    """A database with Weir's tables, at the revision that this code knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_server = engine.dialect.name != "sqlite"
        self._id = ""
        self._store_id: str | None = None
        self._seen: dict[str, int] = {}
        self._seeing = threading.Lock()
        self._reads_timeline = self._is_server
        self._mode = threading.local()
        self.counted: Counted = forget
        """Gets what each transaction has counted, after its commit."""

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open `url`, creating its tables.

        Raises OtherBuild for a ledger of another build, Misconfigured for a network file system or a folder that cannot
        be written, and Retryable if the database does not answer.
        """
        parsed = _parsed(url)
        engine, shown = _engine(parsed), parsed.render_as_string(hide_password=True)
        with _database_errors(parsed):
            patiently(partial(_bring_to_head, engine, shown), is_busy)
        return cls(engine)

    @classmethod
    def open_as_it_is(cls, url: str) -> Ledger:
        """Open `url`, creating nothing: for a page, which a person may only read.

        Raises NotMigrated for one that is not there or has no tables, OtherBuild for one of another build, and
        Retryable if the database does not answer.
        """
        parsed = _parsed(url)
        shown = parsed.render_as_string(hide_password=True)
        if parsed.drivername != DRIVER and not Path(parsed.database or "").exists():
            raise NotMigrated.of("ledger.not_there", shown=shown)
        engine = _engine(parsed)
        with _database_errors(parsed):
            if not patiently(partial(_has_tables, engine, shown), is_busy):
                raise NotMigrated.of("ledger.without_tables", shown=shown)
        return cls(engine)

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """Give a session that is committed at the end, or rolled back by an error.

        It excludes all other transactions of `dataflow`; without a dataflow it only reads. No store is asked in one
        that writes: all others wait for it. Waits for a server that is starting. Raises Retryable if the ledger does
        not answer: if that was to the commit, the changes may be there, or may still come. A later transaction of
        `dataflow` begins when that is decided; until it has looked, nothing that was written for them may be deleted.
        Raises LedgerBehind if the ledger has lost commits of `dataflow`, which is marked then, also where the work in
        it says so; and Retryable for a row that is gone.
        """
        try:
            with _database_errors(self._engine.url), self._begun(dataflow) as session:
                yield session
                is_whole = session.get_transaction() is session.info.get(_ENTERED)  # it was not rolled back on the way
                session.commit()
                if dataflow is not None and is_whole:
                    self.saw(dataflow, session.info.get(_REVISION, 0))
                    self.counted(counts_of(session))
        except LedgerBehind:
            if dataflow is not None:
                self._mark_behind(dataflow)
            raise

    def perform(self, dataflow: str, work: Callable[[Session], T]) -> T:
        """Do `work` in a transaction, and again where its connection breaks.

        The connection may break after the commit, so `work` has to check whether it was already done. Raises Retryable
        if the connection breaks each time.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                with self.transaction(dataflow) as session:
                    return work(session)
            except LedgerBehind:
                raise
            except Retryable:
                continue
        with self.transaction(dataflow) as session:
            return work(session)

    def store_id(self) -> str | None:
        """Return the id of the store of the first begin, which never changes; None before. Raises Retryable."""
        if self._store_id is None:
            with self.transaction() as session:
                self._store_id = session.scalar(_STORE_ID)
        return self._store_id

    def id(self) -> str:
        """Return the ledger's own id, which a copy or a backup of it has, too. Raises Retryable."""
        if not self._id:
            with self.transaction() as session:
                self._id = session.scalars(select(LedgerRow.id)).one()
        return self._id

    # Revisions

    def saw(self, dataflow: str, revision: int) -> None:
        """Remember that a revision of a dataflow was committed: by this process, or by the writer of a file."""
        with self._seeing:
            self._seen[dataflow] = max(revision, self._seen.get(dataflow, 0))

    def seen(self, dataflow: str) -> int:
        """Return the highest revision of a dataflow that is known to be committed; what is written now carries it."""
        return self._seen.get(dataflow, 0)

    def require_not_behind(self, session: Session, dataflow: str) -> None:
        """Raise LedgerBehind if the ledger, as this transaction sees it, has lost commits of a dataflow."""
        self._require(read_revision(session, dataflow, reads_timeline=self._reads_timeline), dataflow)

    def behind(self, dataflow: str, why: str) -> LedgerBehind:
        """Mark that commits of a dataflow are lost, and return the error that says so.

        No transaction of the dataflow begins until the ledger has caught up.
        """
        self._mark_behind(dataflow)
        return lost_commits(dataflow, why)

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Let this thread's transactions write although commits are lost: it has the ledger catch up."""
        before, self._mode.is_catching_up = self._is_catching_up(), True
        try:
            yield
        finally:
            self._mode.is_catching_up = before

    def end_behind(self, session: Session, dataflow: str) -> None:
        """Record in a transaction that the ledger has caught up with all that was seen of a dataflow."""
        found = end_behind(session, dataflow, self.seen(dataflow), reads_timeline=self._reads_timeline)
        session.info[_REVISION] = found

    def _is_catching_up(self) -> bool:
        return getattr(self._mode, "is_catching_up", False)

    def _require(self, found: Revision | None, dataflow: str) -> None:
        seen = self.seen(dataflow)
        why = found.why_behind(seen) if found is not None else f"revision {seen} was committed, and it has none"
        if not why or (found is None and not seen) or self._is_catching_up():
            return
        raise lost_commits(dataflow, why)

    def _mark_behind(self, dataflow: str) -> None:
        with _database_errors(self._engine.url), self._session() as session:
            begin_as(session, reads=False)
            mark_behind(session, dataflow, self.seen(dataflow))
            session.commit()

    # Transactions

    def _begun(self, dataflow: str | None) -> Session:
        def begin() -> Session:
            session = self._session()
            try:
                self._enter(session, dataflow)
            except BaseException:
                session.close()
                raise
            return session

        try:
            return patiently(begin, is_coming) if self._is_server else begin()
        except DBAPIError as error:
            if not (self._reads_timeline and is_refused_timeline(error)):
                raise
        self._reads_timeline = False
        return self._begun(dataflow)

    def _session(self) -> Session:
        return Session(self._engine, expire_on_commit=False)

    def _enter(self, session: Session, dataflow: str | None) -> None:
        begin_as(session, reads=dataflow is None)  # SQLite's waits here for the lock of the whole database
        if dataflow is None:
            return
        found = raise_revision(session, dataflow, reads_timeline=self._reads_timeline)
        if found is None and self._is_server:
            lock_name(session, dataflow)
            found = raise_revision(session, dataflow, reads_timeline=self._reads_timeline)
        self._require(found, dataflow)
        session.info[_REVISION] = 0 if found is None else found.number + 1
        session.info[_ENTERED] = session.get_transaction()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def lost_commits(dataflow: str, why: str) -> LedgerBehind:
    """Return the error that the ledger has lost commits of a dataflow; raised in a transaction of it, it is marked."""
    return LedgerBehind.of("ledger.behind", dataflow=dataflow, why=why)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Without the text, which may hold a password.
        raise Misconfigured.of("ledger.url_malformed", expected=_EXPECTED) from None
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername=DRIVER)
    if parsed.drivername != DRIVER and parsed.get_backend_name() != "sqlite":
        shown = parsed.render_as_string(hide_password=True)
        raise Misconfigured.of("ledger.url_of_other_database", shown=shown, expected=_EXPECTED)
    return parsed


def _engine(url: URL) -> Engine:
    with needed_for(f"the ledger {url.render_as_string(hide_password=True)}", "Weir runs"):
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
    except NoResultFound as error:  # of a row that an earlier transaction has read or written
        raise Retryable.of("ledger.row_lost", shown=shown) from error


_migrating = threading.Lock()


def _bring_to_head(engine: Engine, shown: str) -> None:
    if _has_tables(engine, shown):
        return
    from weir.ledger.database.migrate import upgrade  # noqa: PLC0415 - alembic is slow to import and rarely needed

    with _migrating:
        upgrade(engine)


def _has_tables(engine: Engine, shown: str) -> bool:
    """Report whether a database has a ledger. Raises OtherBuild, and Misconfigured for another program's tables."""
    with engine.connect().execution_options(**reading_options(engine.dialect.name)) as connection:
        tables = inspect(connection)
        if not tables.has_table("alembic_version"):
            return False
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        is_ledger = found == HEAD or tables.has_table(DataflowRow.__tablename__)
    if found is None or found == HEAD:
        return found == HEAD
    if is_ledger:
        raise OtherBuild.of("ledger.of_other_revision", shown=shown, found=found, head=HEAD)
    raise Misconfigured.of("ledger.of_other_program", shown=shown, found=found)

"""Opening the ledger and changing it.

Invariant: one transaction of a dataflow at a time. SQLite serialises all writers; elsewhere the dataflow's row is
locked first. So a decision and what follows from it are one step that nobody sees half of.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from weir.errors import Misconfigured, Retryable
from weir.ledger.models import DataflowRow

HEAD = "0001"
"""The newest migration; a ledger at any other revision is migrated or refused."""

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
"""SQLite's locks do not hold there, and its WAL needs shared memory."""

LOCK_SECONDS = 60
"""How long to wait for another process's transaction."""


class Ledger:
    """A database with Weir's tables, at the revision that this code knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open `url`, creating or migrating its tables.

        Raises Misconfigured for a newer ledger, a network file system or a folder that cannot be written,
        and Retryable if the database does not answer.
        """
        engine = _engine(url)
        with _database_errors(url):
            _bring_to_head(engine, url)
        return cls(engine)

    @contextmanager
    def transaction(self, dataflow: str | None = None) -> Iterator[Session]:
        """Give a session that is committed at the end, or rolled back by an error; `dataflow`'s row is locked."""
        with (
            _database_errors(self._engine.url.render_as_string()),
            Session(self._engine, expire_on_commit=False) as session,
        ):
            if dataflow is not None:
                session.execute(select(DataflowRow).where(DataflowRow.name == dataflow).with_for_update())
            yield session
            session.commit()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True)
    if parsed.database and parsed.database != ":memory:":
        _require_local_folder(Path(parsed.database))
    # A connection a transaction: processes fork around us, and SQLite connections must not cross a fork.
    engine = create_engine(
        parsed, poolclass=NullPool, connect_args={"timeout": LOCK_SECONDS, "check_same_thread": False}
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # or the driver begins, deferred, on its own
    cursor = connection.cursor()
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    """Wait here for the lock that the switch of a new database needs: for this one SQLite itself does not always."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_immediate(connection: Any) -> None:
    # A deferred transaction that turns into a writer fails instead of waiting.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _require_local_folder(database: Path) -> None:
    folder = database.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"the ledger's folder {folder} cannot be created ({error.strerror}): create it, or set WEIR_LEDGER "
            "to another place"
        ) from error
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
        raise Misconfigured(
            f"the ledger {database} is SQLite on a network file system ({kind}), whose locks do not hold: "
            "put it on a local disk, or set WEIR_LEDGER to a PostgreSQL URL"
        )


def file_system_of(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that holds `folder`; empty where the system does not tell."""
    best, kind = "", ""
    if not mounts.exists():
        return kind
    real = str(folder.resolve())
    for line in mounts.read_text().splitlines():
        fields = line.split()
        point = fields[1].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


@contextmanager
def _database_errors(url: str) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if "readonly" in str(error.orig) or ("unable to open" in str(error.orig) and not _may_write(url)):
            raise Misconfigured(
                f"the ledger {url} cannot be written ({error.orig}): check its folder's permissions"
            ) from error
        raise Retryable(f"the ledger {url} does not answer: {error.orig}") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Retryable(f"the ledger {url} closed the connection: {error.orig}") from error
        if "not a database" in str(error.orig) or "malformed" in str(error.orig):
            raise Misconfigured(
                f"the ledger {url} is no database, or a damaged one ({error.orig}): put the file aside, and type "
                "`weir ledger rebuild --all` to build the ledger again from the store"
            ) from error
        raise


def _may_write(url: str) -> bool:
    """Whether a database that could not be opened could be another time: a full table of open files passes."""
    database = make_url(url).database
    path = Path(database or "")
    may_be_used = path.is_file() if path.exists() else os.access(path.absolute().parent, os.W_OK)
    return may_be_used and (not path.exists() or os.access(path, os.W_OK))


_migrating = threading.Lock()


def _bring_to_head(engine: Engine, url: str) -> None:
    found = _revision(engine)
    if found == HEAD:
        return
    from weir.ledger.migrate import known_revisions, upgrade  # noqa: PLC0415 - alembic is slow to import and rarely needed

    if found is not None and found not in known_revisions():
        raise Misconfigured(
            f"the ledger {url} is at revision {found}, newer than {HEAD}, the newest that this Weir knows: "
            "install the Weir that wrote it, or point WEIR_LEDGER to another ledger"
        )
    with _migrating:
        upgrade(engine)


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

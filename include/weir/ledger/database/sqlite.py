"""SQLite as the ledger's database.

Invariant: it is in WAL mode on a local disk. A transaction that writes begins with the lock of the whole database; one
that reads takes no lock, sees one instant, and can write nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool, Pool

from weir.errors import DiskFull, Misconfigured, Retryable, WeirError, is_disk_full
from weir.ledger.database.reading import is_reading

LOCK_SECONDS = 60
"""The longest wait for another process's transaction."""

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncp", "ncpfs", "afs", "coda", "9p", "drvfs"),
        *("ceph", "cephfs", "glusterfs", "lustre", "lustre_lite", "gpfs", "mmfs", "beegfs", "beegfs_nodev", "fhgfs"),
        *("pvfs2", "orangefs", "panfs", "wekafs", "dvs", "cvfs", "acfs", "gfs", "gfs2", "ocfs2"),
        *("virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fuse"),
    )
)
"""SQLite's locks do not hold there, and its WAL needs shared memory: another machine has the same files open.

Network, parallel and cluster file systems, folders that a virtual machine shares with its host, and `fuse` without the
name of a program, such as davfs2."""

_BY_A_PROGRAM = "fuse."
"""The prefix of file systems that a program serves, such as fuse.sshfs, fuse.gcsfuse and fuse.juicefs."""

_MAY_ONLY_READ = "weir_may_only_read"
"""In the `info` of a connection, which lasts as long as it: whether SQLite lets it only read. A new one may write."""

LEAST_FREE_SPACE = 64 * 2**10
"""Bytes. With less SQLite cannot even read: each first connection makes a WAL and its index."""


def sqlite_engine(url: URL, pool: type[Pool] = NullPool) -> Engine:
    """Engine for `url`; its folder is made. Raises Misconfigured for a network file system or no right to make it.

    A `pool` that keeps connections is for a process that never forks: SQLite connections must not cross a fork.
    """
    if url.database and url.database != ":memory:":
        _require_local_folder(Path(url.database))
    engine = create_engine(url, poolclass=pool, connect_args={"timeout": LOCK_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", begin)
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


def begin(connection: Connection) -> None:
    """Begin a transaction: one that writes waits for the lock here, since a reader that turns into a writer fails."""
    reads = is_reading(connection)
    if connection.info.get(_MAY_ONLY_READ, False) is not reads:
        connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reads else 'OFF'}")
        connection.info[_MAY_ONLY_READ] = reads
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _require_local_folder(database: Path) -> None:
    folder = database.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull.of("ledger.no_room_for_folder", folder=folder, reason=error.strerror) from error
        raise Misconfigured.of("ledger.folder_not_created", folder=folder, reason=error.strerror) from error
    kind = file_system_of(folder)
    if is_on_network(kind):
        raise Misconfigured.of("ledger.sqlite_on_network", database=database, kind=kind)


def is_on_network(kind: str) -> bool:
    """Report whether a type of file system is one on which SQLite's locks do not hold."""
    return kind.lower() in NETWORK_FILE_SYSTEMS or kind.startswith(_BY_A_PROGRAM)


def file_system_of(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the file system that holds `folder`; empty where the system does not report it."""
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


def sqlite_error(error: DBAPIError, url: URL, ledger: str) -> WeirError | None:
    """Convert an error of the database to a WeirError; None for an error that Weir itself has caused."""
    said = str(error.orig)
    if isinstance(error, OperationalError):
        free = _free_bytes(url)
        if "full" in said or ("I/O error" in said and free is not None and free < LEAST_FREE_SPACE):
            return DiskFull.of("ledger.sqlite_disk_full", ledger=ledger, said=said, free=free)
        if "readonly" in said or ("unable to open" in said and not _may_write(url)):
            return Misconfigured.of("ledger.sqlite_not_writable", ledger=ledger, said=said)
        return Retryable.of("ledger.silent", ledger=ledger, said=said)
    if "not a database" in said or "malformed" in said:
        return Misconfigured.of("ledger.sqlite_damaged", ledger=ledger, said=said)
    return None


def _free_bytes(url: URL) -> int | None:
    try:
        return shutil.disk_usage(Path(url.database or "").absolute().parent).free
    except OSError:
        return None


def _may_write(url: URL) -> bool:
    """Report whether a later attempt may open a database: a full table of open files is temporary."""
    path = Path(url.database or "")
    may_be_used = path.is_file() if path.exists() else os.access(path.absolute().parent, os.W_OK)
    return may_be_used and (not path.exists() or os.access(path, os.W_OK))

"""The migrated database of the local stack's Airflow: its own SQLite, or the one that the request names.

Invariant: a database of ours is in its place only when it is whole and of the installed Airflow's version.
"""

from __future__ import annotations

import sqlite3
import sys
import uuid
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from weir_dev.files import write_atomically
from weir_dev.stack.airflow_environment import airflow_home
from weir_dev.stack.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir_dev.stack.state import StackRequest


CONNECTION = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
"""Airflow's setting; in a request's environment it names a database elsewhere, of which we know nothing."""


def migration(request: StackRequest, environment: Mapping[str, str], log: Path) -> Program | None:
    """The program that migrates the stack's database, or None if that is not needed.

    A new database is copied from one that was migrated before: a migration takes five seconds or more. One elsewhere
    is always migrated, which changes nothing if it is new enough.
    """
    database, template = _database(request), _template(request)
    if CONNECTION in request.environment:
        return _migrate(request, environment, log)
    if _stamp(request).exists() and _stamp(request).read_text() == _version() and database.exists():
        return None
    if not database.exists() and template.exists():
        _copy(template, database)
        finish_migration(request)
        return None
    return _migrate(request, environment, log)


def finish_migration(request: StackRequest) -> None:
    """Record that the database is whole, and keep a copy of an empty one for stacks to come."""
    if CONNECTION in request.environment:
        return
    if not _template(request).exists() and not _stamp(request).exists():
        _copy(_database(request), _template(request))
    write_atomically(_stamp(request), _version())


def _migrate(request: StackRequest, environment: Mapping[str, str], log: Path) -> Program:
    return Program(
        name="migration",
        command=(sys.executable, "-m", "airflow", "db", "migrate"),
        environment=environment,
        folder=airflow_home(request.folder),
        log=log,
        grace_seconds=2.0,
        is_ready=lambda: True,
    )


def _database(request: StackRequest) -> Path:
    return airflow_home(request.folder) / "airflow.db"


def _stamp(request: StackRequest) -> Path:
    return airflow_home(request.folder) / "airflow.db.version"


def _template(request: StackRequest) -> Path:
    return request.cache / f"airflow-{_version()}.db"


def _version() -> str:
    return version("apache-airflow-core")


def _copy(source: Path, target: Path) -> None:
    """Copy through SQLite, which knows what its write-ahead log still holds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(temporary)) as new:
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE")  # no files beside the one that is renamed
    temporary.replace(target)

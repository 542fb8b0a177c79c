"""The migrated database of the local stack's Airflow: its own, or the one that the request names.

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
from weir_dev.stack.airflow_environment import CONNECTION, SQLITE_AIRFLOW, airflow_home, postgres_folder
from weir_dev.stack.processes import Program
from weir_dev.stack.state import Database

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir_dev.stack.state import StackRequest


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
    if request.database is Database.POSTGRES:
        return _migrate(request, environment, log)
    if not database.exists() and template.exists():
        _copy(template, database)
        finish_migration(request)
        return None
    return _migrate(request, environment, log)


def finish_migration(request: StackRequest) -> bool:
    """Record that the database is whole, and keep a copy of an empty SQLite file for stacks to come.

    Report whether a copy of an empty PostgreSQL server is wanted, too: it has to be stopped first.
    """
    if CONNECTION in request.environment:
        return False
    is_first = not _template(request).exists() and not _stamp(request).exists()
    if is_first and request.database is Database.SQLITE:
        _copy(_database(request), _template(request))
    write_atomically(_stamp(request), _version())
    return is_first and request.database is Database.POSTGRES


def template_of_server(request: StackRequest) -> Path:
    """Where the files of an empty PostgreSQL server with Airflow's migrated database are kept, if there are any."""
    return request.cache / f"postgres-{_version()}"


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
    if request.database is Database.POSTGRES:
        return postgres_folder(request.folder)
    return airflow_home(request.folder) / SQLITE_AIRFLOW


def _stamp(request: StackRequest) -> Path:
    if request.database is Database.POSTGRES:
        return postgres_folder(request.folder) / "airflow.version"
    return airflow_home(request.folder) / f"{SQLITE_AIRFLOW}.version"


def _template(request: StackRequest) -> Path:
    if request.database is Database.POSTGRES:
        return template_of_server(request)
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

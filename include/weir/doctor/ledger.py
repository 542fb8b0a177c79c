"""The ledger as this machine sees it.

Invariant: it is only looked at. Nothing is created or migrated, and no lock is held for longer than a look.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, and_, create_engine, func, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from weir.dataflow import Dataflow
from weir.doctor.clock import clock_difference, judge_clock
from weir.doctor.examination import Check, Enough
from weir.doctor.finding import Finding, ok, problem, unknown, warning
from weir.doctor.ledger_judgement import (
    AREA,
    Owed,
    judge_connections,
    judge_owed,
    judge_postgresql,
    judge_revision,
)
from weir.doctor.ledger_states import judge_states, states_of_dataflows
from weir.errors import Misconfigured
from weir.ledger.ledger import HEAD
from weir.ledger.migrate import known_revisions
from weir.ledger.models import DataflowRow, OwedClearRow, RunRow
from weir.ledger.sqlite import NETWORK_FILE_SYSTEMS, file_system_of

LOOK_SECONDS = 5
"""How long to wait for a connection or a lock."""


class LedgerExam:
    """Asks one ledger. `is_served` says whether Airflow runs, so that what is owed could be carried out."""

    def __init__(self, url: str, *, parallelism: int | None = None, is_served: bool = True) -> None:
        self._url = make_url(url)
        self._parallelism = parallelism
        self._is_served = is_served

    def checks(self) -> list[Check]:
        """The checks, in order."""
        server = [Check(AREA, "server", self.check_server)] if self._is_server else []
        return [
            Check(AREA, "place", self.check_place, is_gate=True),
            Check(AREA, "answers", self.check_answer, is_gate=True),
            Check(AREA, "revision", self.check_revision, is_gate=True),
            *(server or [Check(AREA, "journal", self.check_journal)]),
            Check(AREA, "writing", self.check_writing),
            Check(AREA, "owed clears", self.check_owed),
            Check(AREA, "states", self.check_states),
        ]

    def store_ids(self) -> tuple[str, ...]:
        """The ids of the stores that the dataflows of this ledger have; none of a ledger that is not there yet."""
        return self._names(DataflowRow.store_id)

    def dag_ids(self) -> tuple[str, ...]:
        """The DAGs that have runs in this ledger."""
        return self._names(RunRow.dag_id)

    def suites(self) -> tuple[str, ...]:
        """The suites that the newest run of each dataflow names."""
        if not self._is_there:
            return ()
        newest = select(RunRow.dataflow, func.max(RunRow.epoch).label("epoch"))
        newest_of = newest.where(RunRow.pinned.is_not(None)).group_by(RunRow.dataflow).subquery()
        is_newest = and_(RunRow.dataflow == newest_of.c.dataflow, RunRow.epoch == newest_of.c.epoch)
        with self._connected() as connection:
            if not inspect(connection).has_table(RunRow.__tablename__):
                return ()
            pinned = list(connection.scalars(select(RunRow.pinned).join(newest_of, is_newest)))
        flows = [Dataflow.from_json(each) for each in pinned if each]
        return tuple(sorted({gate.suite for flow in flows for stage in flow.stages for gate in stage.gates}))

    def check_place(self) -> Iterator[Finding]:
        """Where the ledger is: a server, or a file on a local disk."""
        if self._is_server:
            yield ok(AREA, "place", self._shown)
            return
        path = self._path.absolute()
        folder = next((each for each in (path.parent, *path.parents) if each.exists()), path.parent)
        kind = file_system_of(folder)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
            yield problem(
                AREA,
                "place",
                f"{path} is on a network file system ({kind}), where SQLite's locks do not hold",
                expected="a local disk, or PostgreSQL",
                mend="set WEIR_LEDGER to a path on a local disk if all tasks run on this machine, else to "
                "postgresql+psycopg2://USER:PASSWORD@HOST/weir",
            )
            return
        yield ok(AREA, "place", f"{path}, on a local disk{f' ({kind})' if kind else ''}")

    def check_answer(self) -> Iterator[Finding]:
        """Whether it can be reached."""
        if not self._is_there:
            yield ok(AREA, "answers", "not there yet; the first task or command makes it")
            raise Enough
        try:
            with self._connected() as connection:
                inspect(connection).get_table_names()  # a file is only read now
        except SQLAlchemyError as error:
            yield self._no_answer(error)
        else:
            yield ok(AREA, "answers", f"as {self._url.get_backend_name()}")

    def check_revision(self) -> Iterator[Finding]:
        """Whether its tables are those that this Weir knows."""
        with self._connected() as connection:
            known = inspect(connection).has_table("alembic_version")
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar() if known else None
        yield judge_revision(found, HEAD, known_revisions())
        if found is None:
            raise Enough

    def check_journal(self) -> Iterator[Finding]:
        """Whether SQLite writes ahead, so that readers do not wait for writers."""
        with self._connected() as connection:
            found = str(connection.execute(text("PRAGMA journal_mode")).scalar())
        if found == "wal":
            yield ok(AREA, "journal", "WAL")
            return
        yield warning(
            AREA, "journal", found, expected="wal", mend="`weir ledger upgrade`, while no task runs: it switches back"
        )

    def check_server(self) -> Iterator[Finding]:
        """The server's version, room for connections, and clock."""
        with self._connected() as connection:
            version = int(str(connection.execute(text("SHOW server_version_num")).scalar()))
            limit = int(str(connection.execute(text("SHOW max_connections")).scalar()))
            used = int(str(connection.execute(text("SELECT count(*) FROM pg_stat_activity")).scalar()))
            before = datetime.now(UTC)
            clock = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            after = datetime.now(UTC)
        yield judge_postgresql(version)
        yield judge_connections(limit, used, self._parallelism)
        yield judge_clock(AREA, "the database's times", clock_difference(before, clock, after))

    def check_writing(self) -> Iterator[Finding]:
        """Whether this user may write; nothing is written."""
        try:
            with self._connected() as connection:
                found = _may_write_server(connection) if self._is_server else _may_write_file(connection)
        except DBAPIError as error:
            if "locked" in str(error.orig):
                text_ = f"another transaction held the ledger for {LOOK_SECONDS} s; ask again"
                yield unknown(AREA, "writing", text_)
                return
            found = str(error.orig).strip()
        if found is None:
            yield ok(AREA, "writing", "this user may write")
            return
        yield problem(
            AREA,
            "writing",
            found,
            expected="a ledger that every worker may write",
            mend="give the user of the workers the right to write the database and its folder"
            if not self._is_server
            else "connect to the primary, as the owner of Weir's tables: GRANT ALL ON ALL TABLES IN SCHEMA public TO "
            "the user of the workers",
        )

    def check_owed(self) -> Iterator[Finding]:
        """Whether Airflow was told of all that has to run again."""
        query = select(func.count(OwedClearRow.id), func.min(OwedClearRow.created_at)).where(
            OwedClearRow.settled_at.is_(None)
        )
        with self._connected() as connection:
            number, oldest = connection.execute(query).one()
        yield judge_owed(Owed(number, oldest), datetime.now(UTC), is_served=self._is_served)

    def check_states(self) -> Iterator[Finding]:
        """Whether the states of each dataflow are checkpointed and compacted."""
        with self._connected() as connection:
            found = list(states_of_dataflows(connection))
        now = datetime.now(UTC)
        yield from (judge_states(each, now) for each in found)

    def _names(self, column: Any) -> tuple[str, ...]:
        if not self._is_there:
            return ()
        with self._connected() as connection:
            if not inspect(connection).has_table(DataflowRow.__tablename__):
                return ()
            return tuple(connection.scalars(select(column).distinct().order_by(column)))

    @property
    def _is_there(self) -> bool:
        return self._is_server or self._path.exists()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """One connection of its own. A SQLite file is opened only if it is there, and WAL is left as it is."""
        if self._is_server:
            engine = create_engine(self._url, poolclass=NullPool, connect_args=_patience_of(self._url))
        else:
            engine = create_engine("sqlite://", poolclass=NullPool, creator=self._open_file)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def _open_file(self) -> sqlite3.Connection:
        place = f"file:{quote(str(self._path.absolute()))}?mode=rw"
        return sqlite3.connect(place, uri=True, timeout=LOOK_SECONDS, isolation_level=None)

    def _no_answer(self, error: SQLAlchemyError) -> Finding:
        found = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._is_server:
            mend = (
                "start the database, or correct WEIR_LEDGER or the connection weir_ledger (host, port, login, "
                "password); from this machine: pg_isready -h HOST -p PORT"
            )
            return problem(AREA, "answers", found, expected="a database that answers", mend=mend)
        mend = (
            "give this user the right to write the file and its folder; if it is damaged, put it aside and type "
            "`weir ledger rebuild --all`"
        )
        return problem(AREA, "answers", found, expected=f"a SQLite database at {self._path}", mend=mend)

    @property
    def _is_server(self) -> bool:
        return self._url.get_backend_name() != "sqlite"

    @property
    def _path(self) -> Path:
        if not self._url.database:
            raise Misconfigured("the ledger is a database in memory, which no two processes share: name a file")
        return Path(self._url.database)

    @property
    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)


def _may_write_file(connection: Connection) -> str | None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    connection.exec_driver_sql("ROLLBACK")
    return None


def _may_write_server(connection: Connection) -> str | None:
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        return "the server takes no writes: a standby, or default_transaction_read_only is on"
    query = text("SELECT has_table_privilege(current_user, 'owed_clear', 'SELECT, INSERT, UPDATE, DELETE')")
    return None if connection.execute(query).scalar() else "the user may not change Weir's tables"


def _patience_of(url: URL) -> dict[str, Any]:
    return {"connect_timeout": LOOK_SECONDS} if url.get_backend_name() == "postgresql" else {}

"""The ledger as this machine sees it.

Invariant: it is only looked at. Nothing is created or migrated, and no lock is held for longer than a look.

What a ledger answers, judged. Invariant: nothing is asked here.

Whether the states of dataflows are checkpointed and compacted, as the ledger has it.

Invariant: one finding for each dataflow whose newest closed run keeps state; nothing is asked where it is judged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, and_, create_engine, func, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from weir.dataflow import Dataflow
from weir.doctor.clock import clock_difference, judge_clock
from weir.doctor.examination import Check, Enough, Finding, ok, problem, unknown, warning
from weir.errors import Misconfigured
from weir.formats.checkpoint import SnapshotKind
from weir.formats.codec import state_files_from_plain
from weir.ledger.checkpoints import CheckpointStatus, is_retained
from weir.ledger.database.migrate import known_revisions
from weir.ledger.database.sqlite import NETWORK_FILE_SYSTEMS, file_system_of
from weir.ledger.database.tables import CheckpointRow, CompactionRow, DataflowRow, OwedClearRow, RestoreRow, RunRow
from weir.ledger.ledger import HEAD
from weir.ledger.runs import topology_of
from weir.state.file_rules import sorted_runs
from weir.topology.regions import Topology

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


AREA = "ledger"
OLDEST_POSTGRESQL = 13

OLD_CLEAR = timedelta(minutes=15)
"""Upkeep comes by every three minutes: a clear that is owed for so long is one that cannot be carried out."""

SPARE_CONNECTIONS = 20


@dataclass(frozen=True, slots=True)
class Owed:
    """The clears that Airflow has still to be told of."""

    number: int
    oldest: datetime | None


def judge_revision(found: str | None, head: str, known: frozenset[str]) -> Finding:
    """Judge the revision of the ledger's tables, None if it has none."""
    if found == head:
        return ok(AREA, "revision", found)
    if found is None:
        return ok(AREA, "revision", "none; the first task or command makes its tables")
    if found in known:
        mend = "`weir ledger upgrade`; the next task does it by itself too"
        return warning(AREA, "revision", found, expected=head, mend=mend)
    return problem(
        AREA,
        "revision",
        f"{found}, which this Weir does not know",
        expected=head,
        mend="install the Weir that wrote it here too; all workers need the same",
    )


def judge_postgresql(version: int) -> Finding:
    """Judge `server_version_num`, 160004 for 16.4 say."""
    shown = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version // 10000 >= OLDEST_POSTGRESQL:
        return ok(AREA, "server", shown)
    mend = f"use PostgreSQL {OLDEST_POSTGRESQL} or newer"
    return warning(AREA, "server", shown, expected=f"{OLDEST_POSTGRESQL} or newer", mend=mend)


def judge_connections(limit: int, used: int, parallelism: int | None) -> Finding:
    """Judge a server's room: each task that runs holds up to two connections to the ledger, for moments."""
    needed = 2 * (parallelism or 16) + SPARE_CONNECTIONS
    found = f"{limit} at most, {used} in use"
    if limit >= needed and used < limit - 5:
        return ok(AREA, "connections", found)
    why = f"[core] parallelism is {parallelism}" if parallelism else "a worker runs 16 tasks by default"
    return warning(
        AREA,
        "connections",
        found,
        expected=f"at least {needed}, not all in use: {why}",
        mend=f"max_connections = {max(needed, 2 * limit)} in postgresql.conf and a restart of the server",
    )


def judge_owed(owed: Owed, now: datetime, *, is_served: bool) -> Finding:
    """Judge the clears that Airflow has still to be told of."""
    name = "owed clears"
    if owed.number == 0 or owed.oldest is None:
        return ok(AREA, name, "none")
    age = now - owed.oldest
    found = f"{owed.number}, the oldest for {_told(age)}"
    if age < OLD_CLEAR:
        return ok(AREA, name, found)
    if not is_served:
        return ok(AREA, name, f"{found}; carried out as soon as Airflow runs")
    return problem(
        AREA,
        name,
        found,
        expected=f"none older than {_told(OLD_CLEAR)}: results wait to be made again",
        mend="unpause the DAG weir_upkeep and read the log of its last run, which names what Airflow refuses; a clear "
        "of a DAG or run that was deleted in Airflow can never be carried out",
    )


def _told(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


_LEDGER = "ledger"

LONG_PENDING = timedelta(hours=1)
"""A closing task completes its checkpoint in seconds; what it left is given up within minutes, by upkeep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesOfDataflow:
    """The states of a dataflow as its newest closed run has left them.

    `checkpoint` is the newest epoch that has one which is retained, `pending` since when one is begun and not complete;
    `is_restored` says that the run's state came from elsewhere and needs none. `runs` has of each state that was
    compacted in that run how many runs are to be merged, and how many should be at most.
    """

    dataflow: str
    epoch: str
    checkpoint: str | None
    is_restored: bool
    pending: datetime | None
    runs: dict[str, tuple[int, int]]


def states_of_dataflows(connection: Connection) -> Iterator[StatesOfDataflow]:
    """Ask for all dataflows that keep state; a ledger that is older than that has none."""
    if not inspect(connection).has_table(CheckpointRow.__tablename__):
        return
    newest = select(RunRow.dataflow, func.max(RunRow.epoch)).where(RunRow.closed_at.is_not(None))
    for dataflow, epoch in connection.execute(newest.group_by(RunRow.dataflow).order_by(RunRow.dataflow)).tuples():
        of_run = (RunRow.dataflow == dataflow) & (RunRow.epoch == epoch)
        run, pinned = connection.execute(select(RunRow.id, RunRow.pinned).where(of_run)).tuples().one()
        try:
            topology = None if pinned is None else topology_of(pinned)
        except Misconfigured:
            continue  # of a newer Weir, which the revision tells
        if topology is not None and topology.dataflow.keeps_state:
            yield _asked(connection, dataflow, epoch, run, topology)


def _asked(connection: Connection, dataflow: str, epoch: str, run: str, topology: Topology) -> StatesOfDataflow:
    own = (CheckpointRow.dataflow == dataflow) & (CheckpointRow.kind == SnapshotKind.CHECKPOINT.value)
    pending = CheckpointRow.status == CheckpointStatus.PENDING.value
    restored = select(RestoreRow.id).where(RestoreRow.dataflow == dataflow, RestoreRow.epoch == epoch)
    return StatesOfDataflow(
        dataflow=dataflow,
        epoch=epoch,
        checkpoint=connection.scalar(select(func.max(CheckpointRow.epoch)).where(own, is_retained())),
        is_restored=connection.scalar(restored.limit(1)) is not None,
        pending=connection.scalar(select(func.min(CheckpointRow.triggered_at)).where(own, pending)),
        runs=_runs(connection, run, topology),
    )


def _runs(connection: Connection, run: str, topology: Topology) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    limits = {state.name: state.runs for stage in topology.dataflow.stages for state in stage.states}
    query = select(CompactionRow.state, CompactionRow.files).where(CompactionRow.run == run)
    for name, files in connection.execute(query).tuples():
        if name in limits:
            most = max(found.get(name, (0, 0))[0], sorted_runs(state_files_from_plain(files)))
            found[name] = most, limits[name]
    return found


def judge_states(states: StatesOfDataflow, now: datetime) -> Finding:
    """Judge the states of a dataflow."""
    name = f"states of {states.dataflow}"
    has_checkpoint = states.checkpoint is not None and states.checkpoint >= states.epoch
    if not has_checkpoint and not states.is_restored:
        return warning(
            _LEDGER,
            name,
            f"the newest checkpoint is of {states.checkpoint or 'no epoch'}",
            expected=f"one of {states.epoch}, the newest closed run",
            mend=f"unpause the DAG weir_upkeep, which completes it; `weir verify {states.dataflow}` tells what is lost",
        )
    if states.pending is not None and now - states.pending > LONG_PENDING:
        return warning(
            _LEDGER,
            name,
            f"a checkpoint that was begun at {states.pending:%Y-%m-%d %H:%M} UTC is not complete",
            expected="one that is complete, or given up",
            mend=f"look at weir_close of that run: `weir checkpoints {states.dataflow}`; unpause the DAG weir_upkeep",
        )
    many = [f"{state}: {runs} runs to merge" for state, (runs, most) in sorted(states.runs.items()) if runs > most]
    if many:
        return warning(
            _LEDGER,
            name,
            "; ".join(many),
            expected=f"at most {', '.join(str(states.runs[each][1]) for each in sorted(states.runs))}",
            mend="raise the budget of the state in the DAG file: it is too small for what an epoch changes",
        )
    return ok(_LEDGER, name, f"checkpointed up to {states.checkpoint or states.epoch}")

"""The checks of the ledger.

Invariant: the ledger is only read. It is not created or migrated, and no lock is held longer than a check.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, func, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from weir.dataflow.graph import datasets_read
from weir.dataflow.stage import dataset_of
from weir.doctor import table
from weir.doctor.examination import Check, Enough, Finding
from weir.errors import Misconfigured
from weir.ledger.database.dataset_tables import LedgerRow
from weir.ledger.database.postgres import arguments_of
from weir.ledger.database.sqlite import file_system_of, is_on_network
from weir.ledger.database.tables import DataflowRow, PendingClearRow, RunRow
from weir.ledger.ledger import HEAD
from weir.ledger.runs import dag_ids_of, dataflow_of, epoch_of_run, newest_dataflows
from weir.topology.regions import Topology
from weir.wording import first_few

WAIT_SECONDS = 5
"""How long to wait for a connection or a lock."""

OLD_CLEAR: Final = timedelta(minutes=15)
"""Upkeep runs every three minutes: a clear that is pending for longer is one that Airflow refuses."""


LISTED: Final = 5
"""The largest number of readers that are named."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """A dataflow whose data sets others read, and the DAGs that have runs of it, and of each that reads."""

    dataflow: str
    dag_ids: tuple[str, ...]
    readers: Mapping[str, tuple[str, ...]]


class LedgerExam:
    """Checks one ledger. `is_served` says whether Airflow runs, so that pending clears could be delivered."""

    def __init__(self, url: str, *, is_served: bool = True) -> None:
        self._url = make_url(url)
        self._is_served = is_served

    def checks(self) -> list[Check]:
        """Return the checks, in order."""
        return [
            table.LEDGER_PLACE.check(self.check_place),
            table.LEDGER_ANSWERS.check(self.check_answer),
            table.LEDGER_REVISION.check(self.check_revision),
            table.LEDGER_WRITING.check(self.check_writing),
            table.PENDING_CLEARS.check(self.check_pending_clears),
            table.DATA_SETS.check(self.check_data_sets),
        ]

    def store_ids(self) -> tuple[str, ...]:
        """Return the ids of the stores of this ledger's dataflows; none of a ledger that does not exist yet."""
        return self._distinct(DataflowRow.store_id)

    def epochs(self) -> tuple[str, dict[str, set[str]]]:
        """Return the id of this ledger, and the epochs of each of its dataflows; empty if it does not exist yet."""
        found: dict[str, set[str]] = {name: set() for name in self._distinct(DataflowRow.name)}
        for run in self._distinct(RunRow.id) if found else ():
            found[dataflow_of(run)].add(epoch_of_run(run))
        return "".join(self._distinct(LedgerRow.id)), found

    def dag_ids(self) -> tuple[str, ...]:
        """Return the DAGs that have runs in this ledger."""
        return self._distinct(RunRow.dag_id, RunRow.has_dag_run)

    def publishers(self) -> tuple[Publisher, ...]:
        """Return the dataflows whose data sets others read, by their newest runs."""
        if not self._exists:
            return ()
        with self._connected() as connection, Session(connection) as session:
            read_by: dict[str, dict[str, None]] = {}
            for name, readers in _read(newest_dataflows(session)).items():
                read_by.setdefault(dataset_of(name).dataflow, {}).update(dict.fromkeys(readers))
            names = {*read_by, *(each for readers in read_by.values() for each in readers)}
            dags = {name: dag_ids_of(session, name) for name in names}
        return tuple(
            Publisher(name, dags[name], {each: dags[each] for each in readers})
            for name, readers in sorted(read_by.items())
        )

    def check_place(self) -> Iterator[Finding]:
        """Check that the ledger is a server, or a file on a local disk."""
        if self._is_server:
            yield table.LEDGER_PLACE.ok(self._url.render_as_string(hide_password=True))
            return
        path = self._path.absolute()
        folder = next((each for each in (path.parent, *path.parents) if each.exists()), path.parent)
        kind = file_system_of(folder)
        if is_on_network(kind):
            found = f"{path} is on a network file system ({kind}), where SQLite's locks do not work"
            yield table.LEDGER_PLACE.problem(found)
            return
        yield table.LEDGER_PLACE.ok(f"{path}, on a local disk{f' ({kind})' if kind else ''}")

    def check_answer(self) -> Iterator[Finding]:
        """Check that the ledger can be connected to and read."""
        if not self._exists:
            yield table.LEDGER_ANSWERS.ok("does not exist yet; the first task or command creates it")
            raise Enough
        try:
            with self._connected() as connection:
                inspect(connection).get_table_names()  # SQLite reads the file only now
        except SQLAlchemyError as error:
            yield self._no_answer(error)
        else:
            yield table.LEDGER_ANSWERS.ok(f"as {self._url.get_backend_name()}")

    def check_revision(self) -> Iterator[Finding]:
        """Check that this Weir knows the ledger's tables."""
        with self._connected() as connection:
            has_tables = inspect(connection).has_table("alembic_version")
            query = text("SELECT version_num FROM alembic_version")
            found = connection.execute(query).scalar() if has_tables else None
        yield revision_finding(found)
        if found is None:
            raise Enough

    def check_writing(self) -> Iterator[Finding]:
        """Check that this user may write; nothing is written."""
        try:
            with self._connected() as connection:
                found = _write_refusal(connection, is_server=self._is_server)
        except DBAPIError as error:
            if "locked" in str(error.orig):
                found = f"another transaction held the ledger for {WAIT_SECONDS} s; try again"
                yield table.LEDGER_WRITING.unknown(found)
                return
            found = str(error.orig).strip()
        if not found:
            yield table.LEDGER_WRITING.ok("this user may write")
            return
        yield (table.LEDGER_SERVER_WRITING if self._is_server else table.LEDGER_WRITING).problem(found)

    def check_pending_clears(self) -> Iterator[Finding]:
        """Check that upkeep delivers the clears that Airflow has not received."""
        columns = func.count(PendingClearRow.id), func.min(PendingClearRow.created_at)
        with self._connected() as connection:
            number, oldest = connection.execute(select(*columns).where(PendingClearRow.settled_at.is_(None))).one()
        yield pending_clears_finding(number, oldest, datetime.now(UTC), is_served=self._is_served)

    def check_data_sets(self) -> Iterator[Finding]:
        """Check that what dataflows read of each other is declared, by their newest runs."""
        with self._connected() as connection, Session(connection) as session:
            yield from data_set_findings(newest_dataflows(session))

    def _distinct(self, column: Any, *wanted: Any) -> tuple[str, ...]:
        if not self._exists:
            return ()
        with self._connected() as connection:
            has_tables = inspect(connection).has_table(RunRow.__tablename__)
            query = select(column).where(*wanted).distinct().order_by(column)
            return tuple(connection.scalars(query)) if has_tables else ()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Open a connection. A SQLite file is opened only if it exists, and its journal mode stays as it is."""
        if self._is_server:
            is_postgres = self._url.get_backend_name() == "postgresql"
            options = arguments_of(self._url) | {"connect_timeout": WAIT_SECONDS} if is_postgres else {}
            engine = create_engine(self._url, poolclass=NullPool, connect_args=options)
        else:
            engine = create_engine("sqlite://", poolclass=NullPool, creator=self._open_file)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def _open_file(self) -> sqlite3.Connection:
        place = f"file:{quote(str(self._path.absolute()))}?mode=rw"
        return sqlite3.connect(place, uri=True, timeout=WAIT_SECONDS, isolation_level=None)

    def _no_answer(self, error: SQLAlchemyError) -> Finding:
        found = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._is_server:
            return table.LEDGER_ANSWERS.problem(found)
        return table.LEDGER_FILE.problem(found, path=self._path)

    @property
    def _exists(self) -> bool:
        return self._is_server or self._path.exists()

    @property
    def _is_server(self) -> bool:
        return self._url.get_backend_name() != "sqlite"

    @property
    def _path(self) -> Path:
        if not self._url.database:
            raise Misconfigured.of("doctor.ledger_in_memory")
        return Path(self._url.database)


def revision_finding(found: str | None) -> Finding:
    """Judge the revision of the ledger's tables, None if it has no tables."""
    if found in {HEAD, None}:
        return table.LEDGER_REVISION.ok(found or "none; the first task or command creates the tables")
    return table.LEDGER_REVISION.problem(f"{found}, which is that of another build", head=HEAD)


def pending_clears_finding(number: int, oldest: datetime | None, now: datetime, *, is_served: bool) -> Finding:
    """Judge the number of pending clears and the age of the oldest one."""
    if oldest is None:
        return table.PENDING_CLEARS.ok("none")
    minutes = int((now - oldest).total_seconds() // 60)
    found = (
        f"{number}, the oldest for {minutes} min" if minutes < 120 else f"{number}, the oldest for {minutes // 60} h"
    )
    if now - oldest < OLD_CLEAR or not is_served:
        return table.PENDING_CLEARS.ok(found if is_served else f"{found}; delivered when Airflow runs")
    return table.PENDING_CLEARS.problem(found)


def _read(dataflows: Mapping[str, Topology]) -> dict[str, list[str]]:
    """Return the dataflows that read each data set, by its name."""
    found: dict[str, dict[str, None]] = {}
    for name, topology in dataflows.items():
        for *_, each in datasets_read(topology.dataflow.stages):
            found.setdefault(each.stage, {})[name] = None
    return {name: [*readers] for name, readers in sorted(found.items())}


def data_set_findings(dataflows: Mapping[str, Topology]) -> Iterator[Finding]:
    """Judge what dataflows read of each other, as their newest runs declare it."""
    read = _read(dataflows)
    missing = []
    for name, readers in read.items():
        dataflow, sink = dataset_of(name)
        known = dataflows.get(dataflow)
        if known is None or sink not in known.sinks:
            what = f"the newest run of {dataflow} has no such sink" if known else f"no task of {dataflow} has begun"
            missing.append(table.DATA_SETS.warning(f"{name}, which {first_few(readers, LISTED)} reads: {what}"))
    yield from missing or [table.DATA_SETS.ok(f"{len(read)} that other dataflows read" if read else "none is read")]


def _write_refusal(connection: Connection, *, is_server: bool) -> str:
    if not is_server:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("ROLLBACK")
        return ""
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        return "the server accepts no writes: a standby, or default_transaction_read_only is on"
    query = text("SELECT has_table_privilege(current_user, 'pending_clear', 'SELECT, INSERT, UPDATE, DELETE')")
    return "" if connection.execute(query).scalar() else "the user may not change Weir's tables"

"""Opening the ledger: made, migrated or refused; and what many processes do to it at once."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import IntegrityError
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.ledger.database import code_tables, outbox_tables  # noqa: F401  # their tables are part of the metadata
from weir.ledger.database import sqlite as opening
from weir.ledger.database.tables import AttemptRow, DataflowRow, PendingClearRow, ResultRow, RunRow, Table
from weir.ledger.ledger import HEAD, Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "ladder@20130101T000000Z"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A ledger that is there on PostgreSQL, and one that is not on SQLite."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return request.getfixturevalue("new_postgres_url")()


@pytest.fixture
def ledger(url):
    found = Ledger.open(url)
    yield found
    found.close()


def enter_run(ledger):
    with ledger.transaction("ladder") as session:
        session.add(DataflowRow(name="ladder", lineage=1, store_id="s"))
        session.flush()
        session.add(
            RunRow(
                id=RUN,
                dataflow="ladder",
                epoch="20130101T000000Z",
                interval_start=NOW,
                interval_end=NOW,
                dag_id="dag",
                run_id="run",
                task_prefix="",
                pinned={},
                parameters={},
                created_at=NOW,
            )
        )


def test_the_store_of_a_ledger_is_known_from_the_first_begin_on(ledger):
    assert ledger.store_id() is None
    enter_run(ledger)
    assert ledger.store_id() == "s"


def attempt(number, subtask=0):
    return AttemptRow(
        id=f"t{number:04d}-{subtask:012d}",
        run=RUN,
        region="joined",
        subtask=subtask,
        task_id="joined",
        map_index=subtask,
        try_number=number,
        max_tries=999,
        ti_id="",
        lineage=1,
        origin="first",
        state="running",
        session_id="",
        session_url="",
        began_at=NOW,
        waits=0,
    )


def result(attempt_id, *, is_current=True):
    return ResultRow(
        run=RUN,
        stage="joined",
        subtask=0,
        layout="plain",
        attempt=attempt_id,
        is_current=is_current,
        state="finished",
        state_at=NOW,
        folder="",
        manifest_sha256="",
        digest="",
        rows=0,
        bytes=0,
        versions=[],
    )


def owed(expected_try, subtask):
    return PendingClearRow(
        dataflow="ladder",
        run=RUN,
        region="joined",
        subtask=subtask,
        dag_id="dag",
        run_id="run",
        task_id="joined",
        map_index=subtask,
        expected_try=expected_try,
        reason="",
        created_at=NOW,
    )


# Migrations


def test_the_migrations_make_what_the_models_say(ledger, url):
    with create_engine(url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []


def test_a_new_ledger_is_at_the_revision_of_its_tables(ledger, url):
    with create_engine(url).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == HEAD


def test_an_empty_file_becomes_a_ledger(tmp_path):
    (tmp_path / "ledger.db").touch()
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    enter_run(ledger)
    ledger.close()


def test_the_folder_of_a_ledger_is_made(tmp_path):
    Ledger.open(f"sqlite:///{tmp_path}/a/b/ledger.db").close()
    assert (tmp_path / "a/b/ledger.db").exists()


def test_an_open_ledger_is_opened_without_alembic(ledger, url, monkeypatch):
    """Each task opens the ledger: importing alembic takes longer than the rest of a begin."""
    monkeypatch.setattr("weir.ledger.database.migrate.upgrade", lambda _engine: pytest.fail("migrated again"))
    Ledger.open(url).close()


# Where a ledger must not be


@pytest.mark.parametrize(
    "kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "fuse", "gpfs", "beegfs", "virtiofs", "lustre", "ceph"]
)
def test_sqlite_on_a_network_file_system_is_refused(tmp_path, monkeypatch, kind):
    mounts = tmp_path / "mounts"
    folder = tmp_path / "mounted here"
    folder.mkdir()
    escaped = str(folder).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/export {escaped} {kind} rw 0 0\n")
    assert opening.file_system_of(folder, mounts) == kind
    assert opening.file_system_of(tmp_path, mounts) == "ext4"
    find = opening.file_system_of
    monkeypatch.setattr(opening, "file_system_of", lambda path: find(path, mounts))
    with pytest.raises(Misconfigured, check=of_kind("ledger.sqlite_on_network", kind=kind)):
        Ledger.open(f"sqlite:///{folder}/ledger.db")
    Ledger.open(f"sqlite:///{tmp_path}/ledger.db").close()


def test_a_later_mount_hides_an_earlier_one(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs rw 0 0\nc {tmp_path} ext4 rw 0 0\n")
    assert opening.file_system_of(tmp_path / "x", mounts) == "ext4"
    assert opening.file_system_of(Path(f"{tmp_path}-beside"), mounts) == "ext4"
    assert opening.file_system_of(tmp_path, tmp_path / "no mounts are listed here") == ""


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, check=of_kind("ledger.folder_not_created")):
        Ledger.open(f"sqlite:///{tmp_path}/file/below/ledger.db")


def test_a_database_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(Misconfigured, check=of_kind("ledger.sqlite_not_writable")):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "ledger.db").write_text("a shopping list, and by no means a database " * 100)
    with pytest.raises(Misconfigured, check=of_kind("ledger.sqlite_damaged")):
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db")


# Many at once


def together(count, work, *args):
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
        return [each.result(timeout=240) for each in [pool.submit(work, *args, number) for number in range(count)]]


def _open(url, _number):
    Ledger.open(url).close()


def test_many_processes_make_one_ledger_together(url):
    together(8, _open, url)
    with create_engine(url).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]


EACH = 5


def _write(url, number):
    """Register tries and owe clears, each worth a read before the write, as a begin does."""
    ledger = Ledger.open(url)
    for _ in range(EACH):
        with ledger.transaction("ladder") as session:
            mine = select(AttemptRow.try_number).where(AttemptRow.subtask == number)
            newest = max(session.scalars(mine), default=0)
            session.add(attempt(newest + 1, number))
            # All of them count up one shared number: a lost update would show.
            session.get_one(DataflowRow, "ladder").lineage += 1
            session.add(owed(newest, number))
    ledger.close()


def test_many_writers_lose_nothing(ledger, url):
    enter_run(ledger)
    together(16, _write, url)
    with ledger.transaction() as session:
        assert session.get_one(DataflowRow, "ladder").lineage == 1 + 16 * EACH
        tries = {(row.subtask, row.try_number) for row in session.scalars(select(AttemptRow))}
        assert tries == {(number, each + 1) for number in range(16) for each in range(EACH)}
        assert len(list(session.scalars(select(PendingClearRow)))) == 16 * EACH


# What the database itself keeps


@contextmanager
def refused(ledger):
    """A transaction that the database must not commit."""
    with pytest.raises(IntegrityError), ledger.transaction("ladder") as session:
        yield session


def test_a_partition_has_one_current_result(ledger):
    enter_run(ledger)
    with ledger.transaction("ladder") as session:
        session.add_all([attempt(1), attempt(2), attempt(3)])
        session.flush()
        session.add_all([result("t0001-000000000000", is_current=False), result("t0002-000000000000")])
    with refused(ledger) as session:
        session.add(result("t0003-000000000000"))
    with ledger.transaction() as session:
        assert len(list(session.scalars(select(ResultRow)))) == 2


def test_an_epoch_has_one_run(ledger):
    enter_run(ledger)
    with refused(ledger) as session:
        found = session.get_one(RunRow, RUN)
        columns = {column.name: getattr(found, column.name) for column in RunRow.__table__.columns}
        session.add(RunRow(**columns | {"id": "another"}))


def test_a_region_has_one_attempt_a_try(ledger):
    enter_run(ledger)
    with refused(ledger) as session:
        again = attempt(1)
        again.id = "t0001-another"
        session.add_all([attempt(1), again])


def test_a_failed_transaction_leaves_nothing(ledger):
    enter_run(ledger)
    with suppress(ZeroDivisionError), ledger.transaction("ladder") as session:
        session.add(attempt(1))
        session.flush()
        raise ZeroDivisionError
    with ledger.transaction() as session:
        assert list(session.scalars(select(AttemptRow))) == []


def test_times_come_back_in_utc(ledger):
    enter_run(ledger)
    with ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).created_at == NOW
        assert session.get_one(RunRow, RUN).created_at.tzinfo is UTC

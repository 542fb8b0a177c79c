"""The checks of a ledger, with SQLite and PostgreSQL."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text
from tests.builders.ledgers import new_ledger

from weir.doctor import ledger as ledger_checks
from weir.doctor.examination import Status, examine
from weir.doctor.ledger import OLD_CLEAR, LedgerExam, pending_clears_finding, revision_finding
from weir.ledger.database.tables import NO_DAG, DataflowRow, PendingClearRow, RunRow
from weir.ledger.ledger import HEAD, Ledger

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "a ledger#.db"
    new_ledger(found).close()
    return found


def checked(url, **more):
    return {each.name: each for each in examine([LedgerExam(url, **more).checks()])}


def sqlite_url(path):
    return f"sqlite:///{path}"


def add_pending_clear(ledger, age):
    then = datetime.now(UTC) - age
    with ledger.transaction("trips") as session:
        session.add(DataflowRow(name="trips", store_id="store-1"))
        session.flush()
        session.add(
            RunRow(
                id="trips@e",
                dataflow="trips",
                epoch="e",
                interval_start=then,
                interval_end=then,
                dag_id="trips",
                run_id="r",
                task_prefix="",
                parameters={},
                created_at=then,
            )
        )
        session.flush()
        session.add(
            PendingClearRow(
                dataflow="trips",
                run="trips@e",
                region="clean",
                subtask=0,
                dag_id="trips",
                run_id="r",
                task_id="clean",
                map_index=-1,
                expected_try=1,
                reason="lost",
                created_at=then,
            )
        )


def test_a_good_sqlite_ledger_is_ok_and_unchanged(path):
    before = path.read_bytes()
    found = checked(sqlite_url(path))
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert set(found) == {"place", "answers", "revision", "writing", "pending clears", "data sets"}
    assert path.read_bytes() == before


def test_a_ledger_that_does_not_exist_yet_is_ok_and_is_not_created(tmp_path):
    exam = LedgerExam(sqlite_url(tmp_path / "no" / "ledger.db"))
    found = {each.name: each for each in examine([exam.checks()])}
    assert {each.status for each in found.values()} == {Status.OK}
    assert "does not exist yet" in found["answers"].found
    assert exam.store_ids() == ()
    assert not (tmp_path / "no").exists()


def test_a_file_that_is_no_database_is_reported_with_the_command_that_rebuilds_it(tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"not a database at all, but long enough to be read as one" * 100)
    found = checked(sqlite_url(tmp_path / "ledger.db"))
    assert found["answers"].status is Status.PROBLEM or found["revision"].status is Status.PROBLEM
    assert any("weir ledger rebuild --all" in each.mend for each in found.values())


def test_sqlite_on_a_network_file_system_is_a_problem(path, monkeypatch):
    monkeypatch.setattr(ledger_checks, "file_system_of", lambda _: "nfs4")
    found = checked(sqlite_url(path))
    assert found["place"].status is Status.PROBLEM
    assert "nfs4" in found["place"].found
    assert "postgresql" in found["place"].mend


def test_a_ledger_that_is_locked_for_long_is_unknown(path, monkeypatch):
    monkeypatch.setattr(ledger_checks, "WAIT_SECONDS", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = checked(sqlite_url(path))
    assert found["writing"].status is Status.UNKNOWN
    assert found["pending clears"].status is Status.OK


def test_the_ids_of_stores_and_dags_are_read(path):
    ledger = Ledger.open(sqlite_url(path))
    add_pending_clear(ledger, timedelta())
    ledger.close()
    exam = LedgerExam(sqlite_url(path))
    assert exam.store_ids() == ("store-1",)
    assert exam.dag_ids() == ("trips",)


def test_a_run_that_was_only_restored_is_of_no_dag(path):
    ledger = Ledger.open(sqlite_url(path))
    add_pending_clear(ledger, timedelta())
    with ledger.transaction("trips") as session:
        session.get_one(RunRow, "trips@e").dag_id = NO_DAG
    ledger.close()
    assert LedgerExam(sqlite_url(path)).dag_ids() == ()


def test_an_old_pending_clear_is_a_problem_if_airflow_runs(path):
    ledger = Ledger.open(sqlite_url(path))
    add_pending_clear(ledger, OLD_CLEAR + timedelta(minutes=1))
    ledger.close()
    assert checked(sqlite_url(path))["pending clears"].status is Status.PROBLEM
    assert checked(sqlite_url(path), is_served=False)["pending clears"].status is Status.OK


def test_a_good_postgresql_ledger_is_ok(new_postgres_url):
    url = new_postgres_url()
    found = checked(url)
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert set(found) == {"place", "answers", "revision", "writing", "pending clears", "data sets"}
    password = url.split("://")[1].split("@")[0].split(":")[1]
    assert not any(password in each.found for each in found.values())


def test_a_postgresql_that_accepts_no_writes_is_a_problem(new_postgres_url):
    url = new_postgres_url()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar()
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    engine.dispose()
    found = checked(url)
    assert found["writing"].status is Status.PROBLEM
    assert "standby" in found["writing"].found


def test_a_server_that_does_not_answer_is_one_problem(new_postgres_url):
    url = new_postgres_url().replace("127.0.0.1:", "127.0.0.1:1")
    found = checked(url)
    assert found["answers"].status is Status.PROBLEM
    assert sum(each.status is Status.PROBLEM for each in found.values()) == 1
    assert "pg_isready" in found["answers"].mend


@pytest.mark.parametrize(
    ("found", "status", "advice"),
    [
        (HEAD, "ok", ""),
        (None, "ok", ""),
        ("9999", "problem", "weir export FOLDER"),
    ],
)
def test_the_revision_is_one_that_this_weir_knows(found, status, advice):
    judged = revision_finding(found)
    assert judged.status is Status(status)
    assert advice in judged.mend


@pytest.mark.parametrize(
    ("number", "minutes", "is_served", "status"),
    [(0, 0, True, "ok"), (3, 2, True, "ok"), (3, 20, True, "problem"), (3, 300, False, "ok")],
)
def test_pending_clears_are_delivered_within_minutes(number, minutes, is_served, status):
    oldest = NOW - timedelta(minutes=minutes) if number else None
    assert pending_clears_finding(number, oldest, NOW, is_served=is_served).status is Status(status)

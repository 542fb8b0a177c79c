"""Transactions that only read: they wait for no other, see one instant, and refuse what PostgreSQL would refuse."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from tests.messages.kinds import of_kind
from tests.store_guard import StoreInTransaction

from weir.errors import Internal, WeirError
from weir.ledger import reads
from weir.ledger.database import sqlite as sqlite_module
from weir.ledger.database.tables import DataflowRow, HousekeepingRow
from weir.ledger.ledger import Ledger
from weir.ledger.reads import reads_of_current
from weir.store.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return request.getfixturevalue("new_postgres_url")()


@pytest.fixture
def ledger(url, monkeypatch):
    monkeypatch.setattr(sqlite_module, "LOCK_SECONDS", 1)  # who waits in vain fails soon
    found = Ledger.open(url)
    add(found, "first")
    yield found
    found.close()


def add(ledger, name):
    with ledger.transaction(name) as session:
        session.add(DataflowRow(name=name, lineage=1, store_id="s"))


def names(session):
    return list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))


def test_a_reader_waits_for_no_writer_and_sees_what_was_committed(ledger, url):
    with ledger.transaction("second") as session:
        session.add(DataflowRow(name="second", lineage=1, store_id="s"))
        session.flush()
        other = Ledger.open(url)  # to open a ledger that is at the newest revision is to read
        with other.transaction() as reading:
            assert names(reading) == ["first"]
        assert other.store_id() == "s"
        other.close()
    with ledger.transaction() as reading:
        assert names(reading) == ["first", "second"]


def test_a_writer_waits_for_no_reader_which_goes_on_to_see_one_instant(ledger):
    with ledger.transaction() as reading:
        assert names(reading) == ["first"]
        add(ledger, "second")
        assert names(reading) == ["first"]
        assert reading.scalar(select(func.count()).select_from(DataflowRow)) == 1
    with ledger.transaction() as reading:
        assert names(reading) == ["first", "second"]


LOCKING = select(DataflowRow).with_for_update(read=True)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (LOCKING, "lock rows"),
        (select(DataflowRow.name).with_for_update(), "lock rows"),
        (update(DataflowRow).values(lineage=2), "write"),
        (update(DataflowRow.__table__).values(lineage=2), "write"),
        (delete(DataflowRow), "write"),
        (insert(HousekeepingRow).values(job="job", scope="", done_at=NOW), "write"),
    ],
    ids=str,
)
def test_a_reader_is_refused_what_locks_or_writes_on_every_database(ledger, statement, what):
    with (
        pytest.raises(Internal, check=of_kind("ledger.write_while_reading", what=what)),
        ledger.transaction() as session,
    ):
        session.execute(statement)
    with ledger.transaction("first") as session:
        session.execute(statement)


def test_a_reader_is_refused_changed_objects(ledger):
    with (
        pytest.raises(Internal, check=of_kind("ledger.write_while_reading", what="write")),
        ledger.transaction() as session,
    ):
        session.get_one(DataflowRow, "first").lineage = 2
    with ledger.transaction() as session:
        assert session.get_one(DataflowRow, "first").lineage == 1


def test_the_database_itself_refuses_a_reader_what_is_no_statement_of_sqlalchemy(ledger):
    with pytest.raises(WeirError), ledger.transaction() as session:
        session.execute(text("UPDATE dataflow SET lineage = 2"))
    with ledger.transaction() as session:
        assert session.get_one(DataflowRow, "first").lineage == 1


# The guard of all tests: the store is not asked while others wait for a transaction


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.create("file", b""),
        lambda store: store.read("file"),
        lambda store: store.entries(""),
        lambda store: store.delete("file"),
        lambda store: store.workers,
    ],
    ids=["create", "read", "list", "delete", "by several threads"],
)
def test_the_store_refuses_a_thread_that_holds_the_ledger(ledger, ask):
    store = Store.open("memory://guarded")
    with pytest.raises(StoreInTransaction), ledger.transaction("first"):
        ask(store)
    with ledger.transaction():
        store.replace("file", b"")
    store.delete("file")


def test_what_a_thread_has_found_stays_when_another_one_forgets(world, monkeypatch):
    world.run_days(1, 2)
    monkeypatch.setattr(reads, "_known_members", {})
    monkeypatch.setattr(reads, "_MOST_KNOWN", 0)
    results_read = reads._results_read

    def interrupted(*of):
        with world.ledger.transaction() as session:  # what another thread does meanwhile
            reads._members_of(session, {"another"})
        return results_read(*of)

    monkeypatch.setattr(reads, "_results_read", interrupted)

    def read(number):
        with world.ledger.transaction() as session:
            return reads_of_current(session, f"ladder@2013010{1 + number % 2}T000000Z")

    found = [read(number) for number in range(4)]
    assert found[0] != found[1]
    assert found[2:] == found[:2]

"""A ledger on a disk that is full: it says so, keeps what it has, and goes on once there is room."""

import pytest
from sqlalchemy import func, select, text
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.servers.small_disk import small_disk

from weir.errors import DiskFull
from weir.ledger.database.tables import DataflowRow
from weir.ledger.ledger import Ledger


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=2) as mounted:
        yield mounted


@pytest.fixture
def ledger(disk):
    new_ledger(disk.path / "ledger.db").close()
    opened = Ledger.open(f"sqlite:///{disk.path}/ledger.db")
    write(opened, "before")
    yield opened
    opened.close()


def write(ledger, name, size=100):
    with ledger.transaction(name) as session:
        session.add(DataflowRow(name=name, lineage=1, store_id="x" * size))


def names(ledger):
    with ledger.transaction() as session:
        return set(session.scalars(select(DataflowRow.name)))


@pytest.mark.parametrize("leave", [0, 8 * 2**10, 64 * 2**10, 128 * 2**10])
def test_a_transaction_that_finds_no_room_is_rolled_back_and_says_so(ledger, disk, leave):
    disk.fill(leave)
    with pytest.raises(DiskFull, check=of_kind("ledger.sqlite_disk_full")):
        write(ledger, "too large", 512 * 2**10)
    disk.make_room()
    assert names(ledger) == {"before"}
    write(ledger, "after")
    assert names(ledger) == {"before", "after"}


def test_a_transaction_in_the_middle_of_which_the_disk_fills_up_is_rolled_back(ledger, disk):
    with pytest.raises(DiskFull), ledger.transaction("half") as session:  # noqa: PT012  # the end of the block commits
        session.add(DataflowRow(name="half", lineage=1, store_id="x" * 4096))
        session.flush()
        disk.fill()
        session.add(DataflowRow(name="whole", lineage=1, store_id="x" * 512 * 2**10))
    disk.make_room()
    assert names(ledger) == {"before"}
    with ledger.transaction() as session:
        assert session.scalar(text("PRAGMA integrity_check")) == "ok"


def test_reading_on_a_full_disk_says_what_is_the_matter(ledger, disk):
    disk.fill()
    with pytest.raises(DiskFull, check=of_kind("ledger.sqlite_disk_full", free="0")):
        names(ledger)
    disk.make_room()
    assert names(ledger) == {"before"}


@pytest.mark.parametrize("leave", [0, 32 * 2**10, 96 * 2**10])
def test_a_ledger_whose_first_migration_found_no_room_is_made_later(disk, leave):
    url = f"sqlite:///{disk.path}/new/ledger.db"
    disk.fill(leave)
    with pytest.raises(DiskFull):
        Ledger.open(url)
    disk.make_room()
    ledger = Ledger.open(url)
    with ledger.transaction() as session:
        assert session.scalar(select(func.count(DataflowRow.name))) == 0
    ledger.close()

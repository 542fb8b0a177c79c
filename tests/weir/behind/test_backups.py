"""Ledger and store come back from backups of different times, as docs/storage.md says."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from tests.builders.ledgers import new_ledger
from tests.weir.behind.rewinding import RewindingWorld, check, days, flow

from weir.rebuild.rebuild import rebuild


@pytest.fixture
def world(tmp_path):
    """The backup of the store is of the second day; the ledger's, of the first."""
    world = RewindingWorld(tmp_path, flow(retained_checkpoints=3, keep="60 days"))
    days(world, 1)
    world.ledger_of_first_day = world.ledger.present()
    days(world, 1, 2)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    days(world, 1, 2, 3)
    return world


def put_back_store(world):
    shutil.rmtree(world.folder / "store")
    shutil.copytree(world.folder / "backup", world.folder / "store")
    world.ledger.new_process()


def clear(world, day):
    world.airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02d}")
    world.airflow.run_until_quiet()


def test_a_ledger_that_was_copied_before_the_store_catches_up_with_it(world, three_days):
    put_back_store(world)
    world.ledger.go_back(world.ledger_of_first_day)
    world.upkeep()
    clear(world, 3)
    check(world, 3, three_days)


def test_a_store_that_was_copied_before_the_ledger_has_it_built_again(world, three_days):
    put_back_store(world)
    new_ledger(world.folder / "empty.db").close()
    with closing(sqlite3.connect(world.folder / "empty.db")) as empty:
        data = bytearray(empty.serialize())
    data[18:20] = b"\1\1"
    world.ledger.go_back(bytes(data))
    rebuild(world.services)
    clear(world, 3)
    check(world, 3, three_days)

"""A table whose ledger, or whose own database, has lost commits."""

import sqlite3
from contextlib import closing

from tests.weir.reading.state_world import epoch
from tests.weir.state_tables.test_following import database, run, settle, table, verified  # noqa: F401  fixtures

from weir.coordination.settled import Due
from weir.errors import LedgerBehind
from weir.upkeep import settle_everywhere

THOROUGH = Due(tables=True, is_thorough=True)


def copied(of, to):
    with closing(sqlite3.connect(of)) as found, closing(sqlite3.connect(to)) as copy:
        found.backup(copy)


def test_a_ledger_that_has_lost_checkpoints_takes_none_out_of_the_table(table, tmp_path):  # noqa: F811
    world = table.world
    for day in (1, 2):
        run(table, day)
    ledger, before = world.folder / "ledger.db", tmp_path / "before.db"
    copied(ledger, before)
    run(table, 3)
    copied(before, ledger)
    (error,) = settle(table).failed.values()
    assert isinstance(error, LedgerBehind)
    assert table.days() == [epoch(1), epoch(2), epoch(3)]
    assert settle_everywhere(world.services, THOROUGH).failed == {}
    assert table.days() == [epoch(1), epoch(2), epoch(3)]
    assert table.rows() == table.expected(3)


def test_rows_that_are_newer_than_the_entries_beside_them_get_no_number_twice(table):  # noqa: F811
    """Tables that were restored to different moments: `weir verify` writes all rows again."""
    run(table, 1)
    table.query("create table {t}_kept as select * from weir_state_tables where name = '{t}'; commit")
    table.query("create table {t}_versions as select * from weir_state_versions where name = '{t}'; commit")
    run(table, 2)
    table.query(
        "delete from weir_state_tables where name = '{t}'; delete from weir_state_versions where name = '{t}';"
        "insert into weir_state_tables select * from {t}_kept;"
        "insert into weir_state_versions select * from {t}_versions; commit"
    )
    table.query("drop table {t}_kept, {t}_versions; commit")
    run(table, 3)
    assert settle(table).failed == {}
    verified(table)
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]

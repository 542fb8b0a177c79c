"""A table whose ledger, or whose own database, has lost commits."""

import sqlite3
from contextlib import closing

import pytest
from tests.weir.reading.state_world import epoch
from tests.weir.state_tables.test_following import KEYS, database, run, settle, table, verified  # noqa: F401  fixtures

from weir.coordination.settled import Due
from weir.errors import LedgerBehind
from weir.rebuild.rebuild import rebuild
from weir.upkeep import RESULTS, settle_everywhere

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


@pytest.mark.parametrize("how", ["rebuilt", "caught up"])
def test_half_of_a_correction_is_not_shown_where_the_ledger_was_lost_meanwhile(table, tmp_path, how):  # noqa: F811
    """Of what a person has cleared the store knows, too."""

    def fail_second(key):
        if key.run_id == cleared and key.map_index == 1:
            raise ValueError("bad rows")

    world, cleared = table.world, "scheduled__2013-01-02"
    world.airflow.engine.plan = {epoch(day): dict.fromkeys(KEYS, day) for day in (1, 2)}
    for day in (1, 2):
        run(table, day, parallelism=2)
    copied(world.folder / "ledger.db", tmp_path / "before.db")
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, 20)
    world.airflow.during = fail_second
    world.airflow.clear_run_by_hand(cleared)
    world.airflow.run_until_quiet()
    assert "failed" in world.airflow.states().values()
    settle(table)
    assert set(table.rows().values()) == {2}
    if how == "rebuilt":
        world.lose_ledger()
        rebuild(world.services)
    else:
        copied(tmp_path / "before.db", world.folder / "ledger.db")
        settle_everywhere(world.services, RESULTS)
    assert settle(table).failed == {}
    assert set(table.rows().values()) == {2}


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

"""A table whose ledger, or whose own database, has lost commits."""

# ruff: noqa: S608

from itertools import product

import pytest
from tests.builders.ledgers import copy_file
from tests.weir.reading.state_world import epoch
from tests.weir.state_tables.test_following import KEYS, database, run, settle, table, verified  # noqa: F401  fixtures

from weir.coordination.settled import Due
from weir.errors import LedgerBehind
from weir.rebuild.rebuild import rebuild
from weir.upkeep import RESULTS, settle_everywhere

THOROUGH = Due(tables=True, is_thorough=True)


def test_a_ledger_that_has_lost_checkpoints_takes_none_out_of_the_table(table, tmp_path):  # noqa: F811
    world = table.world
    for day in (1, 2):
        run(table, day)
    ledger, before = world.folder / "ledger.db", tmp_path / "before.db"
    copy_file(ledger, before)
    run(table, 3)
    copy_file(before, ledger)
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
    copy_file(world.folder / "ledger.db", tmp_path / "before.db")
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
        copy_file(tmp_path / "before.db", world.folder / "ledger.db")
        settle_everywhere(world.services, RESULTS)
    assert settle(table).failed == {}
    assert set(table.rows().values()) == {2}


PARTS = {"weir_state_tables": "where name = '{t}'", "weir_state_versions": "where name = '{t}'", "{t}_rows": ""}


def keep(table, moment):  # noqa: F811
    for number, (name, own) in enumerate(PARTS.items()):
        table.query(f"create table {{t}}_{number}_{moment} as select * from {name} {own}; commit")


def put_back(table, moments):  # noqa: F811
    for number, (name, own) in enumerate(PARTS.items()):
        table.query(f"delete from {name} {own}; insert into {name} table {{t}}_{number}_{moments[number]}; commit")


def test_what_was_restored_to_different_moments_is_right_once_it_was_verified(table):  # noqa: F811
    table.world.airflow.engine.plan = {
        epoch(1): {"A": 1, "B": 1},
        epoch(2): {"A": 2},
        epoch(3): {"B": "deleted", "C": 3},
    }
    for day in (1, 2, 3):
        run(table, day, retained_checkpoints=2)
        keep(table, day)
    right, mended = [table.at(2), table.at(3)], 0
    for moments in product((1, 2, 3), repeat=3):
        put_back(table, moments)
        assert settle(table).failed == {}
        mended += bool(verified(table))
        assert [table.at(2), table.at(3)] == right, moments
    assert mended

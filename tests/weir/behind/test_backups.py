"""Ledger and store come back from backups of different times, as docs/storage.md says."""

import shutil

import pytest
from tests.weir.behind.rewinding import RewindingWorld, check, days, flow

from weir.rebuild.rebuild import rebuild


@pytest.fixture
def world(tmp_path):
    """The backup of the store is of the second day; the ledger's, of the first."""
    world = RewindingWorld(tmp_path, flow(retained_checkpoints=3, keep="60 days"))
    world.empty_ledger = world.ledger.present()
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


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_new_day_goes_on_from_the_store_where_ledger_and_airflow_do_not_know_the_day_before(
    world, three_days, is_empty
):
    for key in [each for each in world.airflow.tasks if is_empty or each.run_id > "scheduled__2013-01-01"]:
        del world.airflow.tasks[key]
    put_back_store(world)
    world.ledger.go_back(world.empty_ledger if is_empty else world.ledger_of_first_day)
    world.airflow.dag_run(3)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert world.outcome() == three_days[0]


def test_a_store_that_was_copied_before_the_ledger_has_it_built_again(world, three_days):
    put_back_store(world)
    world.ledger.go_back(world.empty_ledger)
    rebuild(world.services)
    clear(world, 3)
    check(world, 3, three_days)

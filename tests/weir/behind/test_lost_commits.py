"""The ledger goes back to what it was before a transaction, at the begin of a later one; everything else goes on."""

import random
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.weir.behind.rewinding import RewindingWorld, check, days, flow
from tests.weir.restoring import EPOCHS, files_of, keep_savepoints, restore, spoil

from weir.ledger.database.tables import RestoreRow
from weir.rebuild.rebuild import rebuild
from weir.testing.fakes.ledgers import fast_folder
from weir.upkeep import release_everywhere

LAST = 40
"""More than the writing transactions of a day."""

KEPT = 2
"""Transactions that are never lost: before them the ledger knows no such dataflow, and upkeep does not look at it."""


def go_back(folder, last, expected, lost, after, forgets):
    """Put the ledger back by `lost` transactions before the one of number `after`; some processes forget all."""
    world = RewindingWorld(folder, flow())
    world.ledger.moments = []

    def at(number):
        if number == after:
            world.ledger.go_back(world.ledger.moments[after - lost - 1])
            if forgets:
                world.ledger.new_process()

    world.ledger.at = at
    check(world, last, expected)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("share", range(3))
def test_a_day_heals_whatever_the_ledger_has_lost(tmp_path, one_day, share, forgets):
    chance = random.Random(f"{share} {forgets}")
    after = chance.randrange(KEPT + 2, one_day[2] + 1)
    go_back(tmp_path, 1, one_day, chance.randrange(1, after - KEPT), after, forgets)


@pytest.mark.parametrize("seed", range(2))
def test_days_that_build_on_each_other_heal(tmp_path, two_days, seed):
    chance = random.Random(seed)
    after = chance.randrange(KEPT + 2, two_days[2] + 1)
    go_back(tmp_path, 2, two_days, chance.randrange(1, after - KEPT), after, forgets=bool(seed % 2))


def test_a_state_stays_whose_checkpoint_the_ledger_has_lost(tmp_path):
    stages = [each for each in flow().stages if each.name != "known"]  # what is published is looked for anyway
    world = RewindingWorld(tmp_path, replace(flow(keep="60 days"), stages=stages))
    run = world.airflow.dag_run(1)
    for name in ("flights", "aircraft"):
        world.airflow.step(world.airflow.task(run, name))
    before = world.ledger.present()
    world.airflow.run_until_quiet()
    files = [file.path for file in files_of(world, 1)]
    world.ledger.go_back(before)
    world.content["aircraft"] = "other"
    world.airflow.clear_by_hand(run, "aircraft")
    world.airflow.step(world.airflow.task(run, "aircraft"))
    assert all((tmp_path / "store" / path).exists() for path in files)
    world.heal()
    assert world.wrong() == []


def test_a_restore_that_the_ledger_has_lost_is_pinned_though_an_earlier_one_is_not_any_more(tmp_path):
    world = RewindingWorld(tmp_path, flow(retained_checkpoints=3, keep="60 days"))
    days(world, 1)
    keep_savepoints(world, 1)
    spoil(world, 1)
    restore(world, "day1")
    days(world, 2)
    assert [is_open for _, is_open in pins(world)] == [False]
    spoil(world, 1)
    before = world.ledger.present()
    restore(world, "day1")
    world.ledger.go_back(before)
    release_everywhere(world.services).require_whole()
    found = pins(world)
    assert [is_open for _, is_open in found] == [False, True]
    rebuild(world.services)
    assert pins(world) == found
    world.heal()
    assert set(world.airflow.states().values()) == {"success"}


def pins(world):
    """The lineages of the restores of the first day, and whether their pins still hold."""
    query = select(RestoreRow.lineage, RestoreRow.unpinned_at).where(RestoreRow.epoch == EPOCHS[0])
    with world.ledger.transaction() as session:
        return [(row.lineage, row.unpinned_at is None) for row in session.execute(query.order_by(RestoreRow.id))]


@pytest.mark.soak
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("after", range(KEPT + 2, LAST))
def test_a_day_heals_whatever_the_ledger_has_lost_at_each_moment(one_day, after, forgets):
    for lost in range(1, after - KEPT if after <= one_day[2] else 1):
        with fast_folder() as folder:
            go_back(folder, 1, one_day, lost, after, forgets)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_days_heal_whatever_the_ledger_has_lost(tmp_path, two_days, seed):
    chance = random.Random(1000 + seed)
    after = chance.randrange(KEPT + 2, two_days[2] + 1)
    go_back(tmp_path, 2, two_days, chance.randrange(1, after - KEPT), after, forgets=chance.random() < 0.5)

"""The ledger goes back to what it was before a transaction, at the begin of a later one; everything else goes on."""

import random

import pytest
from tests.weir.behind.rewinding import RewindingWorld, check, flow

from weir.testing.fakes.ledgers import fast_folder

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

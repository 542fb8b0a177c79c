"""Airflow's database goes back to what it was before a try, at the begin of a later one; maybe the ledger does, too."""

import random

import pytest
from tests.weir.behind.rewinding import RewindingWorld, check, flow

STEPS = 12
"""The number of tries of three days."""


def go_back(folder, expected, to, after, ledger=None):
    """Put Airflow back to before its try `to` when its try `after` begins, and the ledger by `ledger` transactions."""
    world = RewindingWorld(folder, flow(retained_checkpoints=3, keep="60 days"))
    world.airflow.moments, world.ledger.moments = [], [] if ledger else None

    def at(number):
        if number == after:
            world.airflow.go_back(world.airflow.moments[to - 1])
            if ledger:
                world.ledger.go_back(world.ledger.moments[-min(ledger, len(world.ledger.moments))])

    world.airflow.at = at
    check(world, 3, expected)


@pytest.mark.parametrize(("to", "after"), [(1, 3), (4, 5), (7, 12)])
def test_what_airflow_has_lost_runs_again_or_is_adopted(tmp_path, three_days, to, after):
    go_back(tmp_path, three_days, to, after)


@pytest.mark.parametrize(("to", "after", "ledger"), [(2, 4, 3), (9, 11, 30)])
def test_both_go_back_by_different_times(tmp_path, three_days, to, after, ledger):
    go_back(tmp_path, three_days, to, after, ledger)


@pytest.mark.soak
@pytest.mark.parametrize(("to", "after"), [(to, after) for after in range(2, STEPS + 1) for to in range(1, after)])
def test_airflow_heals_whatever_it_has_lost(tmp_path, three_days, to, after):
    go_back(tmp_path, three_days, to, after)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_both_heal_whatever_they_have_lost(tmp_path, three_days, seed):
    chance = random.Random(seed)
    after = chance.randrange(2, STEPS + 1)
    go_back(tmp_path, three_days, chance.randrange(1, after), after, chance.randrange(1, 40))

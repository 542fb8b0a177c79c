"""A try adopts what an earlier one has committed if that counts still."""

from random import Random

import pytest
from tests.weir.recovery.overtaking import HAPPENINGS, INPUTS, TASKS, compute, happen, next_try, result

from weir.attempts.begin import begin
from weir.coordination.values import Adopted
from weir.errors import ResultUnavailable

OWN = ("joined", 0)
OFTEN = (None,) * 8
INVALID = {"other rows", "suspected"}
"""What gives an input other rows, or may: what was made of those before is not valid."""


@pytest.fixture
def committed(world):
    """A run in which a try of `joined` has been killed after its commit: Airflow calls it running."""
    world.run = world.airflow.dag_run()
    compute(world, *INPUTS, OWN)
    world.airflow.task(world.run, *TASKS[OWN]).state = "running"
    return world


@pytest.mark.parametrize("seed", range(24))
def test_a_commit_is_adopted_if_and_only_if_it_is_there_and_valid_and_no_person_has_cleared_the_task(committed, seed):
    random = Random(seed)
    with committed.ledger.transaction() as session:
        attempt = result(session, *OWN).attempt
    happened = {place: random.choice((*OFTEN, *HAPPENINGS)) for place in INPUTS}
    happened[OWN] = random.choice((*OFTEN, *HAPPENINGS[2:]))
    for place, what in happened.items():
        if what is not None:
            happen(committed, what, place)
    is_cleared = random.random() < 0.2
    if is_cleared:
        committed.airflow.clear_by_hand(committed.run, *TASKS[OWN])
    try:
        rooms = committed.airflow.coordinator.rooms
        found = begin(committed.services, rooms, next_try(committed, *TASKS[OWN]), committed.airflow)
    except ResultUnavailable:
        found = None
    counts = happened[OWN] is None and INVALID.isdisjoint(happened[place] for place in INPUTS)
    assert isinstance(found, Adopted) is (counts and not is_cleared)
    assert not isinstance(found, Adopted) or found.summary["adopted"] == attempt

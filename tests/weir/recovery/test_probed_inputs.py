"""What is read is current, finished and leased, whatever other processes do while the store is probed."""

from random import Random

import pytest
from sqlalchemy import select
from tests.weir.recovery.overtaking import HAPPENINGS, INPUTS, compute, happen, next_try, overtake, result

from weir.attempts.gathering import gather
from weir.attempts.registration import enter
from weir.errors import ResultUnavailable
from weir.ledger.database.tables import LeaseRow

READS = 8
"""How often the store is read while these are probed."""


@pytest.fixture
def ready(world):
    """A run in which all that `joined` reads has been computed."""
    world.run = world.airflow.dag_run()
    compute(world, *INPUTS)
    return world


@pytest.mark.parametrize("seed", range(24))
def test_what_is_read_is_current_finished_and_leased_whatever_happens_while_it_is_probed(ready, seed):
    random = Random(seed)
    changed = random.sample(INPUTS, random.randint(1, 2))
    registered = enter(ready.services, next_try(ready, "joined", 0), ready.airflow)

    def others():
        for place in changed:
            happen(ready, random.choice(HAPPENINGS), place)

    overtake(ready, random.randint(1, READS), others)
    try:
        read, lost = gather(ready.services, registered, ready.airflow).manifests.values(), set()
    except ResultUnavailable as missing:
        read, lost = (), {(loss.stage, loss.subtask) for loss in missing.losses}
    with ready.ledger.transaction() as session:
        inputs = [result(session, *place) for place in INPUTS]
        leased = set(session.scalars(select(LeaseRow.result)))
    assert lost == {(row.stage, row.subtask) for row in inputs if row.state != "finished"}
    assert {each.attempt for each in read} == (set() if lost else {row.attempt for row in inputs})
    assert leased == (set() if lost else {row.id for row in inputs})

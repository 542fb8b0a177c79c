"""A clear of a try is owed once, until it is settled; then it may be owed again. Drawn decisions and deliveries."""

from random import Random

import pytest
from sqlalchemy import select

from weir.ledger.clears import add_pending_clear, open_clears
from weir.ledger.database.tables import PendingClearRow
from weir.ledger.runs import run_by_id
from weir.topology.regions import RegionId

RUN = "ladder@20130101T000000Z"
REGIONS = (RegionId("weather", 0), RegionId("joined", 0), RegionId("joined", 1))


@pytest.fixture
def begun(world):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    return world


@pytest.mark.parametrize("seed", range(3))
def test_a_clear_is_owed_once_until_it_is_settled(begun, seed):
    random, owed, now = Random(seed), set(), begun.airflow.time
    for _ in range(40):
        with begun.ledger.transaction("ladder") as session:
            run = run_by_id(session, RUN)
            for _ in range(random.randrange(1, 4)):
                region, expected = random.choice(REGIONS), random.choice([1, 2])
                add_pending_clear(session, run, region, expected, "changed", now)
                owed.add((region, expected))
        with begun.ledger.transaction("ladder") as session:
            found = [(RegionId(row.region, row.subtask), row.expected_try) for row in open_clears(session, "ladder")]
            assert sorted(found) == sorted(owed)
            for row in session.scalars(select(PendingClearRow).where(PendingClearRow.settled_at.is_(None))):
                if random.random() < 0.4:
                    row.settled_at = now
                    owed.remove((RegionId(row.region, row.subtask), row.expected_try))

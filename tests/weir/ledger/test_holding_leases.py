"""A heartbeat keeps the leases that still run, and takes those again that ran out where the files are still there."""

from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import delete, select

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.leases import LEASE, RENEWAL, hold_leases

CASES = 150
AGES = (timedelta(), RENEWAL / 2, RENEWAL * 2, LEASE - timedelta(seconds=1), LEASE, LEASE * 2, None)
"""How long ago a lease was taken; None: never."""


@pytest.mark.parametrize("seed", range(2))
def test_results_are_held_unless_they_went_while_nobody_held_them(done, seed):
    random, now = Random(seed), done.airflow.time
    for _ in range(CASES):
        with done.ledger.transaction("ladder") as session:
            session.execute(delete(LeaseRow))
            rows = random.sample(list(session.scalars(select(ResultRow))), 4)
            ages = {row.id: random.choice(AGES) for row in rows}
            for row in rows:
                row.state = random.choice([PartitionState.FINISHED, PartitionState.RELEASED]).value
                if (age := ages[row.id]) is not None:
                    session.add(LeaseRow(result=row.id, holder="me", expires_at=now - age + LEASE))
            session.flush()
            gone = hold_leases(session, "me", list(ages), (PartitionState.FINISHED,), now)
            query = select(LeaseRow.result).where(LeaseRow.holder == "me", LeaseRow.expires_at > now)
            held = list(session.scalars(query))
            runs = {result for result, age in ages.items() if age is not None and age < LEASE}
            there = {row.id for row in rows if row.state == PartitionState.FINISHED.value}
            session.rollback()
        assert sorted(held) == sorted(runs | there), ages
        assert gone == ages.keys() - runs - there

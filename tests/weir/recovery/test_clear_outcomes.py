"""A clear is settled exactly when a try that reads the new content has been cleared, is running, or will run.

What Airflow answers and what the ledger knows of the task instance's tries is drawn.
"""

from random import Random

import pytest
from sqlalchemy import select

from weir.coordination.airflow import ClearAnswer
from weir.execution.airflow_words import MISSING
from weir.execution.run_state import AttemptState
from weir.ledger.clears import add_pending_clear
from weir.ledger.database.tables import AttemptRow, PendingClearRow
from weir.ledger.runs import run_by_id
from weir.recovery.pending_clears import deliver
from weir.topology.regions import RegionId

RUN = "ladder@20130101T000000Z"
JOINED = RegionId("joined", 1)
CASES = 40
STATES = (None, "queued", "running", "up_for_retry", "success", "failed", "upstream_failed", "skipped", MISSING)
FINISHED = ("success", "failed", "upstream_failed")
ENDED = (AttemptState.COMMITTED, AttemptState.ADOPTED, AttemptState.FAILED)


class Answers:
    """An Airflow that answers the same whatever it is asked, and clears nothing."""

    def __init__(self, state, try_number):
        self.state, self.try_number = state, try_number

    def clear(self, wanted):
        return [ClearAnswer(each, self.state, self.try_number, cleared=False) for each in wanted]


def is_settled(expected, state, found, known):
    """`known` are the states of the tries that the ledger has, by number."""
    if state in (MISSING, "skipped"):
        return True  # nothing can be cleared
    if state not in FINISHED:
        return not (found == expected and known.get(expected) in ENDED)
    return found > expected and any(number > expected for number in known)


@pytest.mark.parametrize("seed", range(3))
def test_a_clear_is_settled_if_and_only_if_airflow_has_followed(done, seed):
    random = Random(seed)
    for _ in range(CASES):
        expected, state, found = random.choice([1, 2]), random.choice(STATES), random.choice([1, 1, 2, 3])
        known = {number: random.choice(list(AttemptState)) for number in range(1, random.choice([1, 2, 2, 3]) + 1)}
        with done.ledger.transaction("ladder") as session:
            first = _tries(session)[0]
            columns = {column.name: getattr(first, column.name) for column in AttemptRow.__table__.columns}
            for number, each in known.items():
                row = next((row for row in _tries(session) if row.try_number == number), None)
                if row is None:
                    session.add(row := AttemptRow(**columns | {"id": f"try {number}", "try_number": number}))
                row.state = each.value
            for row in _tries(session):
                if row.try_number not in known:
                    session.delete(row)
            add_pending_clear(session, run_by_id(session, RUN), JOINED, expected, "changed", done.airflow.time)
        deliver(done.services, Answers(state, found))
        with done.ledger.transaction("ladder") as session:
            rows = list(session.scalars(select(PendingClearRow)))
            settled = all(row.settled_at is not None for row in rows)
            for row in rows:
                session.delete(row)
        assert settled is is_settled(expected, state, found, known), (expected, state, found, known)


def _tries(session):
    session.flush()
    query = select(AttemptRow).where(AttemptRow.region == "joined", AttemptRow.subtask == 1)
    return list(session.scalars(query.order_by(AttemptRow.try_number)))

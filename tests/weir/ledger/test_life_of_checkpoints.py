"""A checkpoint's number is taken, and completed or abandoned by any of several processes, in any order; then subsumed.

What was abandoned is never completed, and the results of all that is pending or retained stay.
"""

from datetime import UTC, datetime
from random import Random

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind

from weir.errors import Conflict
from weir.formats.checkpoint import SnapshotKind
from weir.ledger.checkpoints import (
    CheckpointStatus,
    abandon,
    checkpoint_row,
    complete,
    is_needed,
    is_retained,
    next_number,
    retained_checkpoints,
)
from weir.ledger.database.tables import CheckpointRow

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "ladder@20130101T000000Z"


@pytest.fixture
def done(world):
    world.run_first(1)
    return world


def taken(number):
    counts = dict.fromkeys(("full_bytes", "incremental_bytes", "new_files", "shared_files"), 0)
    names = {
        "dataflow": "ladder",
        "epoch": "20130101T000000Z",
        "run": RUN,
        "attempt": "a",
        "content": "c",
        "folder": "",
    }
    kind, status = SnapshotKind.CHECKPOINT.value, CheckpointStatus.PENDING.value
    return CheckpointRow(
        **names, **counts, number=number, kind=kind, status=status, lineage=1, results=[], triggered_at=AT
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_was_abandoned_is_never_completed_and_what_is_left_is_needed(done, seed):
    random, states = Random(seed), {}
    for _ in range(60):
        with done.ledger.transaction("ladder") as session:
            what = random.choice(["take", "complete", "complete", "abandon", "subsume"])
            number = random.choice([*states, 1])
            if what == "take" or number not in states:
                number = next_number(session, "ladder")
                assert number > max(states, default=0)
                session.add(taken(number))
                states[number] = "pending"
                for attempt, content in [("another", "c"), ("a", "another")]:
                    with pytest.raises(Conflict):
                        complete(session, "ladder", number, attempt, content, AT)
            elif what == "complete" and states[number] in ("pending", "failed", "retained"):
                if states[number] == "failed":
                    with pytest.raises(Conflict, check=of_kind("ledger.checkpoint_abandoned")):
                        complete(session, "ladder", number, "a", "c", AT)
                else:
                    complete(session, "ladder", number, "a", "c", AT)
                    states[number] = "retained"
            elif what == "abandon" and states[number] in ("pending", "retained"):
                abandon(session, checkpoint_row(session, "ladder", number), AT)
                states[number] = "failed"
            elif what == "subsume" and states[number] == "retained":
                checkpoint_row(session, "ladder", number).subsumed_at = AT
                states[number] = "subsumed"
        with done.ledger.transaction() as session:
            kept = [number for number, state in states.items() if state == "retained"]
            needed = [number for number, state in states.items() if state in ("retained", "pending")]
            numbers = select(CheckpointRow.number).order_by(CheckpointRow.number)
            assert [row.number for row in retained_checkpoints(session, "ladder")] == kept
            assert list(session.scalars(numbers.where(is_retained()))) == kept
            assert list(session.scalars(numbers.where(is_needed()))) == needed

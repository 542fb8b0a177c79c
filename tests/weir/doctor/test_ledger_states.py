"""What the doctor says of states, by the ledger alone."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from tests.weir.keeping import aircraft, run_days
from tests.weir.small_dataflow import World

from weir.doctor.examination import Status, examine
from weir.doctor.ledger import LONG_PENDING, LedgerExam, StatesOfDataflow, judge_states
from weir.ledger.database.tables import CheckpointRow, CompactionRow
from weir.testing.fakes.ledgers import fast_folder

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
FLOW = aircraft(history={"runs": 2})


def states(checkpoint="2", *, is_restored=False, pending=None, runs=(2, 8)):
    return StatesOfDataflow(
        dataflow="flow",
        epoch="2",
        checkpoint=checkpoint,
        is_restored=is_restored,
        pending=pending,
        runs={"history": runs},
    )


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (states(), Status.OK, "checkpointed up to 2"),
        (states("1"), Status.WARNING, "the newest checkpoint is of 1"),
        (states(None), Status.WARNING, "the newest checkpoint is of no epoch"),
        (states(None, is_restored=True), Status.OK, "checkpointed up to 2"),
        (states(pending=NOW - LONG_PENDING), Status.OK, "checkpointed up to 2"),
        (
            states(pending=NOW - LONG_PENDING - timedelta(minutes=1)),
            Status.WARNING,
            "a checkpoint that was begun at 2026-01-05 10:59 UTC is not complete",
        ),
        (states(runs=(8, 8)), Status.OK, "checkpointed up to 2"),
        (states(runs=(9, 8)), Status.WARNING, "history: 9 runs to merge"),
    ],
)
def test_states_are_to_be_checkpointed_and_compacted(found, status, said):
    judged = judge_states(found, NOW)
    assert (judged.name, judged.status, judged.found) == ("states of flow", status, said)
    assert (judged.mend != "") is (status is Status.WARNING)


def test_a_ledger_is_asked_for_the_newest_closed_run():
    def looked_at():
        found = {each.name: each for each in examine([LedgerExam(f"sqlite:///{folder}/ledger.db").checks()])}
        return found["states of ladder"]

    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, FLOW)
        run_days(world, 1, 2, 3)
        good = looked_at()
        assert (good.status, good.found) == (Status.OK, "checkpointed up to 20130103T000000Z")
        with world.ledger.transaction("ladder") as session:
            row = session.scalar(select(CompactionRow))
            row.files = [{**row.files[0], "epoch": f"2012010{day}T000000Z"} for day in range(1, 4)]
        assert looked_at().found == "history: 3 runs to merge"
        with world.ledger.transaction("ladder") as session:
            newest = (CheckpointRow.epoch == "20130103T000000Z") & (CheckpointRow.dataflow == "ladder")
            session.execute(update(CheckpointRow).where(newest).values(status="failed"))
        assert looked_at().found == "the newest checkpoint is of 20130102T000000Z"
        world.ledger.close()

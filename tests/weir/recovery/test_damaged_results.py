"""A damaged result distrusts itself, and no other result of the attempt that wrote it."""

import pytest
from sqlalchemy import select
from tests.weir.restoring import EPOCHS, run_days
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.integrity.verify import Pages, VerifyOutcome, verify_results
from weir.ledger.database.tables import AttemptRow, ResultRow


def aircraft(failover="region"):
    """Each day's flights change a history: an attempt of `aircraft` writes a result for `report`, and the history."""
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="k")],
                parallelism=2,
                state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT"),
            ),
            Stage("report", "pipelines.ladder:report", [blocking("aircraft", by="k")]),
            sink("report", "known"),
        ],
        failover=failover,
        keep="60 days",
    )


@pytest.fixture
def world(request, tmp_path):
    (tmp_path / "store").mkdir()
    found = World(tmp_path, aircraft(getattr(request, "param", "region")))
    run_days(found.airflow, 1)
    return found


def results_of(world, stage, day=1):
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(
            ResultRow.run == f"ladder@{EPOCHS[day - 1]}", ResultRow.stage == stage, ResultRow.is_current
        )
        return list(session.scalars(query.order_by(ResultRow.subtask, ResultRow.layout)))


def flip_a_bit(world, row):
    file = world.folder / "store" / row.folder / "part-0.bin"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)


def failures(world):
    with world.ledger.transaction() as session:
        return [row.failure for row in session.scalars(select(AttemptRow)) if row.failure]


@pytest.mark.parametrize("world", ["region", "individual"], indirect=True)
def test_readers_of_a_whole_result_commit_though_another_one_of_its_attempt_is_damaged(world):
    harmed = results_of(world, "aircraft")
    flip_a_bit(world, harmed[0])
    found = list(verify_results(world.services, harmed, "weir verify", pages=Pages.NEW))
    assert VerifyOutcome.LOST in {each.outcome for each in found}
    history = results_of(world, "history")
    assert {row.attempt for row in history} >= {harmed[0].attempt}
    run_days(world.airflow, 2)
    assert failures(world) == []
    assert {
        name: state for name, state in world.airflow.states().items() if "-02/" in name and state != "success"
    } == {}
    assert len(results_of(world, "history", day=2)) == 2

"""What the ledger says about the cost of runs, and where it says too little."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import World, ladder

from weir.advice.measurements import LEAST_RUNS, measured
from weir.advice.replay_rules import LateClear, Replay, Strike
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.topology.regions import RegionId

JOINED, WEATHER = RegionId("joined", 0), RegionId("weather", 0)
SECONDS = {"raw-clean": 8.0, "weather": 4.0, "joined": 6.0, "totals": 5.0, "routes": 3.0, "report-delays": 2.0}


@pytest.fixture(scope="module")
def world():
    """Five closed runs, and a result of the newest one that was lost and made again for a person's clear."""
    with fast_folder() as folder:
        world = World(folder, ladder())
        newest = run_days(world, range(1, LEAST_RUNS + 1))
        with world.ledger.transaction() as session:
            query = select(ResultRow.folder).join(RunRow, RunRow.id == ResultRow.run)
            for lost in session.scalars(query.where(RunRow.run_id == newest, ResultRow.stage == "weather")):
                world.store.delete_folder(lost)
        world.airflow.clear_by_hand(newest, "joined", 0)
        world.airflow.run_until_quiet()
        give_seconds(world)
        yield world
        world.ledger.close()


def run_days(world, days):
    return world.run_days(*days)[-1]


def give_seconds(world):
    """Let attempts have taken some time, of which two seconds are fixed."""
    with world.ledger.transaction("ladder") as session:
        for row in session.scalars(select(AttemptRow)):
            seconds = SECONDS.get(row.region)
            if row.state == "committed" and seconds is not None:
                row.ended_at = row.began_at + timedelta(seconds=seconds)
                row.metrics = {"prepare": 0.5, f"write {row.region}": seconds - 2.0}


def asked(world):
    with world.ledger.transaction() as session:
        return measured(session, "ladder")


def test_seconds_bytes_failures_and_late_clears_are_those_of_closed_runs(world):
    found = asked(world)
    assert found.runs == LEAST_RUNS
    assert found.seconds == {"raw-clean": 16.0, "weather": 4.0, "joined": 12.0, "totals": 10.0} | {
        "routes": 3.0,
        "report-delays": 2.0,
    }
    assert found.fixed == 2.0
    assert found.bytes["clean"] == found.bytes["joined"] == 160.0
    assert found.rate > 0
    [strike] = found.strikes
    assert replace(strike, seconds=0.0) == Strike(JOINED, 0.0, frozenset({WEATHER}))
    [clear] = found.late_clears
    assert (clear.region, clear.later_runs) == (JOINED, 0)


def test_a_replay_of_what_is_declared_restarts_what_has_restarted(world):
    found = asked(world)
    replay = Replay(found)
    [strike] = found.strikes
    alone = (
        replay.expected(found.dataflow).recovery
        - Replay(replace(found, strikes=(replace(strike, lost=frozenset()),))).expected(found.dataflow).recovery
    )
    assert alone == pytest.approx(SECONDS["weather"] / found.runs)


def test_a_late_clear_would_have_needed_its_producers_of_a_run_without_results(world):
    found = asked(world)
    again = 2 * SECONDS["raw-clean"] + SECONDS["weather"]
    assert Replay(found).recomputed(LateClear(JOINED, 0, 1.0)) == pytest.approx(again)


def test_too_few_runs_are_refused_and_such_of_another_declaration_do_not_count(tmp_path):
    world = World(tmp_path, ladder())
    run_days(world, (1, 2))
    with pytest.raises(Misconfigured, check=of_kind("advice.too_few_runs", closed="2", least_runs=LEAST_RUNS)):
        asked(world)
    world.airflow.deploy(ladder(parallelism=1))
    run_days(world, (3,))
    with pytest.raises(Misconfigured, check=of_kind("advice.too_few_runs", closed="1", others=", and 2 with others")):
        asked(world)


def test_a_dataflow_that_the_ledger_does_not_know_is_refused(world):
    with (
        world.ledger.transaction() as session,
        pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="lader")),
    ):
        measured(session, "lader")

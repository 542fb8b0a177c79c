"""An epoch that is not published by its time is told once, by upkeep or by the task that publishes it too late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.weir.notifications import receiving
from tests.weir.notifications.receiving import ids

from weir.dataflow import Dataflow, callback
from weir.ledger.database.tables import RunRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.upkeep import RECEIVERS, settle_everywhere

FUNCTION = "tests.weir.notifications.receiving:tell"
MISSED = callback(FUNCTION, kinds="deadline_missed")
FIRST, SECOND = "ladder@20130101T000000Z", "ladder@20130102T000000Z"
DEADLINE = datetime(2013, 1, 2, 6, tzinfo=UTC)


@pytest.fixture(autouse=True)
def receivers():
    receiving.reset()
    yield
    receiving.reset()


@pytest.fixture
def punctual(world):
    """A world right after its first day, which is to be published within six hours."""
    deploy(world)
    world.airflow.time = DEADLINE - timedelta(hours=6)
    return world


def deploy(world, hours=6.0):
    flow = world.airflow.flow
    publish_by = None if hours is None else timedelta(hours=hours)
    world.airflow.deploy(Dataflow(flow.name, flow.stages, notify=[MISSED], publish_by=publish_by))


def begin(world, day=1, tries=2, kind="scheduled"):
    run = world.airflow.dag_run(day, kind=kind)
    for _ in range(tries):
        world.airflow.step(next(task for task in world.airflow._runnable() if task.key.run_id == run))
    return run


def upkeep_at(world, at):
    world.airflow.time = at
    settle_everywhere(world.services, RECEIVERS, context=dict).require_whole()


def test_a_run_that_is_not_published_by_its_time_is_told_once(punctual):
    begin(punctual)
    upkeep_at(punctual, DEADLINE)
    assert ids() == []
    for minutes in (3, 6, 60 * 24 * 30):
        upkeep_at(punctual, DEADLINE + timedelta(minutes=minutes))
    ((_, event),) = receiving.got
    assert (event["id"], event["run"]) == ("ladder/deadline_missed/20130101T000000Z", FIRST)
    assert event["details"]["deadline"] == DEADLINE.isoformat()
    assert event["details"]["published_at"] is None
    punctual.airflow.run_until_quiet()
    assert len(ids()) == 1


def test_a_run_that_is_published_late_before_upkeep_looks_is_told_too(punctual):
    begin(punctual)
    punctual.airflow.time = DEADLINE + timedelta(seconds=1)
    punctual.airflow.run_until_quiet()
    assert [event["details"]["published_at"] is None for _, event in receiving.got] == [False]
    upkeep_at(punctual, DEADLINE + timedelta(days=1))
    assert len(ids()) == 1


def test_a_run_that_is_published_in_time_is_not_told_whatever_comes_later(punctual):
    run = begin(punctual)
    punctual.airflow.run_until_quiet()
    punctual.content["weather"] = "other"
    punctual.airflow.time = DEADLINE + timedelta(days=1)
    punctual.airflow.clear_by_hand(run, "weather")
    punctual.airflow.step(punctual.airflow._ready())
    upkeep_at(punctual, DEADLINE + timedelta(days=2))
    punctual.airflow.run_until_quiet()
    assert ids() == []


@pytest.mark.parametrize("kind", ["backfill", "scheduled"])
def test_runs_of_a_backfill_or_a_catch_up_that_begin_after_their_deadline_are_not_told(punctual, kind):
    punctual.airflow.time = DEADLINE + timedelta(seconds=1)
    for day in (1, 2, 3):
        begin(punctual, day, kind=kind)
    upkeep_at(punctual, DEADLINE + timedelta(days=1, hours=12))
    assert [event["run"] for _, event in receiving.got] == [SECOND]  # this one had begun in time
    punctual.airflow.run_until_quiet()
    assert [event["run"] for _, event in receiving.got] == [SECOND]


def test_each_epoch_has_a_deadline_of_its_own(punctual):
    begin(punctual)
    punctual.airflow.time += timedelta(days=1)
    begin(punctual, 2)
    upkeep_at(punctual, DEADLINE + timedelta(days=2))
    assert [event["run"] for _, event in receiving.got] == [FIRST, SECOND]


def test_a_run_whose_dag_run_was_deleted_is_not_told_and_one_that_a_person_has_marked_is(punctual):
    for day in (1, 2):
        run = begin(punctual, day)
        punctual.airflow.mark_run_by_hand(run, "failed")
    with punctual.ledger.transaction("ladder") as session:
        session.get_one(RunRow, FIRST).deleted_at = punctual.airflow.time
    upkeep_at(punctual, DEADLINE + timedelta(days=2))
    assert [event["run"] for _, event in receiving.got] == [SECOND]


def test_the_deadline_is_that_of_the_newest_run(punctual):
    begin(punctual)
    deploy(punctual, None)
    punctual.airflow.time += timedelta(minutes=1)
    begin(punctual, 2)
    upkeep_at(punctual, DEADLINE + timedelta(days=1))
    assert ids() == []
    deploy(punctual, 24 * 7)
    punctual.airflow.time += timedelta(days=1)
    begin(punctual, 3)
    upkeep_at(punctual, DEADLINE + timedelta(days=7))
    assert [event["run"] for _, event in receiving.got] == [FIRST]


def test_a_run_that_is_computed_anew_has_missed_its_deadline_once(punctual):
    begin(punctual)
    upkeep_at(punctual, DEADLINE + timedelta(hours=1))
    adopt(punctual.services, FIRST)
    upkeep_at(punctual, DEADLINE + timedelta(hours=2))
    assert len(ids()) == 1


def test_a_rebuilt_ledger_tells_again_with_the_same_id_of_what_is_still_late(punctual):
    begin(punctual, tries=4)
    upkeep_at(punctual, DEADLINE + timedelta(hours=1))
    punctual.lose_ledger()
    rebuild(punctual.services, "ladder")
    upkeep_at(punctual, DEADLINE + timedelta(hours=2))
    assert len(ids()) == 2
    assert len(set(ids())) == 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_dataflow_without_a_deadline_misses_none(world, database):
    deploy(world, None)
    world.airflow.time = DEADLINE - timedelta(hours=1)
    begin(world)
    upkeep_at(world, DEADLINE + timedelta(days=30))
    world.airflow.run_until_quiet()
    assert ids() == []

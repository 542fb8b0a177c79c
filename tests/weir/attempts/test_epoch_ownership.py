"""The ownership of an epoch is transferred from a DagRun that was deleted in Airflow to one that was created again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from tests.messages.kinds import of_kind

from weir.attempts import registration
from weir.errors import Conflict, Fenced, Misconfigured
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.ledger.runs import EpochOwned, runs_of, set_aside
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.store.catalogue import published
from weir.views.runs import run_overviews

RUN = "ladder@20130101T000000Z"


@pytest.fixture
def green(world):
    return world.run_first(1)


def version(world):
    return published(world.store, "ladder", "delays", "20130101T000000Z").version


def tries(world):
    with world.ledger.transaction() as session:
        return sorted({number for (number,) in session.query(AttemptRow.try_number).filter_by(run=RUN)})


def created_again(world, kind):
    run = world.airflow.dag_run(kind=kind)
    world.airflow.run_until_quiet()
    assert {task.state for task in world.airflow.tasks.values()} == {"success"}
    return run


@pytest.mark.parametrize("kind", ["scheduled", "manual"])
def test_a_dag_run_created_again_computes_its_epoch_with_one_try_each(world, green, kind):
    world.airflow.clear_by_hand(green, "joined", 1)
    world.airflow.run_until_quiet()
    world.airflow.delete(green)
    again = created_again(world, kind)
    assert set(world.airflow.executed(again).values()) == {1}
    assert version(world) == 1  # equal content is not published again
    with world.ledger.transaction() as session:
        (run,) = runs_of(session)
        assert (run.id, run.run_id) == (RUN, again)
        ([overview], _) = run_overviews(session)
        assert overview.deleted_tries == session.scalar(select(func.count()).where(AttemptRow.try_number < 1))
    assert tries(world) == [-1, 0, 1]


@pytest.mark.parametrize("kind", ["scheduled", "manual"])
def test_a_dag_run_created_again_computes_what_has_changed_meanwhile(world, green, kind):
    world.airflow.delete(green)
    world.content["raw"] = "changed"
    created_again(world, kind)
    assert version(world) == 2


def test_a_dag_run_may_be_deleted_and_created_several_times(world, green):
    for kind in ("manual", "manual", "backfill", "scheduled"):
        world.airflow.delete(green)
        green = created_again(world, kind)
        assert set(world.airflow.executed(green).values()) == {1}


def test_a_dag_run_created_again_completes_after_one_that_was_deleted_half_way(world):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    world.airflow.step(world.airflow.task(run, "raw-clean", 1))
    world.airflow.delete(run)
    again = created_again(world, "scheduled")
    # Under the same id it is found out at the first region that the deleted one had begun; what ran before runs again.
    assert set(world.airflow.executed(again).values()) <= {1, 2}


@pytest.mark.parametrize("is_queued", [True, False])
def test_an_epoch_is_not_taken_from_a_dag_run_that_exists(world, is_queued):
    first = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(first, "weather"))
    if is_queued:
        world.airflow.queued.add(first)
    second = world.airflow.dag_run(kind="manual")
    world.airflow.step(world.airflow.task(second, "weather"))
    weather = world.airflow.task(second, "weather")
    assert weather.state == "skipped"
    assert "belongs to run scheduled__2013-01-01" in weather.notes[-1]
    assert (first in world.airflow.queued) is is_queued


def test_a_second_dag_run_of_an_interval_is_skipped_whole_and_changes_nothing(world, green):
    before = tries(world)
    world.content["raw"] = "changed"
    second = world.airflow.dag_run(kind="manual")
    world.airflow.run_until_quiet()
    states = {task.state for key, task in world.airflow.tasks.items() if key.run_id == second}
    assert states == {"skipped"}
    assert (tries(world), version(world)) == (before, 1)
    with world.ledger.transaction() as session:
        assert [row.run_id for row in runs_of(session)] == [green]


def test_a_second_dag_run_that_was_skipped_takes_the_epoch_once_the_first_is_deleted(world, green):
    second = world.airflow.dag_run(kind="manual")
    world.airflow.run_until_quiet()
    world.airflow.delete(green)
    for key in [key for key in world.airflow.tasks if key.run_id == second]:
        world.airflow.clear_by_hand(key.run_id, key.task_id, key.map_index)
    world.airflow.run_until_quiet()
    assert {task.state for task in world.airflow.tasks.values()} == {"success"}
    with world.ledger.transaction() as session:
        assert [row.run_id for row in runs_of(session)] == [second]


def test_whether_the_owner_exists_is_asked_and_where_that_is_not_allowed_the_error_says_whose_the_epoch_is(
    world, green, monkeypatch
):
    second = world.airflow.request(world.airflow.task(world.airflow.dag_run(kind="manual"), "weather"))

    def refused(_items):
        raise Misconfigured("the account must not read that DAG")

    monkeypatch.setattr(world.airflow, "inspect", refused)
    with pytest.raises(EpochOwned, match="delete manual__2013-01-01"):
        world.airflow.coordinator.begin(second, world.airflow)


def test_a_second_run_that_begins_in_the_same_second_is_refused_by_the_owners_name(world):
    first, second = world.airflow.dag_run(), world.airflow.dag_run(kind="manual")
    start = datetime(2013, 1, 1, 10, tzinfo=UTC)

    def begin(run, microsecond, length):
        task = world.airflow.task(run, "weather")
        task.state, task.try_number = "running", 1
        at = start.replace(microsecond=microsecond)
        request = replace(world.airflow.request(task), interval=(at, at + length))
        return world.airflow.coordinator.begin(request, world.airflow)

    begun = begin(first, 200_000, timedelta(days=1))
    assert begun.run.epoch == "20130101T100000Z"
    for microsecond, length in ((900_000, timedelta(days=1)), (200_000, timedelta(hours=12))):
        with pytest.raises(EpochOwned, match="same second") as refused:
            begin(second, microsecond, length)
        assert refused.value.run_id == first
    with world.ledger.transaction() as session:
        assert [row.run_id for row in runs_of(session)] == [first]


@pytest.mark.parametrize("kind", ["scheduled", "manual"])
def test_what_ran_for_the_deleted_dag_run_cannot_commit(world, kind):
    old = world.airflow.dag_run()
    task = world.airflow.task(old, "weather")
    task.state, task.try_number = "running", 1
    begun = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    report = world.airflow.engine.run(begun.job)
    world.airflow.delete(old)
    created_again(world, kind)
    with pytest.raises(Fenced):
        world.airflow.coordinator.commit(begun, report, world.airflow)


def test_a_task_of_the_deleted_dag_run_that_comes_late_takes_nothing(world, green):
    late = world.airflow.request(world.airflow.task(green, "weather"))
    world.airflow.delete(green)
    created_again(world, "scheduled")
    before = tries(world)
    with pytest.raises(Fenced, check=of_kind("attempts.too_late")):
        world.airflow.coordinator.begin(late, world.airflow)
    assert tries(world) == before


def test_a_try_that_airflow_does_not_have_takes_nothing(world, green):
    task = world.airflow.task(green, "weather")
    request = world.airflow.request(task)
    world.airflow.incarnations[green] = 2  # another id, but Airflow calls the task instance a success
    with pytest.raises(Fenced, check=of_kind("attempts.of_another_dag_run")):
        world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    assert request.try_number in tries(world)


@pytest.mark.parametrize("kind", ["scheduled", "manual"])
def test_a_begin_that_slept_takes_nothing_from_a_dag_run_that_was_created_again(world, green, monkeypatch, kind):
    world.airflow.delete(green)
    task = world.airflow.task(world.airflow.dag_run(kind=kind), "weather")
    task.state, task.try_number = "running", 1
    request, take = world.airflow.request(task), registration._take

    def asleep(*args):
        monkeypatch.setattr(registration, "_take", take)
        world.airflow.delete(task.key.run_id)
        created_again(world, "scheduled")
        take(*args)

    monkeypatch.setattr(registration, "_take", asleep)
    with pytest.raises(Conflict, check=of_kind("attempts.dag_run_begun")):
        world.airflow.coordinator.begin(request, world.airflow)
    with world.ledger.transaction() as session:
        (run,) = runs_of(session)
        assert (run.run_id, run.closed_at is None) == (green, False)


def test_the_tries_count_from_one_behind_an_adoption_too(world, green):
    adopt(world.services, RUN)
    world.airflow.delete(green)
    again = created_again(world, "manual")
    assert set(world.airflow.executed(again).values()) == {1}


def test_tries_of_deleted_dag_runs_keep_their_order(world, green):
    with world.ledger.transaction("ladder") as session:
        before = {row.id: row.try_number for row in session.query(AttemptRow)}
        set_aside(session, RUN)
        set_aside(session, RUN)
    with world.ledger.transaction() as session:
        after = {row.id: row.try_number for row in session.query(AttemptRow)}
    assert max(after.values()) == 0
    assert sorted(before, key=before.get) == sorted(before, key=after.get)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("kind", ["scheduled", "manual"])
def test_the_failures_of_a_deleted_dag_run_do_not_count(world, kind):
    def fail(key):
        if key.task_id == "weather":
            raise ValueError("no luck")

    world.airflow.during = fail
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    tries_before = len(world.airflow.task(run, "weather").runs)
    world.airflow.delete(run)
    again = world.airflow.dag_run(kind=kind)
    world.airflow.run_until_quiet()
    assert tries_before > 1
    assert len(world.airflow.task(again, "weather").runs) >= tries_before


def current(world):
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.is_current))
        return {(row.stage, row.subtask, row.layout): (row.attempt, row.digest) for row in rows}


@pytest.mark.parametrize("kind", ["scheduled", "manual"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_ledger_that_is_built_again_knows_whose_results_count(world, green, kind, is_lost):
    world.airflow.clear_by_hand(green, "joined", 1)
    world.airflow.run_until_quiet()
    world.airflow.delete(green)
    world.content["raw"] = "changed"
    again = created_again(world, kind)
    before = current(world)
    if is_lost:
        world.lose_ledger()
    (rebuilt,) = rebuild(world.services)
    assert [each.missing for each in rebuilt.runs] == [()]
    assert current(world) == before
    world.airflow.clear_by_hand(again, "weir_close")
    world.airflow.run_until_quiet()
    assert version(world) == 2
    assert world.airflow.task(again, "weir_close").state == "success"

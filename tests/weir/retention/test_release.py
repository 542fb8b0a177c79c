"""Results are released when they are not needed, never before, and recomputed when a region needs them again."""

from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import Engine, event, select
from tests.weir.keeping import aircraft, run_days

from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.formats.paths import MANIFEST
from weir.ledger.database.reading import is_writing
from weir.ledger.database.tables import ResultRow
from weir.ledger.leases import LEASE, take_leases
from weir.ledger.runs import run_by_id
from weir.retention.deletion_queries import run_retention
from weir.retention.release import RELEASED_NOTE, delete_released, release
from weir.retention.versions import expire_versions


def stored(world, run):
    """Which results of a DagRun have data files: by stage and subtask."""
    with world.ledger.transaction() as session:
        rows = [row for row in session.scalars(select(ResultRow).order_by(ResultRow.id)) if run in row.run]
    found = {}
    for row in rows:
        names = {name for name, _ in world.store.list(row.folder)}
        assert MANIFEST in names
        is_there = bool(names - {MANIFEST, RELEASED_NOTE})
        assert is_there == (row.deleted_at is None)
        found.setdefault(row.stage, []).append(is_there)
    return found


def keeping(flow: Dataflow, keep: str) -> Dataflow:
    return Dataflow(flow.name, flow.stages, keep=keep)


@pytest.fixture
def kept(world):
    """Let the dataflow keep its results by a policy, and run it once."""

    def run(keep, runs=1):
        world.airflow.flow = keeping(world.airflow.flow, keep)
        names = []
        for day in range(1, runs + 1):
            names.append(world.airflow.dag_run(day))
            world.airflow.run_until_quiet()
        return names

    return run


def runs(world):
    with world.ledger.transaction() as session:
        return sorted(set(session.scalars(select(ResultRow.run))))


def test_on_consumed_only_the_published_result_is_left(world, kept):
    kept("on_consumed")
    (run,) = runs(world)
    found = stored(world, run)
    assert found.pop("delays") == [True]
    assert not any(any(each) for each in found.values())


def test_a_part_whose_equal_is_published_stays_for_the_version_of_which_another_part_changes(world):
    stages = [source("raw", "pipelines.ladder:raw", parallelism=2), sink("raw", "delays")]
    world.airflow.flow = Dataflow("ladder", stages, keep="end_of_run")
    run = world.run_first(1)
    for task in (("raw-delays", 1), ("weir_close",)):
        world.airflow.clear_by_hand(run, *task)
        world.airflow.run_until_quiet()
    assert stored(world, runs(world)[0])["delays"] == [True, True, True]
    before = world.airflow.executed(run)
    world.lose("delays", 0)
    world.airflow.clear_by_hand(run, "weir_close")
    world.airflow.run_until_quiet()
    after = world.airflow.executed(run)
    assert {task for task in after if after[task] > before[task]} == {"raw-delays[0]", "weir_close[0]"}


def test_two_runs_are_kept(world, kept):
    kept("2 runs", 3)
    first, second, third = runs(world)
    assert all(all(each) for run in (second, third) for each in stored(world, run).values())
    assert {stage for stage, there in stored(world, first).items() if any(there)} == {"delays"}


def test_two_runs_are_those_of_the_newest_closed_epochs_whenever_they_were_closed(world, kept):
    names = kept("2 runs", 4)
    world.content["raw"] = "corrected"
    for name in names[:2]:  # a backfill closes two early days again, last
        world.airflow.clear_run_by_hand(name)
        world.airflow.run_until_quiet()
    everything_that_may_go(world)
    *early, third, fourth = runs(world)
    assert all(all(each) for run in (third, fourth) for each in stored(world, run).values())
    for run in early:
        assert {stage for stage, there in stored(world, run).items() if any(there)} == {"delays"}


def test_what_was_released_comes_back_when_it_is_asked_for(world, kept):
    (name,) = kept("on_consumed")
    (run,) = runs(world)
    world.airflow.clear_by_hand(name, "totals", 0)
    world.airflow.run_until_quiet()
    assert world.airflow.task(name, "totals", 0).state == "success"
    found = stored(world, run)
    assert found["delays"][-1]


def test_a_dry_release_changes_nothing(world, kept):
    kept("2 runs")
    (run,) = runs(world)
    before = stored(world, run)
    said = release(world.services, "ladder", [run], is_reclaiming=True, is_dry=True)
    assert {each.stored.partition.stage for each in said if each.is_released} == {
        "clean",
        "weather",
        "joined",
        "totals",
        "routes",
    }
    assert delete_released(world.services, "ladder") == ()
    assert stored(world, run) == before


def history(keep):
    """A day's rows and the history so far make the history."""
    day = source("day", "pipelines.ladder:day")
    reads = {"day": blocking("day", by="k"), "before": previous("history", by="k", schema="k bigint")}
    return Dataflow(
        "ladder", [day, Stage("history", "pipelines.ladder:history", reads), sink("history", "known")], keep=keep
    )


@pytest.mark.parametrize("keep", ["end_of_run", "on_consumed"])
def test_what_the_next_epoch_reads_stays_until_that_is_over(world, keep):
    world.airflow.flow = history(keep)
    for day in (1, 2, 3):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
        everything_that_may_go(world)
        found = [stored(world, run) for run in runs(world)]
        # Each epoch has been published; the history is there once more, by key, of the newest.
        assert [each["known"] for each in found] == [[True]] * day
        assert [each["history"] for each in found] == [[False]] * (day - 1) + [[True]]
        assert [each["day"] for each in found] == [[False]] * day


def everything_that_may_go(world, *, is_reclaiming=False):
    world.airflow.time += timedelta(hours=2)
    expire_versions(world.services, "ladder")
    release(world.services, "ladder", is_reclaiming=is_reclaiming)
    delete_released(world.services, "ladder")


def test_a_result_under_lease_stays_also_where_space_is_needed(world, kept):
    kept("2 runs")
    (run,) = runs(world)
    with world.ledger.transaction("ladder") as session:
        (wanted, *_) = [row for row in session.scalars(select(ResultRow)) if row.stage == "weather"]
        take_leases(session, [wanted.id], "a notebook", world.services.now())
    world.airflow.time += LEASE / 2
    release(world.services, "ladder", is_reclaiming=True)
    delete_released(world.services, "ladder")
    assert {stage for stage, there in stored(world, run).items() if any(there)} == {"weather", "delays"}
    everything_that_may_go(world, is_reclaiming=True)
    assert {stage for stage, there in stored(world, run).items() if any(there)} == {"delays"}


def test_a_version_that_was_replaced_stays_for_an_hour(world, kept):
    (name,) = kept("2 runs")
    (run,) = runs(world)
    world.content["weather"] = "another"
    world.airflow.clear_by_hand(name, "weather")
    world.airflow.run_until_quiet()
    assert stored(world, run)["delays"] == [True, True]
    everything_that_may_go(world)
    assert stored(world, run)["delays"] == [False, True]
    assert all(each for stage, found in stored(world, run).items() if stage != "delays" for each in found[-1:])


@pytest.fixture
def writing():
    """The transactions that may write, of all ledgers."""
    found = []

    def note(connection):
        if is_writing(connection):
            found.append(connection)

    event.listen(Engine, "begin", note)
    yield found
    event.remove(Engine, "begin", note)


@pytest.mark.parametrize("keep", ["60 days", "60 runs"])
def test_runs_of_which_a_policy_keeps_everything_cost_a_release_no_writing_transaction(world, writing, keep):
    world.airflow.deploy(aircraft(keep=keep))
    run_days(world, 1, 2)
    third = world.airflow.dag_run(3)
    for name in ("flights", "aircraft-known"):
        world.airflow.step(world.airflow.task(third, name))
    writing.clear()
    assert release(world.services, "ladder") == ()
    assert writing == []


@pytest.mark.parametrize("seed", range(8))
def test_whether_the_closing_task_has_read_the_newest_results_is_told_by_no_clock(done, seed):
    """Each worker has its own."""
    random, airflow = Random(seed), done.airflow
    (run,), airflow.collects = runs(done), False
    ran = random.choices(("report-delays", "weir_close"), k=3)
    for task in ran:
        airflow.time += timedelta(minutes=random.uniform(-30, 30))
        airflow.clear_by_hand("scheduled__2013-01-01", task)
        airflow.step(airflow.task("scheduled__2013-01-01", task))
    with done.ledger.transaction() as session:
        found = run_retention(session, run_by_id(session, run), RetentionSettings(), airflow.time)
    assert found.is_close_newest is (ran[-1] == "weir_close" or "report-delays" not in ran)

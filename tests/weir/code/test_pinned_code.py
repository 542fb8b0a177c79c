"""The code of runs that were pinned anew, or that lost it."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.small_dataflow import World, ladder

from weir.code.version import code_version
from weir.dataflow import Dataflow
from weir.formats.codec import from_json
from weir.formats.paths import record_path
from weir.formats.run_record import RunRecord
from weir.ledger.code import archives_of
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.recovery.adopt import adopt

FIRST, RUN = "scheduled__2013-01-01", "ladder@20130101T000000Z"


@pytest.fixture
def run(world):
    """A run that has gone through."""
    world.code = world.deploy()
    world.run_first(1)
    return world


def versions_of(world, stage):
    """The versions of the current results of a stage, by subtask."""
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current)
        return {row.subtask: frozenset(row.versions or ()) for row in session.scalars(query)}


def tries(world):
    """The tasks that ran more than once, with how often."""
    return {name: count for name, count in world.airflow.executed(FIRST).items() if count > 1}


def version(archive, function):
    return code_version(archive.files, [f"pipelines.ladder:{function}"])


def row_of(world):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, RUN)


# Runs that are pinned anew


def test_a_new_run_is_pinned_to_its_code_and_its_record_says_so(run):
    run.deploy(totals=1)
    run.airflow.clear_by_hand(FIRST, "totals", 0)
    run.airflow.run_until_quiet()
    assert row_of(run).archive == run.code.fingerprint
    assert recorded_archive(run) == run.code.fingerprint


def recorded_archive(world):
    return from_json(RunRecord, world.store.read(record_path("ladder", "20130101T000000Z"))).archive


def test_the_code_of_a_run_that_its_closing_task_has_pinned_is_recorded_before_anything_computes(run):
    """A closing task has no code: a ledger that lost what pinned it would go on with newer code."""
    new = run.deploy(raw=1)
    adopt(run.services, RUN)
    run.airflow.clear_by_hand(FIRST, "weir_close")
    run.airflow.step(run.airflow.task(FIRST, "weir_close"))
    assert row_of(run).pinned is not None
    recorded = []
    run.airflow.during = lambda _key: recorded.append(recorded_archive(run))
    run.airflow.run_until_quiet()
    assert set(run.airflow.states().values()) == {"success"}
    assert set(recorded) == {new.fingerprint}


def as_it_was():
    return Dataflow("ladder", ladder().stages, repair_code="as_it_was")


@pytest.mark.parametrize("flow", [ladder, as_it_was])
def test_an_adopted_run_runs_what_is_deployed_in_all_of_its_tasks(tmp_path, flow):
    """Also a run whose dataflow repairs with the code as it was: it is pinned to other code now."""
    world = World(tmp_path, flow())
    world.deploy()
    world.run_first(1)
    new = world.deploy(raw=1, joined=1)
    adopt(world.services, RUN)
    world.airflow.clear_run_by_hand(FIRST)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert row_of(world).archive == new.fingerprint
    made = version(new, "joined")
    stages = ("raw", "clean", "weather", "joined", "totals", "routes", "report", "delays")
    assert {found for stage in stages for found in versions_of(world, stage).values()} == {frozenset({made})}


def test_a_subtask_that_an_adopted_run_has_anew_runs_the_code_of_the_others(tmp_path):
    """Its siblings have generations from before: they are of the code that the run was pinned to then."""
    world = World(tmp_path, ladder(2))
    old = world.deploy()
    world.run_first(1)
    world.airflow.deploy(ladder(3))
    new = world.deploy(raw=1)
    adopt(world.services, RUN)
    world.airflow.clear_run_by_hand(FIRST)
    for subtask in (0, 1):
        world.airflow.task(FIRST, "raw-clean", subtask).not_before = world.airflow.time + timedelta(hours=1)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    with world.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.region == "raw-clean").order_by(AttemptRow.began_at)
        ran = [(row.archive, row.generation) for row in session.scalars(query)]
    assert ran == [(old.fingerprint, None)] * 2 + [(new.fingerprint, 1)] * 3


# Code that is lost while it runs


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_try_whose_code_is_lost_while_it_runs_is_followed_by_one_that_stores_it_again(world):
    world.deploy()
    lost = []

    def loses(key):
        if key.task_id == "totals" and not lost:
            (file,) = rows(world)
            lost.append(file.path)
            world.store.delete(file.path)
            raise OSError("no such module")

    world.airflow.during = loses
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    (row,) = rows(world)
    assert row.path != lost[0]
    assert world.store.size(row.path) == row.bytes
    with world.ledger.transaction() as session:
        (failed,) = session.scalars(select(AttemptRow).where(AttemptRow.failure.is_not(None)))
    assert (failed.region, failed.failure) == ("totals", "environment")
    assert "the code that it runs was lost" in failed.error


def rows(world):
    with world.ledger.transaction() as session:
        return archives_of(session, "ladder")

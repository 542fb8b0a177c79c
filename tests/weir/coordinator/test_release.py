"""Results go when nobody needs them, never before, and come back when somebody asks."""

import pytest
from sqlalchemy import select

from weir.coordinator.release import RELEASED_NOTE, delete_released, release
from weir.dataflow import Dataflow
from weir.ledger.models import ResultRow
from weir.store.probe import MANIFEST


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


def test_two_runs_are_kept(world, kept):
    kept("2 runs", 3)
    first, second, third = runs(world)
    assert all(all(each) for run in (second, third) for each in stored(world, run).values())
    assert {stage for stage, there in stored(world, first).items() if any(there)} == {"delays"}


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
    said = release(world.services, "ladder", [run], is_pressed=True, is_dry=True)
    assert {each.stage for each in said if each.is_released} == {"clean", "weather", "joined", "totals", "routes"}
    assert delete_released(world.services, "ladder") == ()
    assert stored(world, run) == before

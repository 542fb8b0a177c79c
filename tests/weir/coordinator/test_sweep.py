"""What nobody needs is removed from the store, and nothing else."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.coordinator.sweep import sweep
from weir.coordinator.sweep_report import Garbage
from weir.ledger.models import AttemptRow, ResultRow
from weir.store.probe import MANIFEST
from weir.store.walk import files_below
from weir.testing.airflow import Killed

DAY = timedelta(days=1)


def grow_old(world, days=2):
    """Let time pass for all that lies in the store."""
    at = world.airflow.time.timestamp()
    for path in (world.folder / "store").rglob("*"):
        os.utime(path, (at, at))
    world.airflow.time += days * DAY


def lying(world):
    """All files of the store."""
    return {each.path for each in files_below(world.store, ["ladder", "_sinks"])}


def results(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow).order_by(ResultRow.id)))


def attempts(world):
    with world.ledger.transaction() as session:
        return {row.id: row for row in session.scalars(select(AttemptRow))}


@pytest.fixture
def day(world):
    """A run of one day, of which one try wrote all its results and was killed before its commit."""
    commit, killed = world.airflow.coordinator.commit, []

    def once(begun, report, clearer):
        if begun.attempt.region.name == "joined" and not killed:
            killed.append(begun.attempt.id)
            raise Killed
        return commit(begun, report, clearer)

    world.airflow.coordinator.commit = once
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    world.killed = killed
    return world


def test_what_a_dead_attempt_left_goes_when_it_is_old(day):
    left = {path for path in lying(day) if day.killed[0] in path and "_regions" not in path}
    assert left
    grow_old(day, 0)
    assert sweep(day.services, is_full=True).deleted == []
    grow_old(day)
    report = sweep(day.services, "ladder")
    assert {each.kind for each in report.deleted} == {Garbage.ABANDONED}
    assert lying(day).isdisjoint(left)
    assert report.deleted_bytes > 0
    assert not report.missing
    assert not report.unknown


def test_a_sweep_leaves_all_that_is_finished_and_says_why(day):
    grow_old(day)
    sweep(day.services)
    for row in results(day):
        assert {MANIFEST, "part-0.bin"} <= {path.rpartition("/")[2] for path in lying(day) if row.folder in path}
    report = sweep(day.services)
    assert report.deleted == []
    assert {row.folder for row in results(day)} <= {each.path for each in report.kept}


def test_a_dry_sweep_tells_what_a_real_one_does_and_changes_nothing(day):
    grow_old(day)
    before = lying(day)
    dry = sweep(day.services, is_dry=True)
    assert lying(day) == before
    assert dry.deleted
    assert sweep(day.services).deleted == dry.deleted


def test_files_of_an_attempt_at_work_stay_however_old_they_are(world):
    seen = []

    def gc(key):
        if key.task_id == "joined" and not seen:
            root = world.folder / "store/ladder/20130101T000000Z"
            (attempt,) = [row for row in attempts(world).values() if row.region == "joined" and row.state == "running"]
            folder = root / f"joined/by-k-128-x/{attempt.subtask}/{attempt.id}"
            folder.mkdir(parents=True)
            (folder / "part-0.bin").write_bytes(b"x")
            grow_old(world, 10)
            report = sweep(world.services, is_full=True)
            seen.append([each for each in report.kept if attempt.id in each.path])
            assert (folder / "part-0.bin").exists()

    world.airflow.during = gc
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert seen[0][0].reason == "its attempt is at work"


def test_what_is_not_of_weir_is_told_and_never_deleted(day):
    (day.folder / "store/ladder/20130101T000000Z/notes.txt").write_text("mine")
    grow_old(day, 100)
    report = sweep(day.services, is_full=True)
    assert [each.path for each in report.unknown] == ["ladder/20130101T000000Z/notes.txt"]
    assert "ladder/20130101T000000Z/notes.txt" in lying(day)


def test_a_finished_result_whose_files_are_gone_is_named(day):
    row = results(day)[0]
    (day.folder / "store" / row.folder / "part-0.bin").unlink()
    report = sweep(day.services)
    assert [(each.path, each.bytes) for each in report.missing] == [(row.folder, row.bytes)]

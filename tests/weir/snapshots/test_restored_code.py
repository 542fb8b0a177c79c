"""Restored results have the versions of what they were copied from, and one code for all of a stage."""

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    checkpoints,
    go_on,
    keep_savepoints,
    restore,
    rows_of,
    run_days,
    second_airflow,
)
from tests.weir.small_dataflow import Saved, World

from weir.code.generation_rules import agreed
from weir.code.version import code_version
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import checkpoint_path
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.rebuild.rebuild import rebuild

DAY_2, DAY_3 = f"ladder@{EPOCHS[1]}", f"ladder@{EPOCHS[2]}"


@pytest.fixture(scope="module")
def two_days():
    """Two days of one code, with a savepoint of each, and then newer code that computes day 2 again."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        world.deploy()
        run_days(world.airflow, 1, 2)
        keep_savepoints(world, 1, 2)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(two_days, tmp_path):
    world = two_days.go_on(tmp_path)
    world.old = world.deploy()
    world.new = world.deploy(aircraft=1)
    return world


def aircraft_task(world):
    return next(key.task_id for key in world.airflow.tasks if key.task_id.startswith("aircraft"))


def spoil(world):
    """Compute day 2 again with the newer code, as a person does."""
    world.airflow.clear_by_hand("scheduled__2013-01-02", aircraft_task(world), 0)
    world.airflow.run_until_quiet()


def version(archive):
    return code_version(archive.files, ["pipelines.ladder:aircraft"])


def versions(world, day, stage, dataflow="ladder"):
    return [frozenset(row.versions or ()) for row in rows_of(world, day, stage, dataflow)]


def valid(world, run):
    with world.ledger.transaction() as session:
        state = run_state(session, run_by_id(session, run))
        return all(state.is_valid(each) for each in state.results)


def test_a_checkpoint_names_the_versions_of_what_it_holds(days):
    numbers = {epoch: number for number, epoch in checkpoints(days).items()}
    found = from_json(Checkpoint, days.store.read(checkpoint_path("ladder", numbers[EPOCHS[1]])))
    made = (version(days.old),)
    assert {part.versions for state in found.states for part in state.partitions} == {made}
    assert {each.versions for each in found.results} == {made}


def test_what_is_restored_has_the_versions_of_what_it_was_copied_from(days):
    spoil(days)
    assert versions(days, 2, "history") == [frozenset({version(days.new)})] * 2
    restore(days, "day2")
    for stage in ("history", "offsets"):
        assert versions(days, 2, stage) == [frozenset({version(days.old)})] * 2
        for row in rows_of(days, 2, stage):
            manifest = from_json(Manifest, days.store.read(f"{row.folder}/manifest.json"))
            assert (manifest.versions, manifest.archive, manifest.generation) == ((version(days.old),), "", 0)
    assert valid(days, DAY_2)
    go_on(days)
    assert set(days.airflow.states().values()) == {"success"}
    assert versions(days, 2, "history") == [frozenset({version(days.old)})] * 2


def test_the_first_epoch_after_a_restore_runs_the_newest_code(days):
    restore(days, "day1")
    newest = days.deploy(aircraft=2)
    run_days(days.airflow, 3)
    with days.ledger.transaction() as session:
        assert session.get_one(RunRow, DAY_3).archive == newest.fingerprint
        query = select(AttemptRow.archive).where(AttemptRow.run == DAY_3, AttemptRow.archive.is_not(None))
        assert set(session.scalars(query)) == {newest.fingerprint}
    assert versions(days, 3, "history") == [frozenset({version(newest)})] * 2


def test_a_fork_has_the_versions_of_its_origin_and_runs_what_it_has_deployed(days):
    restore(days, "day2", fork="forked")
    assert versions(days, 2, "history", "forked") == [frozenset({version(days.old)})] * 2
    airflow = second_airflow(days, aircraft("forked", retained_checkpoints=9))
    airflow.deployed = days.new
    run_days(airflow, 3)
    assert set(airflow.states().values()) == {"success"}
    with days.ledger.transaction() as session:
        assert session.get_one(RunRow, f"forked@{EPOCHS[2]}").archive == days.new.fingerprint
    assert versions(days, 3, "history", "forked") == [frozenset({version(days.new)})] * 2


def test_a_partition_that_newer_code_made_alike_of_other_inputs_is_restored_with_its_siblings(days):
    """It has the right content, but no version in common with those that are restored."""
    with days.ledger.transaction("ladder") as session:
        rows = session.scalars(
            select(ResultRow).where(ResultRow.run == DAY_2, ResultRow.is_current, ResultRow.stage == "history")
        ).all()
        for row in rows:
            row.versions = ["code:newer"]
            if row.subtask == 1:
                row.digest = row.digest.replace("k:bigint", "k:other")
    done = restore(days, "day2")
    assert {(each.stage, each.is_restored) for each in done.partitions} == {
        ("history", True),
        ("offsets", False),
    }
    assert agreed(versions(days, 2, "history")) == {version(days.old)}
    assert valid(days, DAY_2)


def test_after_a_rebuild_what_was_restored_has_the_same_versions(days):
    spoil(days)
    restore(days, "day2")
    days.airflow.run_until_quiet()
    before = [versions(days, 2, stage) for stage in ("history", "offsets")]
    days.lose_ledger()
    rebuild(days.services)
    assert [versions(days, 2, stage) for stage in ("history", "offsets")] == before
    assert valid(days, DAY_2)


def test_a_rebuilt_ledger_has_a_restored_run_compute_with_what_is_deployed(days):
    """The record of the run names no code any more, as its row in the ledger."""
    spoil(days)
    restore(days, "day2")
    days.lose_ledger()
    rebuild(days.services)
    with days.ledger.transaction() as session:
        assert session.get_one(RunRow, DAY_2).archive is None


def test_an_epoch_that_exists_and_follows_a_restore_is_computed_by_the_newest_code(days):
    days.deploy(aircraft=7)
    for day in (1, 2):
        days.airflow.clear_run_by_hand(f"scheduled__2013-01-0{day}")
    days.airflow.run_until_quiet()
    fix = days.deploy(aircraft=9)
    restore(days, "day1")
    go_on(days)
    assert versions(days, 2, "history") == [frozenset({version(fix)})] * 2
    assert valid(days, DAY_2)


def test_so_is_one_whose_clear_was_pending_before_the_restore(days):
    days.deploy(aircraft=7)
    for day in (1, 2):
        days.airflow.clear_run_by_hand(f"scheduled__2013-01-0{day}")
    days.airflow.run_until_quiet()
    days.airflow.reachable = False
    days.content["flights"] = "corrected"
    for task in ("flights", aircraft_task(days)):
        for index in {key.map_index for key in days.airflow.tasks if key.task_id == task}:
            days.airflow.clear_by_hand("scheduled__2013-01-01", task, index)
    days.airflow.run_until_quiet()
    fix = days.deploy(aircraft=9)
    restore(days, "day1")
    days.airflow.reachable = True
    go_on(days)
    assert versions(days, 2, "history") == [frozenset({version(fix)})] * 2
    assert valid(days, DAY_2)

"""A sweep deletes from the store what is not needed, and nothing else."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import Saved, World, ladder

from weir.dataflow import Dataflow
from weir.errors import LedgerBehind, Misconfigured, Retryable
from weir.formats.paths import MANIFEST
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.ledger.leases import take_leases
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.walk import files_below
from weir.testing.fakes.airflow import Killed
from weir.upkeep import sweep_everywhere

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


@pytest.fixture(scope="module")
def one_day():
    """A run of one day, of which one try wrote all its results and was killed before its commit."""
    with fast_folder() as folder:
        (folder / "world/store").mkdir(parents=True)
        world, killed = World(folder / "world", ladder()), []
        commit = world.airflow.coordinator.commit

        def once(begun, report, clearer):
            if begun.attempt.region.name == "joined" and not killed:
                killed.append(begun.attempt.id)
                raise Killed
            return commit(begun, report, clearer)

        world.airflow.coordinator.commit = once
        world.airflow.dag_run(1)
        world.airflow.run_until_quiet()
        yield Saved(world, folder / "saved"), killed


@pytest.fixture
def day(one_day, tmp_path):
    saved, killed = one_day
    world = saved.go_on(tmp_path)
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


def test_old_files_of_an_attempt_that_has_just_ended_stay_for_as_long(day):
    """Its process may not know yet that it was ended, and write more."""
    left = {path for path in lying(day) if day.killed[0] in path and "_regions" not in path}
    grow_old(day)
    with day.ledger.transaction("ladder") as session:
        session.get_one(AttemptRow, day.killed[0]).ended_at = day.airflow.time
    sweep(day.services, "ladder")
    assert left <= lying(day)
    day.airflow.time += 2 * DAY
    sweep(day.services, "ladder")
    assert lying(day).isdisjoint(left)


def test_a_sweep_leaves_all_that_is_finished_and_says_why(day):
    grow_old(day)
    sweep(day.services)
    for row in results(day):
        assert {MANIFEST, "part-0.bin"} <= {path.rpartition("/")[2] for path in lying(day) if row.folder in path}
    report = sweep(day.services)
    assert report.deleted == []
    assert {row.folder for row in results(day)} <= {each.path for each in report.kept}


def test_a_dry_sweep_reports_what_a_real_one_does_and_changes_nothing(day):
    grow_old(day)
    before = lying(day)
    dry = sweep(day.services, is_dry=True)
    assert lying(day) == before
    assert dry.deleted
    assert sweep(day.services).deleted == dry.deleted


def test_a_dry_sweep_lists_the_pointer_to_a_replaced_version_once(day):
    day.content["totals"] = "corrected"
    day.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    day.airflow.run_until_quiet()
    grow_old(day)
    dry = sweep(day.services, is_full=True, is_dry=True)
    going = {each.path for each in dry.deleted}
    assert [path for path in going if path.startswith("_sinks/")] != []
    assert going.isdisjoint(each.path for each in dry.kept)
    assert {each.path for each in sweep(day.services, is_full=True).deleted} >= going


def test_files_of_a_running_attempt_stay_however_old_they_are(world):
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
    assert seen[0][0].reason == "its attempt is running"


def test_files_that_are_not_of_weir_are_reported_and_never_deleted(day):
    (day.folder / "store/ladder/20130101T000000Z/notes.txt").write_text("mine")
    grow_old(day, 100)
    report = sweep(day.services, is_full=True)
    assert [each.path for each in report.unknown] == ["ladder/20130101T000000Z/notes.txt"]
    assert "ladder/20130101T000000Z/notes.txt" in lying(day)


@pytest.mark.parametrize("path", ["out/epoch=2013-01-01/a/b/c/part.parquet", "20990101T000000Z/notes/part.parquet"])
def test_a_folder_that_no_attempt_writes_is_reported_and_never_emptied(day, path):
    """Such as that of a sink, or of another program, which somebody has put into the store."""
    theirs = day.folder / "store/ladder" / path
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    grow_old(day, 100)
    report = sweep(day.services, is_full=True)
    assert any(path.startswith(each.path.removeprefix("ladder/")) for each in report.unknown)
    assert theirs.exists()


def test_what_an_unknown_run_has_half_written_goes_when_it_is_old(day):
    half = day.folder / "store/ladder/20990101T000000Z/joined/by-k-128-x/0/t0009-ffffffffffff/part.parquet"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    grow_old(day, 100)
    sweep(day.services, is_full=True)
    assert not half.exists()


def test_a_finished_result_whose_files_are_gone_is_named(day):
    row = results(day)[0]
    (day.folder / "store" / row.folder / "part-0.bin").unlink()
    report = sweep(day.services)
    assert [(each.path, each.bytes) for each in report.missing] == [(row.folder, row.bytes)]


def test_what_a_zombie_writes_after_a_deletion_goes_too(day):
    grow_old(day)
    swept = sweep(day.services, is_full=True).deleted
    for each in swept:
        (day.folder / "store" / each.path).mkdir(parents=True)
        (day.folder / "store" / each.path / "part-7.bin").write_bytes(b"late")
    grow_old(day, 10)
    again = sweep(day.services, is_full=True).deleted
    assert {each.path for each in again} == {each.path for each in swept}
    assert sum(each.bytes for each in again) == 4 * len(swept)


def test_files_of_an_attempt_that_the_ledger_does_not_know_go_when_they_are_old(day):
    folder = day.folder / "store/ladder/20130101T000000Z/joined/by-k-128-x/0/t0009-ffffffffffff"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    (folder.parent / f".{MANIFEST}.{'0' * 32}.tmp").write_text("{")
    grow_old(day, 0)
    sweep(day.services)
    assert folder.exists()
    grow_old(day)
    report = sweep(day.services)
    assert "the ledger knows no such attempt" in {each.reason for each in report.deleted}
    assert not folder.exists()
    assert not list(folder.parent.glob(".*"))


def test_a_file_that_no_manifest_names_goes_and_the_others_stay(day):
    row = results(day)[0]
    stray = day.folder / "store" / row.folder / "part-0.attempt-2.bin"
    stray.write_bytes(b"twice")
    grow_old(day)
    report = sweep(day.services)
    assert [each.path for each in report.deleted if each.kind is Garbage.STRAY] == [f"{row.folder}/{stray.name}"]
    assert not stray.exists()
    assert not report.missing


def test_bytes_that_come_back_to_a_released_result_are_deleted_again(day):
    flow = day.airflow.flow
    day.airflow.deploy(Dataflow(flow.name, flow.stages, keep="on_consumed"))
    day.airflow.dag_run(2)
    day.airflow.run_until_quiet()
    row = next(each for each in results(day) if each.state == "released")
    (day.folder / "store" / row.folder / "part-0.bin").write_bytes(b"from the trash can")
    report = sweep(day.services)
    assert (Garbage.RELEASED, row.folder, 18) in {(each.kind, each.path, each.bytes) for each in report.deleted}
    assert names_in(day, row.folder) == {MANIFEST, "released.json"}


def names_in(world, folder):
    return {path.removeprefix(f"{folder}/") for path in lying(world) if path.startswith(f"{folder}/")}


def test_a_lost_result_that_was_recomputed_is_deleted_and_the_ledger_knows(day):
    row = next(each for each in results(day) if each.stage == "joined")
    path = day.folder / "store" / row.folder / "part-0.bin"
    path.write_bytes(path.read_bytes()[:-1])
    day.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    day.airflow.run_until_quiet()
    assert {each.state for each in results(day) if each.id == row.id} == {"superseded"}
    report = sweep(day.services)
    assert (Garbage.SUPERSEDED, row.folder) in {(each.kind, each.path) for each in report.deleted}
    assert not names_in(day, row.folder)
    assert all(each.deleted_at is not None for each in results(day) if each.id == row.id)


def test_a_lease_keeps_the_old_result_of_a_recomputed_one(day):
    row = next(each for each in results(day) if each.stage == "joined")
    with day.ledger.transaction("ladder") as session:
        take_leases(session, [row.id], "notebook of ann", day.airflow.time)
    path = day.folder / "store" / row.folder / "part-0.bin"
    path.write_bytes(path.read_bytes()[:-1])
    day.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    day.airflow.run_until_quiet()
    report = sweep(day.services)
    assert any("notebook of ann reads it" in each.reason for each in report.kept if each.path == row.folder)
    grow_old(day)
    sweep(day.services)
    assert not names_in(day, row.folder)


def test_nothing_is_deleted_in_a_lost_ledger_until_upkeep_has_it_catch_up(day):
    before = lying(day)
    day.lose_ledger()
    day.airflow.dag_run(2)
    day.airflow.run_until_quiet()
    grow_old(day, 3)
    with pytest.raises(LedgerBehind, check=of_kind("coordination.run_unknown")):
        sweep(day.services, is_full=True)
    assert before <= lying(day)
    kept = sweep_everywhere(day.services, day.airflow)
    kept.require_whole()
    assert "has caught up with the store" in kept.done["ladder"]
    assert {path for path in before if day.killed[0] not in path} <= lying(day)
    assert sweep(day.services, is_full=True).unknown == []


def test_the_folder_of_a_dataflow_that_the_ledger_does_not_know_is_reported(day):
    other = day.folder / "store/other/20130101T000000Z"
    other.mkdir(parents=True)
    (other / "_run.json").write_text("{}")
    (day.folder / "store/_sinks/other").mkdir()
    (day.folder / "store/_quality/day").mkdir(parents=True)
    (day.folder / "store" / (".weir-doctor-" + "0" * 32)).mkdir()
    (day.folder / "store" / (".weir-doctor-" + "0" * 32) / "file").write_text("x")
    grow_old(day)
    report = sweep(day.services, is_full=True)
    assert {each.path for each in report.unknown} == {"other", "_sinks/other", "_quality"}
    assert "rebuild" not in next(each.reason for each in report.unknown if each.path == "_quality")
    assert not list((day.folder / "store").glob(".weir-doctor-*/*"))


def test_an_unmounted_disk_is_no_empty_store(day):
    (day.folder / "store").rename(day.folder / "away")
    (day.folder / "store").mkdir()
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        sweep(day.services, is_full=True)


def test_a_dataflow_that_is_not_known_is_refused(day):
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="laddr")):
        sweep(day.services, "laddr")


def test_an_attempt_that_was_given_up_does_not_commit_what_was_swept(tmp_path):
    """It sleeps for longer than a failed run is kept, is taken for dead, and wakes up."""
    (tmp_path / "store").mkdir()
    world, slept = World(tmp_path, ladder()), []
    run = world.airflow.dag_run(1)
    compute = world.airflow.engine.run

    def asleep(job, during):
        report = compute(job, during)
        if job.region == "weather" and not slept:
            grow_old(world, 15)
            slept.append(sweep(world.services, "ladder", is_full=True))
        return report

    world.airflow.engine.run = asleep
    world.airflow.run_until_quiet()
    assert slept[0].deleted_bytes > 0
    assert set(world.airflow.states().values()) == {"success"}
    tries = [row for row in attempts(world).values() if row.region == "weather"]
    assert [row.state for row in sorted(tries, key=lambda row: row.try_number)] == ["fenced", "committed"]
    assert world.airflow.task(run, "weather").try_number == 2

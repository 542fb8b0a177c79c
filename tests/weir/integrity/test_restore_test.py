"""A restore test restores a checkpoint to a scratch place and checks it; nothing else changes."""

import shutil
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.restoring import EPOCHS, aircraft, files_of, keep_savepoints, rows_of, run_days
from tests.weir.small_dataflow import Saved, World

from weir.errors import Internal, Misconfigured
from weir.formats.checks import CheckOutcome
from weir.formats.paths import checkpoint_path
from weir.integrity import restore_test as restore_tests
from weir.integrity.restore_test import dataflows_with_checkpoints
from weir.ledger.database.tables import (
    CheckpointRow,
    DataflowRow,
    LeaseRow,
    QualityCheckRow,
    RestoreRow,
    ResultRow,
    RunRow,
)
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.sweep import sweep
from weir.snapshots.scratch import HEARTBEAT, RESTORE_TESTS, abandoned_places, restore_test_place

LEDGER = (DataflowRow, RunRow, ResultRow, CheckpointRow, RestoreRow, LeaseRow)


@pytest.fixture(scope="module")
def three_days():
    """Three days, the second with a savepoint: a world of which each test has its own copy."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        run_days(world.airflow, 1, 2, 3)
        keep_savepoints(world, 2)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(three_days, tmp_path):
    return three_days.go_on(tmp_path)


def restore_test(world, which=None, check=None):
    return restore_tests.run_restore_test(world.services, "ladder", which, check or world.airflow.engine.run)


def outcomes(report):
    return {(each.stage, each.subtask, each.results[0].type): each.outcome for each in report.checks}


def ledger(world):
    with world.ledger.transaction() as session:
        return [
            [
                {column: getattr(row, column) for column in set(kind.__table__.columns.keys()) - {"revision"}}
                for row in session.scalars(select(kind))
            ]
            for kind in LEDGER
        ]


def files(world):
    root = world.folder / "store"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def recorded(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(QualityCheckRow).order_by(QualityCheckRow.id)))


def damage(world, path):
    file = world.folder / "store" / path
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(bytes(data))


def test_the_newest_checkpoint_is_restored_and_nothing_else_changes(days):
    before = ledger(days), files(days)
    report = restore_test(days)
    assert report.is_right
    assert report.epoch == EPOCHS[2]
    assert {key: each for key, each in outcomes(report).items() if each is not CheckOutcome.PASSED} == {}
    assert {key[:2] for key in outcomes(report)} == {("history", 0), ("history", 1), ("offsets", 0), ("offsets", 1)}
    assert (ledger(days), files(days)) == before


def test_spark_is_asked_about_what_was_restored_by_what_the_checkpoint_has_recorded(days):
    asked = []

    def check(job):
        asked.append(job)
        return days.airflow.engine.run(job)

    restore_test(days, check=check)
    (job,) = asked
    assert job.report.startswith(f"{RESTORE_TESTS}/")
    history = {each.subtask: each for each in job.to_check if each.stage == "history"}
    (row, _) = rows_of(days, 3)
    root = days.store.spark_url("")
    assert history[0].digest == row.digest
    assert [file.path for file in history[0].state.files] == [f"{root}/{each.path}" for each in files_of(days, 3)]
    assert (history[0].key_groups, history[1].key_groups) == ((0, 63), (64, 127))
    offsets = [each for each in job.to_check if each.stage == "offsets"]
    assert all(
        path.startswith(f"{root}/{RESTORE_TESTS}/") for each in offsets for path in each.files
    )  # restored, so copied


def test_what_was_found_is_recorded_of_the_results_that_the_checkpoint_was_made_of(days):
    restore_test(days)
    rows = recorded(days)
    assert {(row.why, row.outcome, row.run) for row in rows} == {("drill", "passed", f"ladder@{EPOCHS[2]}")}
    assert {row.attempt for row in rows if row.stage == "history"} == {row.attempt for row in rows_of(days, 3)}


@pytest.mark.parametrize("which", ["day2", "4", "{}/ladder/_savepoints/day2"], ids=["name", "number", "folder"])
def test_a_savepoint_is_copied_and_needs_nothing_of_its_origin(days, which):
    shutil.rmtree(days.folder / "store" / "ladder" / EPOCHS[1])
    report = restore_test(days, which.format(days.store.url))
    assert report.is_right
    assert report.epoch == EPOCHS[1]
    assert report.copied_bytes > 0


def test_a_savepoint_of_another_deployment_is_tested_and_not_recorded(days, tmp_path):
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(days.folder / "store/ladder/_savepoints/day2", moved)
    (tmp_path / "other" / "store").mkdir(parents=True)
    other = World(tmp_path / "other", aircraft())
    report = restore_tests.run_restore_test(other.services, "", str(moved), other.airflow.engine.run)
    assert (report.is_right, report.is_recorded, recorded(other)) == (True, False, [])


def test_a_damaged_file_is_found_and_named_and_spark_is_asked_about_the_rest(days):
    broken = files_of(days, 3)[0]
    damage(days, broken.path)
    report = restore_test(days)
    assert not report.is_right
    assert {key: each for key, each in outcomes(report).items() if each is CheckOutcome.FAILED} == {
        ("history", 0, "weir_files_as_recorded"): CheckOutcome.FAILED
    }
    assert broken.path in "\n".join(report.lines())
    assert ("history", 0, "weir_digest_as_recorded") not in outcomes(report)
    assert ("history", 1, "weir_digest_as_recorded") in outcomes(report)
    assert [row.outcome for row in recorded(days) if row.outcome != "passed"] == ["failed"]
    assert rows_of(days, 3)[0].state == "finished"  # a restore test only tells


@pytest.mark.parametrize("size", [0, None], ids=["truncated", "missing"])
def test_a_file_that_is_truncated_or_missing_is_why_nothing_can_be_restored(days, size):
    path = days.folder / "store" / files_of(days, 3)[0].path
    path.unlink() if size is None else path.write_bytes(b"")
    report = restore_test(days)
    assert not report.is_right
    assert "cannot be restored" in report.lines()[0]
    assert path.name in report.problem
    assert {(row.stage, row.outcome, row.results[0]["type"]) for row in recorded(days)} == {
        ("history", "failed", "weir_restorable"),
        ("offsets", "failed", "weir_restorable"),
    }


def test_a_damaged_file_of_a_savepoint_is_found_where_it_is_copied(days):
    damage(days, next(path for path in files(days) if "_savepoints/day2/files/" in path))
    report = restore_test(days, f"{days.store.url}/ladder/_savepoints/day2")
    assert "is damaged: expected SHA-256" in report.problem
    assert not any(path.startswith(RESTORE_TESTS) for path in files(days))


@pytest.mark.parametrize("damaged", [True, False])
def test_a_checkpoint_whose_manifest_is_gone_or_damaged_cannot_be_restored(days, damaged):
    path = checkpoint_path("ladder", 3)
    damage(days, path) if damaged else days.store.delete(path)
    report = restore_test(days)
    assert path in report.problem


def test_rows_that_are_not_as_recorded_fail_the_restore_test(days):
    days.airflow.engine.violated["restored history"] = ["weir_rows_as_recorded"]
    report = restore_test(days)
    assert not report.is_right
    failed = [row for row in recorded(days) if row.outcome == "failed"]
    assert {(row.stage, row.suite, row.why) for row in failed} == {("history", "weir", "drill")}
    assert "weir_rows_as_recorded" in "\n".join(report.lines())


def test_on_postgresql_a_bad_checkpoint_is_reported_too(tmp_path, empty_postgres_ledger):
    (tmp_path / "store").mkdir()
    world = World(tmp_path, aircraft(), empty_postgres_ledger)
    run_days(world.airflow, 1)
    damage(world, files_of(world, 1)[0].path)
    report = restore_test(world)
    assert not report.is_right
    assert report.is_recorded
    assert "failed" in {row.outcome for row in recorded(world)}


def test_an_unknown_snapshot_is_named_with_those_that_are_kept(days):
    with pytest.raises(Misconfigured, check=of_kind("integrity.not_kept", which="77")):
        restore_test(days, "77")
    with pytest.raises(Misconfigured, check=of_kind("integrity.no_savepoint")):
        restore_test(days, f"{days.folder}/store/ladder/nothing")


def test_a_checkpoint_that_is_subsumed_during_a_restore_test_is_not_called_bad(days):
    def subsumed(job):
        with days.ledger.transaction("ladder") as session:
            for row in session.scalars(select(CheckpointRow).where(CheckpointRow.number == 1)):
                row.subsumed_at, row.subsumed_by = days.airflow.time, 3
        maintain_checkpoints(days.services, "ladder")
        days.airflow.engine.violated["restored history"] = ["weir_digest_as_recorded"]
        return days.airflow.engine.run(job)

    with pytest.raises(Misconfigured, check=of_kind("integrity.subsumed_meanwhile")):
        restore_test(days, "1", subsumed)
    assert recorded(days) == []


def test_a_failure_of_spark_leaves_nothing_behind(days):
    before = files(days)

    def lost(_job):
        raise OSError("no Spark")

    with pytest.raises(OSError, match="no Spark"):
        restore_test(days, check=lost)
    assert files(days) == before


def killed(world):
    """What a restore test leaves behind whose process is killed."""
    with restore_test_place(world.services) as place:
        place.services.store.create(f"{place.dataflow}/{EPOCHS[0]}/x/part-0.bin", b"rows")
        shutil.copytree(world.folder / "store" / place.folder, world.folder / "copy")
    shutil.copytree(world.folder / "copy", world.folder / "store" / place.folder)
    return place.folder


def test_the_folder_of_a_killed_restore_test_is_deleted_by_the_next_one_after_an_hour(days):
    left = killed(days)
    restore_test(days)
    assert abandoned_places(days.services) == ()
    days.airflow.time += timedelta(hours=1)
    assert abandoned_places(days.services) == (left,)
    restore_test(days)
    assert not any(path.startswith(RESTORE_TESTS) for path in files(days))


@pytest.mark.parametrize("is_removing", [False, True])
def test_a_sweep_deletes_the_folder_of_a_killed_restore_test(days, is_removing):
    left = killed(days)
    if is_removing:
        days.store.delete(f"{left}/{HEARTBEAT}")
    report = sweep(days.services, is_full=True)
    assert not any(RESTORE_TESTS in each.path for each in report.unknown)
    assert any(path.startswith(left) for path in files(days))
    days.airflow.time += timedelta(days=20_000)  # files have the time of this machine
    sweep(days.services, is_full=True)
    assert not any(path.startswith(RESTORE_TESTS) for path in files(days))


def test_a_restore_test_writes_only_to_its_own_folder(days):
    with restore_test_place(days.services) as place:
        store = place.services.store
        for touch in (
            partial(store.create, "ladder/x", b""),
            partial(store.replace, checkpoint_path("ladder", 3), b""),
            partial(store.delete, checkpoint_path("ladder", 3)),
            partial(store.delete_folder, "ladder"),
        ):
            with pytest.raises(Internal, check=of_kind("snapshots.outside_of_scratch")):
                touch()
        assert store.read(checkpoint_path("ladder", 3)) == days.store.read(checkpoint_path("ladder", 3))


def test_restore_tests_by_default_cover_all_dataflows_with_checkpoints(days):
    assert dataflows_with_checkpoints(days.services, None) == ("ladder",)
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown")):
        dataflows_with_checkpoints(days.services, "nobody")

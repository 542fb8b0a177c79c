"""Runs expire, versions are replaced, DagRuns are deleted: needed results stay, all others go in any order."""

import os
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.restoring import aircraft, run_days
from tests.weir.small_dataflow import Saved, World, ladder

from weir.coordination.services import Services
from weir.dataflow import keyed_state
from weir.dataflow.retention import RetentionPolicy
from weir.dataflow.retention_settings import RetentionSettings
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.pointer import pointer_from_json
from weir.ledger.database.tables import AttemptRow, PublicationRow, ResultEventRow, ResultRow, RunRow
from weir.ledger.leases import take_leases
from weir.rebuild.rebuild import rebuild
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.catalogue import published
from weir.store.store import Store
from weir.store.walk import files_below
from weir.testing.fakes.airflow import Killed

DAY = timedelta(days=1)
RUN = "ladder@20130101T000000Z"
NAME = "scheduled__2013-01-01"


def grow_old(world, days):
    at = world.airflow.time.timestamp()
    for path in (world.folder / "store").rglob("*"):
        os.utime(path, (at, at))
    world.airflow.time += days * DAY


def lying(store):
    return {each.path for each in files_below(store, ["ladder", "_sinks"])}


def rows(world, model, **wanted):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(model).filter_by(**wanted)))


def settle_with(world, **life):
    world.services = Services(
        ledger=world.ledger, store=world.store, now=lambda: world.airflow.time, retention=RetentionSettings(**life)
    )
    world.airflow.services = world.services


def is_published_whole(world, epoch="20130101T000000Z"):
    found = published(world.store, "ladder", "delays", epoch)
    return found is not None and all(
        world.store.size(f"{part.folder}/{file}") > 0 for part in found.partitions for file in part.files
    )


@pytest.fixture(scope="module")
def two_days():
    """Two runs; in the first a result was lost and made again, and another version was published."""
    with fast_folder() as folder:
        (folder / "world/store").mkdir(parents=True)
        world = World(folder / "world", ladder())
        for day in (1, 2):
            world.airflow.dag_run(day)
            world.airflow.run_until_quiet()
        world.content["joined"] = "another"
        [lost] = [each for each in rows(world, ResultRow, run=RUN, stage="joined", subtask=0) if each.is_current]
        path = folder / "world/store" / lost.folder / "part-0.bin"
        path.write_bytes(path.read_bytes()[:-1])
        world.airflow.clear_by_hand(NAME, "totals", 0)
        world.airflow.run_until_quiet()
        assert published(world.store, "ladder", "delays", "20130101T000000Z").version == 2
        yield Saved(world, folder / "saved")


@pytest.fixture
def world(two_days, tmp_path, copied):
    return two_days.go_on(tmp_path, copied)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_version_that_was_replaced_goes_an_hour_later_pointer_first(world):
    settle_with(world, orphan_age=timedelta(minutes=10))
    first = next(each for each in rows(world, PublicationRow, run=RUN) if each.version == 1)
    assert Garbage.POINTER not in {each.kind for each in sweep(world.services).deleted}
    world.airflow.time += timedelta(hours=2)
    report = sweep(world.services)
    assert [each.path for each in report.deleted if each.kind is Garbage.POINTER] == [first.pointer]
    assert "version 2 has replaced it" in {each.reason for each in report.deleted}
    assert first.pointer not in lying(world.store)
    assert not any(path.endswith(".bin") and path.startswith(first.folders[0]) for path in lying(world.store))
    assert is_published_whole(world)
    assert not [each for each in sweep(world.services).deleted if each.kind is Garbage.POINTER]


def test_what_is_published_stays_however_old_it_is(world):
    grow_old(world, 1000)
    for _ in range(2):
        sweep(world.services, is_full=True)
    assert is_published_whole(world)
    assert is_published_whole(world, "20130102T000000Z")


def test_what_is_published_goes_when_the_deployment_says_so(world):
    settle_with(world, keep=RetentionPolicy.from_text("end_of_run"), keep_published=30 * DAY)
    grow_old(world, 31)
    sweep(world.services, is_full=True)
    report = sweep(world.services, is_full=True)
    assert published(world.store, "ladder", "delays", "20130101T000000Z") is None
    assert not [path for path in lying(world.store) if "/delays/" in path and path.endswith(".bin")]
    assert not report.deleted
    assert not report.missing


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_an_old_run_leaves_its_record_and_what_is_published(world):
    attempts = len(rows(world, AttemptRow, run=RUN))
    grow_old(world, 91)
    report = sweep(world.services, is_full=True)
    assert {each.path for each in report.expired} == {RUN, "ladder@20130102T000000Z"}
    shown = rows(world, PublicationRow, run=RUN, version=2)[0]
    left = {path for path in lying(world.store) if "20130101T000000Z" in path}
    assert left == {
        "ladder/20130101T000000Z/_run.json",
        shown.pointer,
        *(f"{folder}/{name}" for folder in shown.folders for name in ("manifest.json", "part-0.bin")),
    }
    assert is_published_whole(world)
    assert not [
        each for each in (world.folder / "store/ladder").rglob("*") if each.is_dir() and not any(each.iterdir())
    ]
    kept = rows(world, ResultRow, run=RUN)
    assert all(each.is_current or each.state == "finished" for each in kept)
    assert {each.stage for each in kept} == {"clean", "weather", "joined", "totals", "routes", "delays"}
    assert len(rows(world, AttemptRow, run=RUN)) < attempts
    assert {each.result for each in rows(world, ResultEventRow)} <= {each.id for each in rows(world, ResultRow)}
    again = sweep(world.services, is_full=True)
    assert not again.expired
    assert not again.deleted


def test_of_an_expired_run_that_published_nothing_any_more_nothing_is_left_until_it_begins_anew(world):
    settle_with(world, keep_published=30 * DAY)
    grow_old(world, 91)
    sweep(world.services, is_full=True)
    sweep(world.services, is_full=True)
    assert lying(world.store) == set()
    assert not list((world.folder / "store/ladder").iterdir())
    world.airflow.clear_run_by_hand(NAME)
    world.airflow.run_until_quiet()
    assert is_published_whole(world)
    assert "ladder/20130101T000000Z/_run.json" in lying(world.store)
    before = {(each.stage, each.subtask, each.digest) for each in rows(world, ResultRow, run=RUN) if each.is_current}
    world.lose_ledger()
    [built] = rebuild(world.services)
    assert [each.missing for each in built.runs] == [()]
    assert {(each.stage, each.subtask, each.digest) for each in rows(world, ResultRow) if each.is_current} == before


def test_an_expired_run_is_recomputed_when_a_person_clears_a_task_and_expires_again(world):
    grow_old(world, 91)
    sweep(world.services, is_full=True)
    before = lying(world.store)
    world.airflow.clear_by_hand(NAME, "totals", 0)
    world.airflow.run_until_quiet()
    assert world.airflow.task(NAME, "totals", 0).state == "success"
    assert is_published_whole(world)
    assert not sweep(world.services, is_full=True).missing
    grow_old(world, 91)
    assert RUN in {each.path for each in sweep(world.services, is_full=True).expired}
    sweep(world.services, is_full=True)
    assert {path for path in lying(world.store) if "/_sinks" not in path} >= {"ladder/20130101T000000Z/_run.json"}
    assert len(lying(world.store)) == len(before)


def test_an_expired_run_that_begins_anew_is_not_swept_though_its_workers_clock_is_behind(world):
    settle_with(world, expire_runs=60 * DAY)
    grow_old(world, 90)
    sweep(world.services, is_full=True)
    (run,) = rows(world, RunRow, id=RUN)
    assert run.expired_at is not None
    world.airflow.time -= timedelta(minutes=1)
    world.airflow.clear_run_by_hand(NAME)
    world.airflow.run_until_quiet()
    world.airflow.time += timedelta(minutes=1)
    sweep(world.services, is_full=True, older_than=timedelta())
    (run,) = rows(world, RunRow, id=RUN)
    assert run.expired_at is None
    assert is_published_whole(world)
    current = rows(world, ResultRow, run=RUN, is_current=True)
    assert all(world.store.size(f"{row.folder}/manifest.json") > 0 for row in current)


def test_a_lease_keeps_a_run_from_expiring(world):
    grow_old(world, 91)
    [row] = [each for each in rows(world, ResultRow, run=RUN, stage="routes") if each.is_current]
    with world.ledger.transaction("ladder") as session:
        take_leases(session, [row.id], "notebook of ann", world.airflow.time)
    assert RUN not in {each.path for each in sweep(world.services, is_full=True).expired}
    assert world.store.size(f"{row.folder}/part-0.bin") > 0
    world.airflow.time += timedelta(hours=2)
    assert RUN in {each.path for each in sweep(world.services, is_full=True).expired}


def test_a_run_that_was_deleted_in_airflow_is_collected_but_what_it_published_stays(world):
    world.airflow.delete(NAME)
    said = sweep(world.services, clearer=world.airflow)
    assert any(f"DagRun {NAME} of DAG dag" in note for note in said.notes)
    before = {path for path in lying(world.store) if "20130101" in path}
    grow_old(world, 1)
    world.airflow.time += timedelta(hours=1)
    assert RUN in {each.path for each in sweep(world.services, is_full=True, clearer=world.airflow).expired}
    left = {path for path in lying(world.store) if "20130101" in path}
    assert left < before
    assert is_published_whole(world)
    assert [path for path in left if path.endswith(".bin")] == [f"{published_folder(world)}/part-0.bin"]
    assert rows(world, RunRow, id="ladder@20130102T000000Z")[0].deleted_at is None


def published_folder(world):
    return published(world.store, "ladder", "delays", "20130101T000000Z").partitions[0].folder


def test_a_run_counts_as_deleted_only_if_airflow_says_so(world):
    world.airflow.delete(NAME)
    world.airflow.reachable = False
    sweep(world.services, clearer=world.airflow)
    assert rows(world, RunRow, id=RUN)[0].deleted_at is None


def test_a_dag_run_that_was_made_anew_is_not_deleted_any_more(world):
    world.airflow.delete(NAME)
    sweep(world.services, clearer=world.airflow)
    assert rows(world, RunRow, id=RUN)[0].deleted_at is not None
    world.airflow.time += 2 * DAY
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert rows(world, RunRow, id=RUN)[0].deleted_at is None
    assert all(task.state == "success" for key, task in world.airflow.tasks.items() if key.run_id == NAME)
    grow_old(world, 2)
    report = sweep(world.services, is_full=True, clearer=world.airflow)
    assert not report.missing
    current = [each for each in rows(world, ResultRow, run=RUN) if each.is_current]
    assert {each.state for each in current} == {"finished"}
    assert all(world.store.size(f"{each.folder}/part-0.bin") > 0 for each in current)


class DyingStore(Store):
    """A store whose user is killed just before, or just behind, the n-th change."""

    __slots__ = ("left",)

    def __init__(self, store, left):
        super().__init__(store.files)
        self.left = left

    def _dies(self, act, *arguments):
        self.left -= 1
        if self.left == 0:
            raise Killed
        done = act(*arguments)
        self.left -= 1
        if self.left == 0:
            raise Killed
        return done

    def create(self, path, data):
        return self._dies(super().create, path, data)

    def delete(self, path):
        return self._dies(super().delete, path)

    def delete_folder(self, path):
        names = sorted(self.entries(path)) if self._is_there(path) else []
        for name, size in names:
            # As a process that is killed in the middle leaves it.
            self._dies(super().delete_folder if size is None else super().delete, f"{path}/{name}")
        return self._dies(super().delete_folder, path)

    def _is_there(self, path):
        return bool(files_below(self, [path]))


def assert_nothing_dangles(world):
    """Each pointer names whole results; a manifest without its data is one of a result that was released."""
    files = lying(world.store)
    for path in (each for each in files if each.startswith("_sinks") and each.endswith(".json")):
        for part in pointer_from_json(world.store.read(path)).partitions:
            assert {f"{part.folder}/{name}" for name in ("manifest.json", *part.files)} <= files, path
    for path in (each for each in files if each.endswith("/manifest.json")):
        folder = path.removesuffix("/manifest.json")
        named = {f"{folder}/{file.name}" for file in from_json(Manifest, world.store.read(path)).files}
        assert named <= files or f"{folder}/released.json" in files, path
    for row in rows(world, ResultRow, state="finished"):
        assert f"{row.folder}/part-0.bin" in files


@pytest.mark.parametrize("days", [3, 91])
def test_a_sweep_that_is_killed_at_any_step_can_be_taken_up_again(two_days, days):
    with fast_folder() as folder:
        world = two_days.go_on(folder / "whole")
        settle(world, days)
        expected = lying(world.store)
    killed_at = 0
    for nth in range(1, 1000, 37 if days == 91 else 3):
        with fast_folder() as folder:
            world = two_days.go_on(folder / "killed")
            if not dies(world, days, nth):
                break
            killed_at = nth
            assert_nothing_dangles(world)
            settle(world, 0)
            assert lying(world.store) == expected
            assert is_published_whole(world)
    assert killed_at >= 10


def settle(world, days):
    if days:
        grow_old(world, days)
    sweep(world.services, is_full=True)
    sweep(world.services, is_full=True)


def dies(world, days, nth):
    grow_old(world, days)
    dying = Services(ledger=world.ledger, store=DyingStore(world.store, nth), now=lambda: world.airflow.time)
    try:
        sweep(dying, is_full=True)
    except Killed:
        return True
    return False


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_dry_run_does_not_name_runs_whose_state_is_needed(tmp_path, is_whole):
    history = keyed_state("history", key="k", schema="k BIGINT", incremental=not is_whole)
    world = World(tmp_path, aircraft(parallelism=1, states=history, retained_checkpoints=1))
    run_days(world.airflow, 1, 2, 3)
    sweep(world.services)
    world.airflow.time += 91 * DAY
    dry = sweep(world.services, is_dry=True)
    assert dry.expired == sweep(world.services).expired
    assert bool(dry.expired) is is_whole  # else every epoch shares the files of the first


def test_a_dry_run_names_old_runs_without_state(world):
    world.airflow.time += 91 * DAY
    dry = sweep(world.services, is_dry=True)
    assert {each.path for each in dry.expired} == {RUN, "ladder@20130102T000000Z"}
    assert dry.expired == sweep(world.services).expired


def test_policies_keep_nothing_where_space_is_needed(world):
    assert not [each for each in sweep(world.services).deleted if each.kind is Garbage.RELEASED and RUN in each.path]
    dry = sweep(world.services, "ladder", is_reclaiming=True, is_dry=True)
    report = sweep(world.services, "ladder", is_reclaiming=True)
    released = [each for each in report.deleted if each.kind is Garbage.RELEASED]
    assert {each.bytes for each in released} == {each.stored.bytes for each in dry.to_release} != set()
    assert len(released) == len(dry.to_release)
    assert dry.deleted_bytes >= sum(each.bytes for each in released)
    assert f"{len(released)} x result to release" in str(dry)
    assert is_published_whole(world)

"""Savepoints: whole, alone, and where they were moved to."""

import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select
from tests.messages.kinds import of_kind
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    files_of,
    lineage_of,
    restore,
    rows_of,
    run_days,
    second_airflow,
    spoil,
    states_of,
    two_saved_days,
)
from tests.weir.small_dataflow import World

from weir.errors import Conflict, LedgerBehind, Misconfigured, Retryable
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json, to_json
from weir.formats.paths import checkpoint_path, number_path
from weir.ledger.database.tables import CheckpointRow, LeaseRow, ResultRow
from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.snapshots import savepoint
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.snapshots.savepoint import SavepointRequest, create, drop, savepoints, show, tidy
from weir.store.store import Store
from weir.store.walk import files_below
from weir.testing.fakes.stores import store_in_memory
from weir.upkeep import RESULTS, settle_everywhere

NUMBER = number_path("ladder", 3)
"""What keeps the number of the first savepoint."""


@pytest.fixture(scope="module")
def two_days():
    """Two days of state: a world of which each test has its own copy."""
    with two_saved_days() as saved:
        yield saved


@pytest.fixture
def days(two_days, tmp_path):
    return two_days.go_on(tmp_path / "world")


def make(world, **more):
    return create(world.services, SavepointRequest("ladder", **more))


def lying(store, folder):
    return {each.path for each in files_below(store, [folder])}


def test_a_savepoint_is_of_the_newest_checkpoint_unless_a_number_is_given(days):
    made = make(days)
    assert (made.epoch, made.status, made.number) == (EPOCHS[1], "completed", 3)
    assert make(days, checkpoint=1).epoch == EPOCHS[0]
    assert [each.number for each in savepoints(days.services, "ladder")] == [3, 4]


class Watched(Store):
    """Tells of each file that is read or made."""

    __slots__ = ("told",)

    def __init__(self, store, told):
        super().__init__(store.files)
        self.told = told

    def read(self, path, *more):
        self.told(path)
        return super().read(path, *more)

    def create(self, path, data):
        self.told(path)
        super().create(path, data)


def test_what_is_copied_is_leased_until_all_of_it_is(days):
    leased = {}

    def look(path):
        with days.ledger.transaction() as session:
            query = select(ResultRow.folder).join(LeaseRow, LeaseRow.result == ResultRow.id)
            leased[path] = set(session.scalars(query))

    services = replace(days.services, store=Watched(days.store, look))
    create(services, SavepointRequest("ladder"))
    made = {path: folders for path, folders in leased.items() if "/_savepoints/" in path}
    assert made
    assert all(any(EPOCHS[1] in folder for folder in folders) for folders in made.values())
    with days.ledger.transaction() as session:
        assert session.scalar(select(func.count()).select_from(LeaseRow)) == 0


def test_it_names_nothing_outside_of_its_folder(days):
    make(days, name="mine")
    folder = "ladder/_savepoints/mine"
    known = from_json(Checkpoint, days.store.read(f"{folder}/savepoint.json"))
    named = {*known.files, *(f"{each.folder}/{file.name}" for each in known.results for file in each.files)}
    manifests = {f"{each.folder}/manifest.json" for each in known.results}
    assert lying(days.store, folder) == {f"{folder}/{each}" for each in {*named, *manifests, "savepoint.json"}}
    assert known.full_bytes == known.incremental_bytes > 0
    assert (known.new_files, known.shared_files) == (len(named), 0)


def test_one_that_was_moved_elsewhere_is_restored_from_there_when_all_else_is_gone(days, tmp_path):
    right = states_of(days, 2)
    (tmp_path / "usb").mkdir()
    made = make(days, to=f"{tmp_path}/usb", name="mine")
    assert made.folder == f"file://{tmp_path}/usb/mine"
    shutil.move(tmp_path / "usb" / "mine", tmp_path / "moved")
    (tmp_path / "new" / "store").mkdir(parents=True)
    other = World(tmp_path / "new", aircraft())
    other.services.store_id()
    done = restore_snapshot(other.services, RestoreRequest("ladder", f"{tmp_path}/moved"))
    shutil.rmtree(tmp_path / "moved")
    assert (done.epoch, states_of(other, 2)) == (EPOCHS[1], right)
    run_days(other.airflow, 3)
    run_days(days.airflow, 3)
    assert set(other.airflow.states().values()) == {"success"}
    assert states_of(other, 3) == states_of(days, 3)
    assert all(file.folder.startswith("ladder/") for file in files_of(other, 3))


def test_a_folder_that_does_not_exist_is_refused_before_anything_is_recorded(days, tmp_path):
    with pytest.raises(Misconfigured, check=of_kind("snapshots.folder_missing")):
        make(days, to=f"{tmp_path}/usb")
    assert savepoints(days.services) == ()
    (tmp_path / "usb").mkdir()
    assert make(days, to=f"{tmp_path}/usb").number == 3


def test_a_file_that_two_subtasks_share_is_copied_once(days):
    days.airflow.deploy(aircraft(parallelism=3))
    run_days(days.airflow, 3)
    right = states_of(days, 3)
    make(days, name="mine")
    known = from_json(Checkpoint, days.store.read("ladder/_savepoints/mine/savepoint.json"))
    used = [file.path for state in known.states for part in state.partitions for file in part.files]
    assert len(used) > len(set(used))
    spoil(days, 3)
    restore(days, "mine")
    assert states_of(days, 3) == right
    run_days(days.airflow, 4)
    assert set(days.airflow.states().values()) == {"success"}


def test_an_epoch_whose_checkpoint_was_subsumed_can_be_gone_on_from_by_its_savepoint(days):
    make(days, name="mine")
    right = states_of(days, 2)
    days.airflow.deploy(aircraft(retained_checkpoints=1))
    run_days(days.airflow, 3, 4)
    days.airflow.release("ladder")
    assert {row.state for row in rows_of(days, 2)} == {"released"}
    restore(days, "mine")
    days.airflow.release("ladder")
    assert {row.state for row in rows_of(days, 2)} == {"finished"}
    days.airflow.clear_run_by_hand("scheduled__2013-01-03")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert states_of(days, 2) == right


def test_a_savepoint_that_is_damaged_is_refused_before_anything_is_changed(days):
    make(days, name="mine")
    path = next(each for each in sorted(lying(days.store, "ladder/_savepoints/mine/files")))
    data = days.store.read(path)
    days.store.replace(path, bytes([data[0] ^ 1]) + data[1:])
    spoil(days, 2)
    before = lineage_of(days), states_of(days, 2), lying(days.store, "ladder")
    with pytest.raises(Misconfigured, check=of_kind("store.other_bytes")):
        restore(days, "mine")
    assert (lineage_of(days), states_of(days, 2), lying(days.store, "ladder")) == before


def test_one_whose_manifest_was_changed_is_refused(days):
    make(days, name="mine")
    path = "ladder/_savepoints/mine/savepoint.json"
    days.store.replace(path, days.store.read(path).replace(EPOCHS[1].encode(), EPOCHS[0].encode()))
    with pytest.raises(Misconfigured, check=of_kind("formats.not_as_written")):
        restore(days, "mine")


def test_what_is_dropped_is_gone_and_nothing_else_is(days):
    make(days, name="mine")
    make(days, name="other")
    before = lying(days.store, "ladder")
    gone = drop(days.services, "ladder", "mine")
    assert gone.name == "mine"
    assert lying(days.store, "ladder") == {each for each in before if "/mine/" not in each}
    assert [each.name for each in savepoints(days.services)] == ["other"]
    with pytest.raises(Misconfigured, check=of_kind("snapshots.savepoint_unknown", name="mine")):
        drop(days.services, "ladder", "mine")
    with pytest.raises(Misconfigured, check=of_kind("snapshots.number_unknown", name="mine")):
        restore(days, "mine")
    run_days(days.airflow, 3)
    assert set(days.airflow.states().values()) == {"success"}


def test_a_savepoint_below_another_survives_its_drop_and_so_does_what_somebody_else_has_put_there(days, tmp_path):
    usb = tmp_path / "usb"
    usb.mkdir()
    make(days, to=str(usb), name="outer")
    right = states_of(days, 2)
    make(days, to=f"{usb}/outer", name="inner")
    (usb / "outer" / "README.txt").write_text("mine")
    drop(days.services, "ladder", "outer")
    assert sorted(each.name for each in (usb / "outer").iterdir()) == ["README.txt", "inner"]
    spoil(days, 2)
    restore(days, f"{usb}/outer/inner")
    assert states_of(days, 2) == right


def test_no_number_is_given_out_twice_though_the_ledger_was_lost(days, tmp_path):
    (tmp_path / "usb").mkdir()
    assert [make(days, name="here").number, make(days, name="gone").number] == [3, 4]
    drop(days.services, "ladder", "gone")
    assert make(days, to=f"{tmp_path}/usb", name="there").number == 5
    days.lose_ledger()
    rebuild(days.services)
    assert [each.name for each in savepoints(days.services)] == ["here"]
    with pytest.raises(Misconfigured, check=of_kind("snapshots.savepoint_unknown", name="gone")):
        drop(days.services, "ladder", "gone")
    assert make(days, name="new").number == 6
    run_days(days.airflow, 3)
    with days.ledger.transaction() as session:
        assert session.scalar(select(func.max(CheckpointRow.number))) == 7
    assert restore(days, f"{tmp_path}/usb/there").epoch == EPOCHS[1]


@pytest.mark.parametrize("taken", ["by a checkpoint", "elsewhere", "here"])
def test_none_is_made_while_the_ledger_has_lost_the_commit_that_took_its_number(days, tmp_path, taken):
    (tmp_path / "usb").mkdir()
    to = f"{tmp_path}/usb" if taken == "elsewhere" else None
    number = 2 if taken == "by a checkpoint" else make(days, to=to).number
    with days.ledger.transaction("ladder") as session:
        session.execute(delete(CheckpointRow).where(CheckpointRow.number == number))
    before = lying(days.store, "ladder")
    with pytest.raises(LedgerBehind, match=f"{number}", check=of_kind("coordination.checkpoint_unknown")):
        make(days, name="mine")
    assert lying(days.store, "ladder") == before
    rebuild(days.services)
    assert make(days, name="mine").number == number + 1
    assert show(days.services, "ladder", "mine").checkpoint.epoch == EPOCHS[1]


def test_a_close_finds_the_savepoint_that_the_ledger_has_lost_instead_of_giving_its_number_again(days):
    made = make(days)
    with days.ledger.transaction("ladder") as session:
        session.execute(delete(CheckpointRow).where(CheckpointRow.number == made.number))
    run_days(days.airflow, 3)
    assert set(days.airflow.states().values()) == {"success"}
    assert savepoints(days.services, "ladder") == (made,)
    with days.ledger.transaction() as session:
        assert session.scalar(select(CheckpointRow.number).where(CheckpointRow.epoch == EPOCHS[2])) == made.number + 1


class LosingRow:
    """Files that let the ledger lose the savepoint and catch up, once, before its manifest is written."""

    def __init__(self, days):
        self._files, self._lose = days.store.files, [lambda: lose(days)]

    def __getattr__(self, name):
        return getattr(self._files, name)

    def create(self, path, data):
        if path.endswith("/savepoint.json"):
            while self._lose:
                self._lose.pop()()
        self._files.create(path, data)


def lose(days):
    with days.ledger.transaction("ladder") as session:
        session.execute(delete(CheckpointRow).where(CheckpointRow.number == 3))
    assert catch_up(days.services, "ladder") is not None


def test_one_that_the_ledger_loses_while_it_is_written_is_entered_when_it_is_whole(days):
    whole, days.store.files = days.store.files, LosingRow(days)
    with pytest.raises(LedgerBehind):
        make(days, name="mine")
    days.store.files = whole
    settle_everywhere(days.services, RESULTS).require_whole()
    assert [(each.number, each.status, each.epoch) for each in savepoints(days.services)] == [
        (3, "completed", EPOCHS[1])
    ]


def test_one_that_the_ledger_has_lost_and_that_was_not_finished_is_removed_when_it_is_old(days):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, 4, Dead(), is_dead=True)
    with pytest.raises(Dead):
        make(days, name="mine")
    days.store.files = whole
    lose(days)
    assert [each.status for each in savepoints(days.services)] == ["pending"]
    days.airflow.time += timedelta(days=30)
    assert tidy(days.services, "ladder") == (3,)
    assert lying(days.store, "ladder") == before | {NUMBER}


def test_a_rebuild_leaves_a_savepoint_as_it_is_though_a_checkpoint_in_the_store_has_its_number(days):
    made = make(days)
    older = replace(from_json(Checkpoint, days.store.read(checkpoint_path("ladder", 1))), number=made.number)
    for written in (to_json(older), b"damaged"):
        days.store.replace(checkpoint_path("ladder", made.number), written)
        (built,) = rebuild(days.services)
        assert any("has the number of a savepoint" in note for note in built.notes)
        assert savepoints(days.services, "ladder") == (made,)
        with days.ledger.transaction() as session:
            row = session.scalars(select(CheckpointRow).where(CheckpointRow.number == made.number)).one()
            assert not row.results


def test_a_place_that_is_taken_is_left_as_it_is(days):
    make(days, name="mine")
    before = lying(days.store, "ladder")
    with pytest.raises(Misconfigured, check=of_kind("snapshots.place_taken")):
        make(days, name="mine")
    assert lying(days.store, "ladder") == before
    assert show(days.services, "ladder", "mine").checkpoint.epoch == EPOCHS[1]


def test_a_name_that_could_be_something_else_is_refused(days):
    for name in ("17", "a/b", "_mine", ".mine"):
        with pytest.raises(Misconfigured, check=of_kind("snapshots.name_malformed")):
            make(days, name=name)


def test_what_does_not_exist_is_refused_with_what_there_is(days):
    with pytest.raises(Misconfigured, check=of_kind("snapshots.nothing_to_save")):
        make(days, checkpoint=7)
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="other", said="it knows ladder")):
        create(days.services, SavepointRequest("other"))
    with pytest.raises(Misconfigured, check=of_kind("snapshots.is_a_checkpoint", dataflow="ladder", name="2")):
        show(days.services, "ladder", "2")


def test_a_fork_of_a_savepoint_does_not_need_its_origin(days):
    make(days, name="mine")
    restore(days, "mine", fork="forked")
    days.store.delete_folder("ladder")
    fork = second_airflow(days, aircraft("forked"))
    run_days(fork, 3)
    assert set(fork.states().values()) == {"success"}


class Refusing:
    """A store that refuses its n-th write, or from then on all that is done there."""

    def __init__(self, files, steps, error, *, is_dead):
        self._files, self.steps, self._error, self._is_dead = files, steps, error, is_dead

    def __getattr__(self, name):
        known = getattr(self._files, name)
        if name not in ("create", "replace", "delete", "delete_folder"):
            return known

        def step(*args):
            self.steps -= 1
            if self.steps == -1 or (self.steps < -1 and self._is_dead):
                raise self._error
            return known(*args)

        return step


class Dead(BaseException):
    """The process is gone: nothing more of it is done."""


@pytest.mark.parametrize("steps", [0, 4, 9])
def test_a_creation_that_fails_leaves_nothing(days, steps):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, steps, OSError("no"), is_dead=False)
    with pytest.raises(Retryable):
        make(days, name="mine")
    days.store.files = whole
    assert lying(days.store, "ladder") - {NUMBER} == before
    assert savepoints(days.services) == ()
    assert make(days, name="mine").status == "completed"


@pytest.mark.parametrize("steps", [0, 1, 5, 9, 10, 11, 12])
def test_a_creation_that_is_killed_is_completed_or_undone_by_who_comes_by(days, steps):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, steps, Dead(), is_dead=True)
    try:
        make(days, name="mine")
        was_killed = False
    except Dead:
        was_killed = True
    days.store.files = whole
    assert was_killed is (steps < 12)
    tidy(days.services, "ladder")
    days.airflow.time += timedelta(days=30)
    tidy(days.services, "ladder")
    is_there = [each.status for each in savepoints(days.services)] == ["completed"]
    assert is_there is (steps >= 11)
    if not is_there:
        assert lying(days.store, "ladder") - {NUMBER} == before
        assert make(days, name="mine").number > 3
    assert show(days.services, "ladder", "mine").checkpoint.epoch == EPOCHS[1]
    with days.ledger.transaction() as session:
        assert "pending" not in set(session.scalars(select(CheckpointRow.status)))


def test_a_creation_that_takes_longer_than_orphan_age_is_not_tidied_away(days, monkeypatch):
    """It renews its leases meanwhile, which a killed one does not."""
    monkeypatch.setattr(savepoint, "_BETWEEN_RENEWALS", 1)
    hasty = replace(days.services, retention=replace(days.services.retention, orphan_age=timedelta(hours=2)))
    removed = []

    def pass_time(path):
        if "/_savepoints/" in path:
            days.airflow.time += timedelta(minutes=25)
            removed.extend(tidy(hasty, "ladder"))

    made = create(replace(hasty, store=Watched(days.store, pass_time)), SavepointRequest("ladder", name="mine"))
    assert (made.status, removed) == ("completed", [])
    assert restore(days, "mine", is_dry=True).source == "savepoint 3 of ladder (epoch 20130102T000000Z)"


@pytest.mark.parametrize(("steps", "name"), [(1, None), (5, None), (5, "mine"), (10, "mine"), (11, None), (12, "mine")])
def test_of_all_tries_of_a_request_one_makes_a_savepoint_wherever_the_earlier_ones_were_killed(days, steps, name):
    whole, days.store.files = days.store.files, Refusing(days.store.files, steps, Dead(), is_dead=True)
    with suppress(Dead):
        make(days, name=name, key="a task")
    days.store.files = whole
    made = make(days, name=name, key="a task")
    assert (made.status, made.epoch) == ("completed", EPOCHS[1])
    assert make(days, name=name, key="a task") == made
    assert savepoints(days.services, "ladder") == (made,)
    assert {path.split("/")[2] for path in lying(days.store, "ladder/_savepoints")} - {"_numbers"} == {made.name}


def test_another_request_makes_another_savepoint_and_so_does_one_whose_savepoint_was_dropped(days):
    first = make(days, key="a task")
    assert make(days, key="another task").number == first.number + 1
    drop(days.services, "ladder", str(first.number))
    assert make(days, key="a task").number == first.number + 2
    with pytest.raises(Misconfigured, check=of_kind("snapshots.place_taken")):
        [make(days, name="mine", key=key) for key in ("a task, by name", "another one, by name")]


def test_one_on_a_disk_that_is_not_mounted_is_not_taken_for_removed(days, tmp_path):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, 4, Dead(), is_dead=True)
    with pytest.raises(Dead):
        make(days, name="mine")
    days.store.files = whole
    days.airflow.time += timedelta(days=30)
    disk = tmp_path / "world" / "store"
    disk.rename(tmp_path / "away")
    disk.mkdir()
    assert tidy(days.services, "ladder") == ()
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        drop(days.services, "ladder", "mine")
    disk.rmdir()
    (tmp_path / "away").rename(disk)
    assert [each.status for each in savepoints(days.services)] == ["pending"]
    assert tidy(days.services, "ladder") == (3,)
    assert lying(days.store, "ladder") == before | {NUMBER}


@pytest.mark.parametrize("nth", [2, 5, 8])
def test_one_that_is_dropped_while_it_is_made_leaves_nothing(days, nth):
    before, told = lying(days.store, "ladder"), []

    def drop_it(path):
        if "/_savepoints/mine" in path:
            told.append(path)
            if len(told) == nth:
                drop(days.services, "ladder", "mine")

    with pytest.raises(Conflict):
        create(replace(days.services, store=Watched(days.store, drop_it)), SavepointRequest("ladder", name="mine"))
    assert len(told) >= nth
    assert lying(days.store, "ladder") - {NUMBER} == before
    assert make(days, name="mine").status == "completed"


def test_an_unfinished_one_can_be_dropped_at_once(days):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, 4, Dead(), is_dead=True)
    with pytest.raises(Dead):
        make(days, name="mine")
    days.store.files = whole
    assert [each.status for each in savepoints(days.services)] == ["pending"]
    drop(days.services, "ladder", "mine")
    assert lying(days.store, "ladder") == before | {NUMBER}
    assert savepoints(days.services) == ()


def test_a_savepoint_in_the_store_is_found_where_the_store_was_moved_to(days):
    made, outside = make(days, name="inside"), days.folder / "outside"
    outside.mkdir()
    elsewhere = make(days, name="elsewhere", to=str(outside))
    right = states_of(days, 2)
    (days.folder / "store").rename(days.folder / "moved")
    days.store.files = store_in_memory(days.folder / "moved").files
    found = savepoints(days.services)
    assert [each.folder for each in found] == [made.folder.replace("/store/", "/moved/"), elsewhere.folder]
    spoil(days, 2)
    restore(days, "inside")
    assert states_of(days, 2) == right
    assert [note for each in rebuild(days.services) for note in each.notes] == []
    drop(days.services, "ladder", "inside")
    assert not (days.folder / "moved/ladder/_savepoints/inside").exists()

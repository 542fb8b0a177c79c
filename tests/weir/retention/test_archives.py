"""Archives of code stay as long as a run may need them, and go with the last one."""

import os
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import Saved, World, ladder

from weir.assembly import coordinator_of
from weir.formats.paths import archive_path, archives_folder
from weir.ledger.code import archives_of
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.recovery.adopt import adopt
from weir.retention.sizes import archive_bytes, bytes_at_rest
from weir.retention.space import CODE, held_by
from weir.retention.sweep import sweep
from weir.retention.sweep_report import Garbage
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.testing.fakes.airflow import Killed

DAY = timedelta(days=1)
FIRST, SECOND = "scheduled__2013-01-01", "scheduled__2013-01-02"


class Watched(Store):
    """Calls `before` with each path that is to be deleted, and `after` with each that was created or deleted."""

    __slots__ = ("after", "before")

    def __init__(self, store):
        super().__init__(store.files)
        self.before = self.after = lambda path: None

    def create(self, path, data):
        super().create(path, data)
        self.after(path)

    def delete(self, path):
        self.before(path)
        super().delete(path)
        self.after(path)


@pytest.fixture(scope="module")
def two_days():
    with fast_folder() as folder:
        world = World(folder / "world", ladder())
        world.deploy()
        run(world, 1)
        world.deploy(totals=1)
        run(world, 2)
        yield Saved(world, folder / "saved")


@pytest.fixture
def world(two_days, tmp_path, copied):
    """Two days, each with its own code."""
    world = two_days.go_on(tmp_path, copied)
    world.store = Watched(world.store)
    world.services = replace(world.services, store=world.store)
    world.airflow.services, world.airflow.coordinator = world.services, coordinator_of(world.services)
    world.old, world.new = world.deploy(), world.deploy(totals=1)
    return world


def run(world, day):
    world.airflow.dag_run(day)
    world.airflow.run_until_quiet()


def pass_days(world, days):
    """Let time pass for all that lies in the store."""
    at = world.airflow.time.timestamp()
    for path in (world.folder / "store").rglob("*"):
        os.utime(path, (at, at))
    world.airflow.time += days * DAY


def expire(world, run_id):
    """Let a run expire: its DagRun is deleted, and orphan_age passes."""
    world.airflow.delete(run_id)
    sweep(world.services, "ladder", is_full=True, clearer=world.airflow)
    pass_days(world, 3)


def full(world, **more):
    return sweep(world.services, "ladder", is_full=True, **more)


def collected(report):
    return [each.path for each in report.deleted if each.kind is Garbage.ARCHIVE]


def stored(world):
    """The files of archives in the store."""
    try:
        return {f"{archives_folder('ladder')}/{name}" for name, _ in world.store.list(archives_folder("ladder"))}
    except NotFound:
        return set()


def rows(world):
    with world.ledger.transaction() as session:
        return {row.fingerprint: row for row in archives_of(session, "ladder")}


def pinned(world):
    with world.ledger.transaction() as session:
        return {row.run_id: row.archive for row in session.scalars(select(RunRow))}


def test_a_file_is_stored_for_each_code_however_many_tasks_run_it(world):
    assert {row.path for row in rows(world).values()} == stored(world)
    assert pinned(world) == {FIRST: world.old.fingerprint, SECOND: world.new.fingerprint}


def test_the_code_of_runs_that_are_not_expired_stays_however_old_it_is(world):
    before = stored(world)
    pass_days(world, 60)
    report = full(world)
    assert stored(world) == before
    assert {each.path for each in report.kept if each.reason == "the code of runs"} == before


def test_the_code_that_only_an_attempt_names_stays(world):
    expire(world, FIRST)
    world.deploy()
    world.airflow.clear_by_hand(SECOND, "totals", 0)
    world.airflow.run_until_quiet()
    expired = full(world)
    assert collected(expired) == []
    with world.ledger.transaction() as session:
        query = select(AttemptRow.archive).where(AttemptRow.run == "ladder@20130102T000000Z").distinct()
        assert set(session.scalars(query)) - {None} == {world.old.fingerprint, world.new.fingerprint}
    assert rows(world).keys() == {world.old.fingerprint, world.new.fingerprint}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_code_of_an_expired_run_goes_and_is_reported(world):
    gone = rows(world)[world.old.fingerprint]
    expire(world, FIRST)
    dry = full(world, is_dry=True)
    assert gone.path in stored(world)
    expire_now = full(world)
    assert collected(expire_now) == [gone.path]
    assert {row.fingerprint for row in rows(world).values()} == {world.new.fingerprint}
    assert stored(world) == {rows(world)[world.new.fingerprint].path}
    assert collected(full(world)) == []
    assert collected(dry) == []  # the run expires in the sweep
    assert "archive of code" in str(expire_now)


def test_the_code_of_an_adopted_run_stays_until_the_run_expires(world):
    adopt(world.services, FIRST)
    pass_days(world, 5)
    assert collected(full(world)) == []
    assert world.old.fingerprint in rows(world)


def test_a_young_archive_stays_although_no_run_needs_it(world):
    expire(world, FIRST)
    with world.ledger.transaction("ladder") as session:
        for row in archives_of(session, "ladder"):
            row.stored_at = world.airflow.time
    assert collected(full(world)) == []
    pass_days(world, 3)
    assert len(collected(full(world))) == 1


def test_a_dry_sweep_says_what_goes_and_changes_nothing(world):
    expire(world, FIRST)
    sweep(world.services, "ladder")  # not a full one: the run expires
    before = stored(world)
    assert collected(full(world, is_dry=True)) == [rows(world)[world.old.fingerprint].path]
    assert stored(world) == before
    assert all(row.deleting_at is None for row in rows(world).values())


# Kills, and begins in between


def orphan(world):
    """A file that a begin stored before it was killed."""
    archive = world.deploy(totals=2)
    path = archive_path("ladder", archive.fingerprint, "0badcafe")
    world.store.create(path, archive.data)
    return path


def test_a_file_of_a_begin_that_was_killed_goes_when_it_is_old(world):
    path = orphan(world)
    pass_days(world, 0)
    report = full(world)
    assert path in stored(world)
    assert [each.reason for each in report.kept if each.path == path] == [
        "code that the ledger does not name; it is not old enough yet"
    ]
    pass_days(world, 3)
    assert collected(full(world)) == [path]


def test_files_that_a_ledger_does_not_name_stay_where_it_knows_not_all_runs(world):
    before = stored(world)
    with world.ledger.transaction("ladder") as session:
        for row in archives_of(session, "ladder"):
            session.delete(row)
    world.store.create("ladder/20130109T000000Z/_run.json", b"{}")
    pass_days(world, 60)
    report = full(world)
    assert stored(world) == before
    assert before <= {each.path for each in report.unknown}


@pytest.mark.parametrize("age", [None, timedelta()])
def test_the_collector_between_a_stored_file_and_the_transaction_of_its_begin_leaves_the_file(world, age):
    """The sweep sees a file that no row names: the begin's transaction names it afterwards."""
    swept = []

    def sweeps(path):
        if archives_folder("ladder") in path and not swept:
            swept.append(path)
            pass_days(world, 0)
            full(world, older_than=age)

    world.store.after = sweeps
    third = world.deploy(totals=3)
    run(world, 3)
    assert len(swept) == 1
    assert rows(world)[third.fingerprint].path == swept[0]
    assert set(swept) <= stored(world)
    assert set(world.airflow.states().values()) == {"success"}


def test_a_begin_that_needs_an_archive_whose_deletion_has_begun_stores_another_file(world):
    """The collector marks the row, then a begin needs the archive, then the collector deletes."""
    gone = rows(world)[world.old.fingerprint]
    expire(world, FIRST)
    begun = []

    def begins_first(path):
        if path == gone.path and not begun:
            begun.append(path)
            world.deploy()
            run(world, 4)

    world.store.before = begins_first
    report = full(world)
    assert begun == [gone.path] == collected(report)
    row = rows(world)[world.old.fingerprint]
    assert row.path != gone.path
    assert row.deleting_at is None
    assert stored(world) == {row.path, rows(world)[world.new.fingerprint].path}
    assert set(world.airflow.states().values()) == {"success"}


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_sweep_that_was_killed_is_continued_by_the_next_one(world, step):
    gone = rows(world)[world.old.fingerprint]
    expire(world, FIRST)

    def kill(path):
        if path == gone.path:
            raise Killed

    setattr(world.store, step, kill)
    with pytest.raises(Killed):
        full(world)
    setattr(world.store, step, lambda _path: None)
    assert (gone.path in stored(world)) is (step == "before")
    assert rows(world)[world.old.fingerprint].deleting_at is not None
    full(world)
    assert world.old.fingerprint not in rows(world)
    assert gone.path not in stored(world)


def test_a_begin_that_was_killed_after_it_stored_its_file_is_followed_by_one_that_stores_its_own(world):
    killed = []

    def dies(path):
        if archives_folder("ladder") in path and not killed:
            killed.append(path)
            raise Killed

    world.store.after = dies
    third = world.deploy(totals=3)
    run(world, 3)
    row = rows(world)[third.fingerprint]
    assert {killed[0], row.path} <= stored(world)
    assert killed[0] != row.path
    pass_days(world, 3)
    assert collected(full(world)) == killed


def test_an_expired_run_that_begins_again_is_pinned_to_the_code_that_is_deployed(world):
    with world.ledger.transaction("ladder") as session:
        row = session.get_one(RunRow, "ladder@20130101T000000Z")
        row.expired_at = world.airflow.time
    pass_days(world, 3)
    full(world)
    assert world.old.fingerprint not in rows(world)
    world.airflow.clear_run_by_hand(FIRST)
    world.airflow.run_until_quiet()
    assert pinned(world)[FIRST] == world.new.fingerprint
    assert set(world.airflow.states().values()) == {"success"}


# Sizes


def test_archives_are_counted_with_their_dataflow(world):
    size = sum(world.store.size(path) for path in stored(world))
    with world.ledger.transaction() as session:
        assert archive_bytes(session, ["ladder"]) == {"ladder": size}
        whole = bytes_at_rest(session, "ladder")
        assert bytes_at_rest(session) == whole
    with world.ledger.transaction("ladder") as session:
        for row in archives_of(session, "ladder"):
            session.delete(row)
    with world.ledger.transaction() as session:
        assert bytes_at_rest(session, "ladder") == whole - size
    (holder,) = held_by([], {CODE: {"ladder": size}})
    assert (holder.reason, holder.bytes) == (CODE, size)

"""Restoring a checkpoint: the results are those of a run without any fault."""

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    attempts_of_day,
    checkpoints,
    files_of,
    go_on,
    keep_savepoints,
    lineage_of,
    restore,
    rows_of,
    run_days,
    second_airflow,
    spoil,
    states_of,
)
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import keyed_state
from weir.errors import Misconfigured
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import PendingClearRow, RestoreRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.snapshots.savepoint import SavepointRequest, create, savepoints
from weir.state.files_in_use import live_state_files

HISTORY = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")


@pytest.fixture(scope="module")
def three_days():
    """Three days, each with a savepoint: a world of which each test has its own copy."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        run_days(world.airflow, 1, 2, 3)
        keep_savepoints(world, 1, 2, 3)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(three_days, tmp_path):
    return three_days.go_on(tmp_path)


def test_what_is_restored_is_gone_on_from_as_if_nothing_had_been_wrong(days):
    right = {day: states_of(days, day) for day in (1, 2, 3)}
    spoil(days, 2)
    assert states_of(days, 2) != right[2]
    assert states_of(days, 3) != right[3]
    done = restore(days, "day2")
    assert states_of(days, 2) == right[2]
    assert [each.is_restored for each in done.partitions] == [True] * 4
    assert done.later_runs == (f"ladder@{EPOCHS[2]}",)
    go_on(days)
    assert set(days.airflow.states().values()) == {"success"}
    assert {day: states_of(days, day) for day in (1, 2, 3)} == right


def test_restoring_what_is_there_changes_nothing_but_the_lineage(days):
    before = {day: [row.attempt for row in rows_of(days, day)] for day in (1, 2, 3)}
    lineage = lineage_of(days)
    done = restore(days, "day3")
    assert not any(each.is_restored for each in done.partitions)
    assert (done.pending_clears, done.stale, lineage_of(days)) == (0, (), lineage + 1)
    assert {day: [row.attempt for row in rows_of(days, day)] for day in (1, 2, 3)} == before


def test_a_restore_that_is_in_effect_is_not_done_again(days):
    spoil(days, 2)
    first = restore(days, "day2")
    lineage, there = lineage_of(days), states_of(days, 2)
    days.airflow.dag_run(4)
    days.airflow.step(days.airflow._ready())
    again = restore(days, "day2")
    assert (again.is_in_effect, again.lineage, again.fenced) == (True, first.lineage, ())
    assert (lineage_of(days), states_of(days, 2)) == (lineage, there)
    assert restore(days, "day2", is_dry=True).is_in_effect


@pytest.mark.parametrize("between", ["another restore", "other content", "other arguments"])
def test_a_restore_is_done_again_once_something_has_come_between(days, between):
    spoil(days, 2)
    first = restore(days, "day2")
    if between == "another restore":
        restore(days, "day3")
    if between == "other content":
        go_on(days)
        spoil(days, 2)
    again = restore(days, "day2", allows_non_restored=between == "other arguments")
    assert not again.is_in_effect
    assert lineage_of(days) == again.lineage > first.lineage


def test_a_fork_that_has_begun_is_not_begun_again(days):
    first = restore(days, "day2", fork="forked")
    run_days(second_airflow(days, aircraft("forked")), 3)
    before = states_of(days, 3, "forked")
    again = restore(days, "day2", fork="forked")
    assert (again.is_in_effect, again.lineage) == (True, first.lineage)
    assert states_of(days, 3, "forked") == before


def test_a_dry_run_says_what_would_be_done_and_does_nothing(days):
    spoil(days, 2)
    lineage, before = lineage_of(days), states_of(days, 2)
    planned = restore(days, "day2", is_dry=True)
    assert (lineage_of(days), states_of(days, 2)) == (lineage, before)
    done = restore(days, "day2")
    assert (planned.partitions, planned.stale, planned.later_runs) == (done.partitions, done.stale, done.later_runs)
    assert len(planned.stale) == 2


def test_epochs_behind_a_restored_one_are_owed_their_clears_one_after_the_other(days):
    run_days(days.airflow, 4)
    spoil(days, 2)
    restore(days, "day2")
    with days.ledger.transaction() as session:
        owed = list(session.scalars(select(PendingClearRow).where(PendingClearRow.settled_at.is_(None))))
    assert {row.run for row in owed} == {f"ladder@{EPOCHS[2]}"}
    before = attempts_of_day(days, 4)
    go_on(days)
    again = attempts_of_day(days, 4)[len(before) :]
    assert {row.region for row in again} >= {"weir_close"}
    assert min(row.began_at for row in again) > max(row.ended_at for row in rows_made(days, 3))


def rows_made(world, day):
    """The attempts that have made the current state of a day."""
    made = {row.attempt for row in rows_of(world, day)}
    return [row for row in attempts_of_day(world, day) if row.id in made]


@pytest.mark.parametrize("has_heartbeat", [False, True])
def test_an_attempt_of_the_older_lineage_cannot_commit(days, has_heartbeat):
    right = states_of(days, 3)
    spoil(days, 3)
    days.airflow.dag_run(4)
    seen = []

    def restored_meanwhile(key):
        if key.run_id.endswith("-04") and key.task_id.startswith("aircraft") and not seen:
            seen.append(restore(days, "day3"))
            if has_heartbeat:
                days.airflow.heartbeat(key)

    days.airflow.during = restored_meanwhile
    days.airflow.run_until_quiet()
    assert states_of(days, 3) == right
    assert len(seen[0].fenced) == 1
    assert set(days.airflow.states().values()) == {"success"}
    fenced = [row for row in attempts_of_day(days, 4) if row.id in seen[0].fenced]
    assert [(row.state, row.lineage < lineage_of(days)) for row in fenced] == [("retrying", True)]
    assert all(row.attempt not in seen[0].fenced for row in rows_of(days, 4))


def test_a_restored_state_is_checkpointed_again_and_stays(days):
    spoil(days, 3)
    restore(days, "day3")
    run_days(days.airflow, 4)
    days.airflow.release("ladder")
    assert [row.state for row in rows_of(days, 3)] == ["finished", "finished"]
    assert EPOCHS[3] in checkpoints(days).values()


def test_a_clear_of_the_restored_epoch_computes_it_again_from_the_one_before(days):
    right = states_of(days, 3)
    spoil(days, 2)
    restore(days, "day2")
    go_on(days)
    days.airflow.clear_run_by_hand("scheduled__2013-01-02")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert states_of(days, 3) == right


def test_what_was_not_restored_of_a_region_follows_its_inputs(days):
    """The state of a restored epoch is given; what the same task publishes was made from what it had read."""
    spoil(days, 2)
    restore(days, "day2")
    go_on(days)
    before = [row.attempt for row in rows_of(days, 2, "known")]
    days.content["flights"] = "other"
    days.airflow.clear_by_hand("scheduled__2013-01-02", "flights")
    days.airflow.run_until_quiet()
    assert not {*before}.intersection(row.attempt for row in rows_of(days, 2, "known"))
    assert set(days.airflow.states().values()) == {"success"}


@pytest.mark.parametrize("name", ["17", "nothing"])
def test_what_does_not_exist_is_refused_with_what_there_is(days, name):
    with pytest.raises(Misconfigured, check=of_kind("snapshots.number_unknown", name=name)):
        restore(days, name)


def test_a_checkpoint_that_misses_a_file_is_refused_before_anything_is_changed(days):
    number = next(number for number, epoch in checkpoints(days).items() if epoch == EPOCHS[1])
    lineage, before = lineage_of(days), states_of(days, 2)
    days.store.delete(files_of(days, 2)[-1].path)
    with pytest.raises(Misconfigured, check=of_kind("snapshots.not_whole")):
        restore(days, number)
    assert (lineage_of(days), states_of(days, 2)) == (lineage, before)


def test_a_state_that_the_present_dataflow_has_not_is_refused_unless_it_may_be_left_out(days):
    restore(days, "day3", allows_non_restored=True)
    days.airflow.deploy(aircraft(states=(HISTORY,), retained_checkpoints=9))
    run_days(days.airflow, 4)
    assert set(days.airflow.states().values()) == {"success"}
    lineage = lineage_of(days)
    with pytest.raises(Misconfigured, check=of_kind("dataflow.state_vanished")):
        restore(days, "day2")
    assert lineage_of(days) == lineage
    spoil(days, 2)
    right = states_of(days, 4)
    restore(days, "day2", allows_non_restored=True)
    go_on(days)
    assert set(days.airflow.states().values()) == {"success"}
    assert states_of(days, 4) != right


def test_a_run_that_was_freed_of_its_record_is_as_its_checkpoint_has_it_again(days):
    right = {day: states_of(days, day) for day in (2, 3)}
    number = next(number for number, epoch in checkpoints(days).items() if epoch == EPOCHS[1])
    bytes_of_lists = sum(row.bytes for row in rows_of(days, 2, "offsets"))
    adopt(days.services, f"ladder@{EPOCHS[1]}")
    assert states_of(days, 2) == {}
    done = restore(days, number)
    assert (done.is_repinned, done.stale, done.copied_bytes) == (True, (), bytes_of_lists)
    run_days(days.airflow, 4)
    assert {day: states_of(days, day) for day in (2, 3)} == right
    assert set(days.airflow.states().values()) == {"success"}


# A fork


def test_a_fork_begins_with_what_the_origin_had_and_goes_its_own_way(days):
    run_days(days.airflow, 4)
    done = restore(days, "day2", fork="forked")
    assert (done.dataflow, done.epoch, done.later_runs) == ("forked", EPOCHS[1], ())
    fork = second_airflow(days, aircraft("forked"))
    run_days(fork, 3, 4)
    assert set(fork.states().values()) == {"success"}
    for day in (2, 3, 4):
        assert states_of(days, day, "forked") == states_of(days, day)
    days.content["aircraft"] = "other"
    run_days(fork, 5)
    del days.content["aircraft"]
    run_days(days.airflow, 5)
    assert states_of(days, 5, "forked") != states_of(days, 5)


def test_a_fork_needs_its_origin_until_its_first_checkpoint(days):
    restore(days, "day2", fork="forked")
    assert pins(days) == [None]
    fork = second_airflow(days, aircraft("forked"))
    run_days(fork, 3)
    assert pins(days) != [None]
    for row in rows_of(days, 3, dataflow="forked"):
        assert {file.folder.split("/")[0] for file in files_at_row(days, row)} == {"forked"}
    assert {row.state for row in rows_of(days, 2, dataflow="forked")} == {"released"}
    days.store.delete_folder("ladder")
    run_days(fork, 4, 5)
    assert set(fork.states().values()) == {"success"}


def test_what_a_fork_needs_is_not_deleted_by_its_origin(days):
    restore(days, "day1", fork="forked")
    needed = {
        file.path for subtask in (0, 1) for file in files_at_row(days, rows_of(days, 1, dataflow="forked")[subtask])
    }
    days.airflow.deploy(aircraft(retained_checkpoints=1))
    spoil(days, 1)
    run_days(days.airflow, 4, 5)
    days.airflow.release("ladder")
    assert all(days.store.size(path) for path in needed)
    fork = second_airflow(days, aircraft("forked"))
    run_days(fork, 2)
    assert set(fork.states().values()) == {"success"}


def files_at_row(world, row):
    return from_json(Manifest, world.store.read(f"{row.folder}/manifest.json")).state.files


def pins(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(RestoreRow.unpinned_at).where(RestoreRow.dataflow == "forked")))


@pytest.mark.parametrize("day", [1, 2])
def test_a_run_that_is_not_behind_the_restored_epoch_is_refused(days, day):
    restore(days, "day2", fork="forked")
    fork = second_airflow(days, aircraft("forked"))
    fork.dag_run(day)
    fork.run_until_quiet()
    assert {task.state for task in fork.tasks.values() if task.state and not task.is_compaction} == {"failed"}
    notes = [note for task in fork.tasks.values() for note in task.notes]
    assert all(f"goes on from the end of epoch {EPOCHS[1]}" in note for note in notes)
    run_days(fork, 3)
    assert states_of(days, 3, "forked") == states_of(days, 3)


def test_a_fork_takes_no_dataflow_that_has_runs(days):
    restore(days, "day2", fork="forked")
    with pytest.raises(Misconfigured, check=of_kind("snapshots.fork_has_runs", fork="forked")):
        restore(days, "day3", fork="forked")
    with pytest.raises(Misconfigured, check=of_kind("snapshots.fork_of_itself")):
        restore(days, "day3", fork="ladder")


def test_a_fork_may_have_another_parallelism(days):
    restore(days, "day2", fork="forked")
    fork = second_airflow(days, aircraft("forked", parallelism=3))
    run_days(fork, 3, 4)
    assert set(fork.states().values()) == {"success"}
    assert len(rows_of(days, 4, dataflow="forked")) == 3


def test_a_state_may_be_left_out_only_where_it_was_said(days):
    restore(days, "day2", fork="forked")
    fork = second_airflow(days, aircraft("forked", states=(HISTORY,)))
    fork.dag_run(3)
    fork.run_until_quiet()
    assert "failed" in fork.states().values()
    restore(days, "day2", fork="second", allows_non_restored=True)
    second = second_airflow(days, aircraft("second", states=(HISTORY,)))
    run_days(second, 3)
    assert set(second.states().values()) == {"success"}


# Killed on the way


class Dead(BaseException):
    """The process is gone: nothing more of it is done."""


class DyingStore:
    """Dies at its n-th write, and does nothing from then on."""

    def __init__(self, files, steps):
        self._files, self.steps = files, steps

    def __getattr__(self, name):
        known = getattr(self._files, name)
        if name not in ("create", "replace", "delete", "delete_folder"):
            return known

        def step(*args):
            if self.steps <= 0:
                raise Dead
            self.steps -= 1
            return known(*args)

        return step


@pytest.mark.parametrize(("steps", "fork"), [(0, None), (3, None), (5, None), (6, None), (1, "forked"), (4, "forked")])
def test_a_restore_that_is_killed_at_any_step_has_done_nothing_or_all(days, steps, fork):
    right = states_of(days, 2)
    spoil(days, 2)
    spoilt, lineage = states_of(days, 2), lineage_of(days)
    whole, days.store.files = days.store.files, DyingStore(days.store.files, steps)
    killed = False
    try:
        restore(days, "day2", fork=fork)
    except Dead:
        killed = True
    days.store.files = whole
    if killed:
        assert (states_of(days, 2), lineage_of(days)) == (spoilt, lineage)
        assert states_of(days, 2, "forked") == {}
        restore(days, "day2", fork=fork)
    assert states_of(days, 2, fork or "ladder") == right
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}


def test_a_rebuilt_ledger_has_nothing_of_a_restore_that_was_killed_while_it_wrote(days):
    """A part of it beside what it was to replace would be the state of no run."""
    spoil(days, 2)
    spoilt = states_of(days, 2)
    whole, days.store.files = days.store.files, DyingStore(days.store.files, 9)
    with pytest.raises(Dead):
        restore(days, "day2")
    days.store.files = whole
    days.lose_ledger()
    (built,) = rebuild(days.services)
    assert states_of(days, 2) == spoilt
    assert any("counts as not done" in note for run in built.runs for note in run.notes)


def test_a_restore_behind_which_a_process_dies_is_complete(days):
    right = states_of(days, 3)
    spoil(days, 2)
    restore(days, "day2")
    # No pending clear is delivered yet: the next task that begins delivers them.
    run_days(days.airflow, 4)
    assert states_of(days, 3) == right


# A rebuilt ledger


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_ledger_that_is_built_again_has_what_was_restored(days, is_lost):
    right = {day: states_of(days, day) for day in (1, 2, 3)}
    spoil(days, 2)
    restore(days, "day2")
    restore(days, "day2", fork="forked")
    go_on(days)
    if is_lost:
        days.lose_ledger()
    rebuild(days.services)
    assert {day: states_of(days, day) for day in (1, 2, 3)} == right
    assert states_of(days, 2, "forked") == right[2]
    assert set(pins(days)) == {None}
    run_days(days.airflow, 4)
    fork = second_airflow(days, aircraft("forked"))
    run_days(fork, 3, 4)
    assert {*days.airflow.states().values(), *fork.states().values()} == {"success"}
    assert states_of(days, 4, "forked") == states_of(days, 4)


def test_a_ledger_that_is_built_again_believes_what_was_made_after_a_restore(days):
    spoil(days, 2)
    restore(days, "day2")
    go_on(days)
    days.content["aircraft"] = "better"
    days.airflow.clear_run_by_hand("scheduled__2013-01-02")
    days.airflow.run_until_quiet()
    better = states_of(days, 2)
    days.lose_ledger()
    rebuild(days.services)
    assert states_of(days, 2) == better
    assert [each.name for each in savepoints(days.services)] == ["day1", "day2", "day3"]
    assert create(days.services, SavepointRequest("ladder", name="day4")).number > 6


def test_on_postgresql_it_is_the_same(tmp_path, empty_postgres_ledger):
    (tmp_path / "store").mkdir()
    world = World(tmp_path, aircraft(), empty_postgres_ledger)
    run_days(world.airflow, 1, 2)
    right = {day: states_of(world, day) for day in (1, 2)}
    keep_savepoints(world, 1)
    spoil(world, 1)
    restore(world, "day1")
    restore(world, "day1", fork="forked")
    go_on(world)
    fork = second_airflow(world, aircraft("forked"))
    run_days(fork, 2)
    assert {day: states_of(world, day) for day in (1, 2)} == right
    assert states_of(world, 2, "forked") == right[2]


def test_a_fork_whose_beginning_is_gone_says_so(days):
    restore(days, "1", fork="forked")
    for file in files_of(days, 1, dataflow="forked"):
        days.store.delete(file.path)
    fork = second_airflow(days, aircraft("forked"))
    fork.dag_run(2)
    fork.run_until_quiet()
    failed = [task for task in fork.tasks.values() if task.state == "failed"]
    assert failed
    assert all("has begun with" in note for task in failed for note in task.notes)


@pytest.mark.parametrize("fork", [None, "forked"])
def test_a_restored_manifest_that_is_damaged_holds_up_no_deletion(days, fork):
    """Its partition is lost, as one without a manifest is; all else is in use as before."""
    restore(days, "1", fork=fork)
    path = f"{rows_of(days, 1, dataflow=fork or 'ladder')[0].folder}/manifest.json"
    data = days.store.read(path)
    days.store.delete(path)
    days.store.create(path, data[:50])
    others = {file.path for subtask in (0, 1) for file in files_of(days, 3, subtask)}
    assert others <= live_state_files(days.services, "ladder")

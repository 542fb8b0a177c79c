"""Compaction beside the run: what it merges, which attempts resume from it, and that nothing depends on it."""

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.weir import keeping
from tests.weir.keeping import epoch, manifest_of, run_days

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import CompactionRow, ResultRow
from weir.ledger.results import transition
from weir.state.compaction import CompactionRequest, enter_compacted, plan_compaction
from weir.state.compactions import compacted_files, present_compactions
from weir.state.file_rules import sorted_runs
from weir.testing.fakes.airflow import Killed

TASK = "weir_compact-aircraft-known"


def aircraft(parallelism=1, runs=3, **more):
    return keeping.aircraft(parallelism, {"runs": runs, **more})


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


def compactions(world):
    with world.ledger.transaction() as session:
        rows = list(session.scalars(select(CompactionRow).order_by(CompactionRow.run, CompactionRow.subtask)))
    return [(row.run[-16:], row.subtask) for row in rows]


def present(world, day, subtask=0):
    manifest = manifest_of(world, day, subtask)
    return compacted_files(manifest, present_compactions(world.services, {manifest.attempt}))


def digests(world, *days):
    return [str(manifest_of(world, day).digest) for day in days]


def test_runs_are_merged_behind_the_epoch_that_makes_them_too_many(days):
    days.run_first(1, 2, 3, 4)
    assert set(days.airflow.states().values()) == {"success"}
    assert compactions(days) == [(epoch(4), 0)]
    assert len(manifest_of(days, 4).state.files) == 4
    assert sorted_runs(present(days, 4)) <= 3


def test_the_next_epoch_goes_on_from_what_was_compacted(days):
    days.run_first(1, 2, 3, 4, 5)
    merged = present(days, 4)
    assert "/c" in merged[-1].path.rpartition("/m")[0] or any("/m0/" in each.path for each in merged)
    assert manifest_of(days, 5).state.files[:-1] == merged


def test_states_are_the_same_with_and_without_compaction(days, tmp_path):
    days.run_first(*range(1, 7))
    with_it = digests(days, *range(1, 7))
    assert compactions(days)
    days.airflow.deploy(aircraft(runs=100))
    days.airflow.clear_run_by_hand("scheduled__2013-01-04")
    days.airflow.run_until_quiet()
    assert digests(days, *range(1, 7)) == with_it


def test_no_task_waits_for_a_compaction(days):
    days.run_first(1, 2, 3)
    days.airflow.dag_run(4)
    run = "scheduled__2013-01-04"
    task = days.airflow.task(run, TASK)
    task.state = "running"  # and never ends
    days.airflow.run_until_quiet()
    assert days.airflow.task(run, "weir_close").state == "success"
    assert compactions(days) == []


def test_a_compaction_that_comes_too_late_for_the_next_epoch_is_made_use_of_by_the_one_after(days):
    days.run_first(1, 2, 3)
    days.airflow.dag_run(4)
    late = days.airflow.task("scheduled__2013-01-04", TASK)
    late.state = "running"
    days.airflow.run_until_quiet()
    days.airflow.dag_run(5)
    own = days.airflow.task("scheduled__2013-01-05", TASK)
    own.state = "running"
    days.airflow.run_until_quiet()
    late.state = own.state = None
    assert len(manifest_of(days, 5).state.files) == 5
    days.airflow.run_until_quiet()
    assert compactions(days) == [(epoch(4), 0), (epoch(5), 0)]
    assert {each.path for each in present(days, 4)} & {each.path for each in present(days, 5)}
    assert sorted_runs(present(days, 5)) <= 3


def test_a_compaction_is_not_entered_if_the_files_it_takes_over_went_out_of_use_while_it_ran(days):
    """Nothing names the files of the fourth day's compaction any more once its state is released: they are deleted."""
    days.run_first(1, 2, 3)
    for day in (4, 5):
        days.airflow.dag_run(day)
        days.airflow.task(f"scheduled__2013-01-{day:02d}", TASK).state = "running"
        days.airflow.run_until_quiet()
    days.airflow.task("scheduled__2013-01-04", TASK).state = None
    days.airflow.step(days.airflow.task("scheduled__2013-01-04", TASK))
    asked = CompactionRequest("ladder", epoch(5), "scheduled__2013-01-05", "aircraft-known")
    planned = plan_compaction(days.services, asked)
    assert (planned.job, len(planned.parts[0].used)) == (None, 2)
    with days.ledger.transaction("ladder") as session:
        of_fourth = select(ResultRow).where(ResultRow.run == f"ladder@{epoch(4)}", ResultRow.stage == "history")
        transition(session, session.scalar(of_fourth), PartitionState.RELEASED, "meanwhile", days.airflow.time)
    (said,) = enter_compacted(days.services, planned, None)
    assert "not entered" in said
    assert compactions(days) == [(epoch(4), 0)]


def test_a_compaction_that_dies_is_tried_again_and_counts_once(days):
    deaths = []

    def die_once(key):
        if key.task_id == TASK and not deaths:
            deaths.append(key)
            raise Killed

    run_days(days, 1, 2, 3)
    days.airflow.during = die_once
    run_days(days, 4)
    assert deaths
    assert compactions(days) == [(epoch(4), 0)]
    days.airflow.clear_by_hand("scheduled__2013-01-04", TASK)
    days.airflow.run_until_quiet()
    assert compactions(days) == [(epoch(4), 0)]
    assert set(days.airflow.states().values()) == {"success"}


def test_where_a_merged_file_is_gone_all_go_on_from_what_was_committed(days):
    days.run_first(1, 2, 3, 4)
    merged = next(each for each in present(days, 4) if "/m0/" in each.path)
    days.store.delete(merged.path)
    run_days(days, 5)
    assert set(days.airflow.states().values()) == {"success"}
    assert manifest_of(days, 5).state.files[:-1] == manifest_of(days, 4).state.files


def test_where_a_merged_file_goes_while_it_is_read_the_next_try_does_without(days):
    days.run_first(1, 2, 3, 4)
    merged = next(each for each in present(days, 4) if "/m0/" in each.path)

    begin = days.airflow.coordinator.begin

    def begin_and_lose(request, clearer):
        begun = begin(request, clearer)
        if request.key.task_id == "aircraft-known":
            days.store.delete(merged.path)
            days.airflow.coordinator.begin = begin
        return begun

    days.airflow.coordinator.begin = begin_and_lose
    run_days(days, 5)
    task = days.airflow.task("scheduled__2013-01-05", "aircraft-known")
    assert (task.state, len(task.runs)) == ("success", 2)
    assert manifest_of(days, 5).state.files[:-1] == manifest_of(days, 4).state.files


def test_where_a_merged_file_goes_before_what_was_read_is_committed_the_next_try_does_without(days):
    days.run_first(1, 2, 3, 4)
    merged = next(each for each in present(days, 4) if "/m0/" in each.path)
    commit = days.airflow.coordinator.commit

    def lose_and_commit(begun, *more):
        if begun.states:
            days.airflow.coordinator.commit = commit
            days.store.delete(merged.path)
        return commit(begun, *more)

    days.airflow.coordinator.commit = lose_and_commit
    run_days(days, 5)
    task = days.airflow.task("scheduled__2013-01-05", "aircraft-known")
    assert (task.state, len(task.runs)) == ("success", 2)
    assert manifest_of(days, 5).state.files[:-1] == manifest_of(days, 4).state.files


def test_a_compaction_whose_input_is_gone_ends_with_a_note_and_its_run_is_green(days):
    days.run_first(1, 2, 3)
    days.airflow.dag_run(4)
    task = days.airflow.task("scheduled__2013-01-04", TASK)
    task.state = "running"
    days.airflow.run_until_quiet()
    days.store.delete(manifest_of(days, 1).state.files[0].path)
    task.state = None
    days.airflow.run_until_quiet()
    assert (task.state, task.runs) == ("success", [1])
    (note,) = task.notes
    assert "not compacted: " in note
    assert days.airflow.state_of("scheduled__2013-01-04") == "success"


def test_the_compaction_of_a_replaced_state_is_not_read(days):
    days.run_first(1, 2, 3, 4)
    before = present(days, 4)
    days.content["aircraft"] = "other"
    days.airflow.clear_by_hand("scheduled__2013-01-04", "aircraft-known")
    days.airflow.run_until_quiet()
    run_days(days, 5)
    assert present(days, 4) != before
    own = [each for each in before if each.epoch == epoch(4)]
    assert not {each.path for each in own} & {each.path for each in manifest_of(days, 5).state.files}


def test_each_subtask_is_compacted_on_its_own_also_after_a_change_of_parallelism(days):
    days.run_first(1, 2, 3)
    days.airflow.deploy(aircraft(parallelism=3))
    run_days(days, 4, 5)
    assert set(days.airflow.states().values()) == {"success"}
    assert {subtask for run, subtask in compactions(days) if run == epoch(4)} == {0, 1, 2}
    for subtask, groups in enumerate([(0, 42), (43, 85), (86, 127)]):
        files = manifest_of(days, 5, subtask).state.files
        assert sorted_runs(files) <= 4
        assert all(groups[0] <= each.key_groups[0] and each.key_groups[1] <= groups[1] for each in files)


def test_a_state_that_is_written_whole_has_no_task_that_compacts_it(world):
    world.airflow.deploy(aircraft(incremental=False))
    run_days(world, 1)
    assert not [key for key in world.airflow.tasks if key.task_id == TASK]
    assert replace(manifest_of(world, 1).state, files=()).changed == 1


@pytest.mark.parametrize("day", [4, 5])
def test_a_damaged_manifest_fails_no_compaction(days, day):
    """That of the state is found by who reads it, and that of the day before is not needed."""
    days.run_first(1, 2, 3, 4, 5)
    with days.ledger.transaction("ladder") as session:
        for row in session.scalars(select(CompactionRow).where(CompactionRow.run == f"ladder@{epoch(5)}")):
            session.delete(row)
    with days.ledger.transaction() as session:
        of_day = select(ResultRow.folder).where(ResultRow.run == f"ladder@{epoch(day)}", ResultRow.stage == "history")
        path = f"{session.scalar(of_day)}/manifest.json"
    data = days.store.read(path)
    days.store.delete(path)
    days.store.create(path, data[:50])
    asked = CompactionRequest("ladder", epoch(5), "scheduled__2013-01-05", "aircraft-known")
    assert plan_compaction(days.services, asked) is None

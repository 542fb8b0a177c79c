"""Lost files of keyed state: what makes them again, how far back that goes, and that the plan says so first."""

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.keeping import aircraft, epoch, manifest_of, run_days

from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import AttemptRow, ResultEventRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.questions import Question, apply_answer, ask
from weir.recovery.rules.plan import StepKind
from weir.state.files_in_use import live_state_files
from weir.store.catalogue import published


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


def state_of(world, day, subtask=0):
    """The files of keyed state at the end of a day."""
    return manifest_of(world, day, subtask).state.files


def lose(world, day, subtask=0):
    """The file of what a day has changed is gone; answers its path."""
    (file,) = [each for each in state_of(world, day, subtask) if each.epoch == epoch(day)]
    world.store.delete(file.path)
    return file.path


def flip(world, day):
    """A bit of the file of what a day has changed is another one."""
    (file,) = [each for each in state_of(world, day) if each.epoch == epoch(day)]
    data = world.store.read(file.path)
    world.store.replace(file.path, bytes([data[0] ^ 1]) + data[1:])
    return file.path


def digests(world, *days):
    found = [published(world.store, "ladder", "known", epoch(day)) for day in days]
    return [None if each is None else [part.digest for part in each.partitions] for each in found]


def executed(world):
    return {
        f"{key.run_id[-2:]}/{key.task_id}[{max(key.map_index, 0)}]": len(set(task.runs))
        for key, task in world.airflow.tasks.items()
    }


def again(world, before):
    """Which task instances have run again since `before`, and how often."""
    after = executed(world)
    return {task: after[task] - before.get(task, 0) for task in after if after[task] != before.get(task, 0)}


def checkpoints(world):
    """The retained checkpoints by day."""
    with world.ledger.transaction() as session:
        numbers = {row.epoch: row.number for row in retained_checkpoints(session, "ladder")}
    return {
        int(key[6:8]): from_json(Checkpoint, world.store.read(checkpoint_path("ladder", number)))
        for key, number in numbers.items()
    }


def is_well(world):
    """All is green, valid and there, and each retained checkpoint is the state of its epoch, with all of its files."""
    with world.ledger.transaction() as session:
        for row in session.scalars(select(RunRow)):
            run = run_by_id(session, row.id)
            state = run_state(session, run)
            assert all(state.is_done(each) for region in state.region_ids() for each in state.outputs(region)), row.id
            assert row.closed_at is not None, row.id
    named = set()
    for day, found in checkpoints(world).items():
        parts = [part for kept in found.states for part in kept.partitions]
        assert [part.files for part in parts] == [state_of(world, day, part.subtask) for part in parts]
        named |= found.files.keys()
    assert all(world.store.size(path) for path in named)
    assert named <= live_state_files(world.services, "ladder")
    return set(world.airflow.states().values()) == {"success"}


def planned(world, day):
    """The regions that a plan of that day's run says will run again, as `again` names them."""
    plan = ask(world.services, Question(f"ladder@{epoch(day)}")).plan
    assert plan.impossible == ""
    steps = plan.of(StepKind.RERUN)
    return {f"{(step.region.run or plan.run)[-10:-8]}/{step.region.name}[{step.region.subtask}]" for step in steps}


def short(tasks):
    """Names of regions, whatever their sinks."""
    return {task.replace("aircraft-known", "aircraft") for task in tasks}


def test_a_file_of_the_newest_epoch_is_made_again_by_that_epoch_alone(days):
    days.run_first(1, 2, 3)
    before, published_before, old = executed(days), digests(days, 1, 2, 3), checkpoints(days)
    lose(days, 3)
    assert short(planned(days, 3)) == {"03/aircraft[0]"}
    run_days(days, 4)
    ran = again(days, before)
    assert {task: tries for task, tries in ran.items() if not task.startswith("04/")} == {"03/aircraft-known[0]": 1}
    assert is_well(days)
    assert digests(days, 1, 2, 3) == published_before
    assert checkpoints(days)[3].number > old[3].number
    assert checkpoints(days)[2] == old[2]


def test_a_file_that_all_later_epochs_use_has_them_all_made_again_in_order(days):
    days.run_first(1, 2, 3)
    before, old = executed(days), checkpoints(days)
    lost = lose(days, 1)
    wanted = {"01/aircraft[0]", "02/aircraft[0]", "03/aircraft[0]"}
    assert short(planned(days, 3)) == wanted
    run_days(days, 4)
    ran = again(days, before)
    assert {task: tries for task, tries in short_of(ran).items() if not task.startswith("04/")} == dict.fromkeys(
        wanted, 1
    )
    assert is_well(days)
    assert all(lost not in found.files for found in checkpoints(days).values())
    assert {day: found.number > old[day].number for day, found in checkpoints(days).items() if day in old} == {
        2: True,
        3: True,
    }


def short_of(ran):
    return {task.replace("aircraft-known", "aircraft"): tries for task, tries in ran.items()}


def test_only_the_subtask_that_has_lost_a_file_runs_again(days):
    days.airflow.deploy(aircraft(parallelism=3))
    run_days(days, 1, 2)
    before = executed(days)
    lose(days, 1, subtask=1)
    assert short(planned(days, 2)) == {"01/aircraft[1]", "02/aircraft[1]"}
    run_days(days, 3)
    ran = short_of(again(days, before))
    assert {task for task in ran if not task.startswith("03/")} == {"01/aircraft[1]", "02/aircraft[1]"}
    assert is_well(days)


def test_what_the_epoch_was_made_of_is_made_again_where_that_is_lost_too(days):
    days.run_first(1, 2)
    before = executed(days)
    lose(days, 2)
    with days.ledger.transaction() as session:
        query = select(ResultRow.folder).where(ResultRow.run == f"ladder@{epoch(2)}", ResultRow.stage == "flights")
        days.store.delete_folder(session.scalar(query))
    assert short(planned(days, 2)) == {"02/flights[0]", "02/aircraft[0]"}
    run_days(days, 3)
    assert {task for task in short_of(again(days, before)) if task[:2] != "03"} == {"02/flights[0]", "02/aircraft[0]"}
    assert is_well(days)


def test_scrubbing_finds_a_bit_and_has_it_made_again_before_anybody_reads_it(days):
    days.run_first(1, 2)
    before, published_before = executed(days), digests(days, 1, 2)
    flip(days, 2)
    services = replace(days.services, retention=replace(days.services.retention, scrub_share=1.0))
    found = scrub_dataflow(services, days.airflow, "ladder")
    assert [(each.stage, each.run[-16:]) for each in found.bad] == [("history", epoch(2))]
    days.airflow.run_until_quiet()
    days.airflow.release("ladder")
    assert short_of(again(days, before)) == {"02/aircraft[0]": 1}
    assert is_well(days)
    assert digests(days, 1, 2) == published_before


def test_a_file_whose_epoch_has_no_state_to_go_on_from_any_more_cannot_be_made_again(days):
    days.run_first(1, 2, 3, 4, 5, 6)
    before, kept = executed(days), checkpoints(days)
    assert sorted(kept) == [4, 5, 6]
    lose_of_epoch(days, 6, 2)
    plan = ask(days.services, Question(f"ladder@{epoch(6)}")).plan
    assert f"The oldest kept checkpoint is {kept[4].number}, of epoch {epoch(4)}" in plan.impossible
    assert "there is no savepoint" in plan.impossible
    with pytest.raises(Misconfigured, check=of_kind("recovery.input_is_lost_for_good")):
        apply_answer(days.services, ask(days.services, Question(f"ladder@{epoch(6)}")))
    days.airflow.dag_run(7)
    days.airflow.run_until_quiet()
    failed = [task for task in days.airflow.tasks.values() if task.state == "failed"]
    assert [(task.key.run_id[-2:], task.key.task_id) for task in failed] == [("07", "aircraft-known")]
    assert "The oldest kept checkpoint is" in failed[0].notes[-1]
    assert {task for task in again(days, before) if not task.startswith("07/")} == set()


def lose_of_epoch(world, day, changed_on):
    """Of a day's state the file is gone that has what was changed on another one; answers its path."""
    (file,) = [each for each in state_of(world, day) if each.epoch == epoch(changed_on)]
    world.store.delete(file.path)
    return file.path


def test_a_file_of_a_retained_epoch_is_made_from_the_oldest_checkpoint_that_does_not_need_it(days):
    days.run_first(1, 2, 3, 4, 5, 6)
    before, old = executed(days), checkpoints(days)
    lose_of_epoch(days, 6, 5)
    assert short(planned(days, 6)) == {"05/aircraft[0]", "06/aircraft[0]"}
    run_days(days, 7)
    assert {task for task in short_of(again(days, before)) if task[:2] != "07"} == {"05/aircraft[0]", "06/aircraft[0]"}
    assert is_well(days)
    assert {day: found.number > old[day].number for day, found in checkpoints(days).items() if day in old} == {
        5: True,
        6: True,
    }


def test_a_file_that_is_back_is_used_as_it_was(days):
    days.run_first(1, 2)
    (file,) = state_of(days, 1)
    data = days.store.read(file.path)
    days.store.delete(file.path)
    assert short(planned(days, 2)) == {"01/aircraft[0]", "02/aircraft[0]"}
    days.store.create(file.path, data)
    before = executed(days)
    assert planned(days, 2) == set()
    run_days(days, 3)
    assert {task for task in again(days, before) if not task.startswith("03/")} == set()
    assert is_well(days)


def test_every_retained_checkpoint_that_named_it_is_complete_once_more_and_no_number_comes_twice(days):
    days.run_first(1, 2, 3)
    numbers = {found.number for found in checkpoints(days).values()}
    lose(days, 2)
    days.airflow.clear_by_hand("scheduled__2013-01-03", "aircraft-known")
    days.airflow.run_until_quiet()
    days.airflow.release("ladder")
    found = checkpoints(days)
    assert {day: each.number in numbers for day, each in found.items()} == {1: True, 2: False, 3: False}
    with days.ledger.transaction() as session:
        tries = session.scalars(select(AttemptRow.run).where(AttemptRow.region == "aircraft-known")).all()
    assert len(tries) == 5 + 1  # the third day's own try found it, and its next one read what was recomputed
    assert is_well(days)


@pytest.mark.parametrize("is_harmed", [False, True])
def test_a_file_that_an_attempt_reads_stays_though_its_result_was_made_again_meanwhile(days, is_harmed):
    """Also if the manifest that names it is gone by now: who reads it has the list of files since it began."""
    days.run_first(1)
    first, second = "scheduled__2013-01-01", days.airflow.dag_run(2)
    (read,) = state_of(days, 1)

    def make_the_first_day_again(key):
        if key.run_id == second and key.task_id == "aircraft-known":
            days.airflow.during = lambda _key: None
            if is_harmed:
                days.store.delete(f"{read.path.rpartition('/')[0]}/manifest.json")
            for task in ("aircraft-known", "weir_close"):
                days.airflow.clear_by_hand(first, task)
                days.airflow.step(days.airflow.task(first, task))
            days.airflow.release("ladder")

    days.airflow.during = make_the_first_day_again
    for task in ("flights", "aircraft-known"):
        days.airflow.step(days.airflow.task(second, task))
    assert state_of(days, 1)[0].path != read.path
    assert state_of(days, 2)[0].path == read.path
    assert days.store.size(read.path)
    days.airflow.run_until_quiet()
    assert executed(days)["02/aircraft-known[0]"] == 1
    assert is_well(days)


def test_a_file_that_goes_while_an_attempt_goes_on_from_it_is_not_named_again(days):
    days.run_first(1)
    second = days.airflow.dag_run(2)
    (lost,) = state_of(days, 1)
    commit = days.airflow.coordinator.commit

    def lose_and_commit(begun, *more):
        if begun.run.id == f"ladder@{epoch(2)}" and begun.states:
            days.airflow.coordinator.commit = commit
            days.store.delete(lost.path)
        return commit(begun, *more)

    days.airflow.coordinator.commit = lose_and_commit
    days.airflow.run_until_quiet()
    days.airflow.release("ladder")
    with days.ledger.transaction() as session:
        query = select(ResultRow.run).join(ResultEventRow, ResultEventRow.result == ResultRow.id)
        assert session.scalars(query.where(ResultEventRow.state == "lost")).all() == [f"ladder@{epoch(1)}"]
    assert len(days.airflow.task(second, "aircraft-known").runs) == 2
    assert is_well(days)

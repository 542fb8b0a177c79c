"""Parallelism that changes between runs, during a run, and before an old run is cleared."""

from dataclasses import replace

import pytest
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow, sink, source
from weir.dataflow.stage import StageKind
from weir.errors import Fenced, Misconfigured
from weir.formats.codec import from_json
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import PendingClearRow, ResultRow, RunRow
from weir.ledger.runs import newest_pinned
from weir.recovery.adopt import adopt
from weir.recovery.standing import Asked, clear_stopped, standing_of
from weir.store.catalogue import published

JOINED = (("joined", 0), ("joined", 1))


def new_world(folder, parallelism):
    (folder / "store").mkdir(parents=True)
    return World(folder, ladder(parallelism))


@pytest.fixture
def faultless(tmp_path):
    """What a run without faults publishes at some parallelism of the source."""

    def outcome_at(parallelism):
        world = new_world(tmp_path / f"calm-{parallelism}", parallelism)
        world.run_first(1)
        return outcome(world)

    return outcome_at


@pytest.fixture
def world(tmp_path):
    return new_world(tmp_path, 3)


def outcome(world, day=1):
    found = published(world.store, "ladder", "delays", f"201301{day:02d}T000000Z")
    return [(part.subtask, part.digest) for part in found.partitions]


def lose(world, stage, subtask):
    with world.ledger.transaction() as session:
        [folder] = [
            row.folder
            for row in session.query(ResultRow).filter_by(stage=stage, subtask=subtask, is_current=True, run=RUN)
        ]
    world.store.delete_folder(folder)


RUN = "ladder@20130101T000000Z"


def run_green(world, day=1):
    (run,) = world.run_days(day)
    assert {task.state for task in of_run(world, run)} <= {"success", "removed"}
    return run


def of_run(world, run):
    return [task for key, task in world.airflow.tasks.items() if key.run_id == run]


def test_each_run_is_computed_with_its_own_parallelism(world, faultless):
    for day, parallelism in ((1, 3), (2, 4), (3, 2)):
        world.airflow.deploy(ladder(parallelism))
        run_green(world, day)
        assert outcome(world, day) == faultless(parallelism)


def test_a_run_goes_on_with_the_parallelism_it_began_with(world, faultless):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "raw-clean", 0))
    world.airflow.deploy(ladder(4))
    world.airflow.run_until_quiet()
    fourth = world.airflow.task(run, "raw-clean", 3)
    assert (fourth.state, fourth.runs) == ("success", [1])
    assert "weir run adopt ladder@20130101T000000Z" in fourth.notes[-1]
    assert outcome(world) == faultless(3)


def test_a_run_that_needs_a_task_instance_that_is_gone_says_what_to_type(world, faultless):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "raw-clean", 0))
    world.airflow.deploy(ladder(2))
    world.airflow.run_until_quiet()
    for key in JOINED:
        joined = world.airflow.task(run, *key)
        assert joined.state == "failed"
        assert "Misconfigured" in joined.notes[-1]
        assert "raw-clean[2]" in joined.notes[-1]
        assert f"weir run adopt {RUN}" in joined.notes[-1]

    adopt(world.services, RUN)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert outcome(world) == faultless(2)


def test_a_run_that_has_all_it_needs_does_not_miss_a_task_instance_that_is_gone(world, faultless):
    run = world.airflow.dag_run()
    for index in range(3):
        world.airflow.step(world.airflow.task(run, "raw-clean", index))
    world.airflow.deploy(ladder(2))
    world.airflow.run_until_quiet()
    assert outcome(world) == faultless(3)


@pytest.mark.parametrize("parallelism", [4, 2])
def test_an_old_run_heals_with_the_parallelism_it_began_with(world, faultless, parallelism):
    run = run_green(world)
    world.airflow.deploy(ladder(parallelism))
    lose(world, "clean", 1)
    for key in JOINED:
        world.airflow.clear_by_hand(run, *key)
    world.airflow.run_until_quiet()
    assert world.airflow.executed(run)["raw-clean[1]"] == 2
    assert outcome(world) == faultless(3)


def test_an_old_run_whose_lost_result_nobody_can_make_any_more_says_what_to_type(world, faultless):
    run = run_green(world)
    world.airflow.deploy(ladder(2))
    lose(world, "clean", 2)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.run_until_quiet()
    joined = world.airflow.task(run, "joined", 0)
    assert joined.state == "failed"
    assert f"weir run adopt {RUN}" in joined.notes[-1]
    assert outcome(world) == faultless(3)


def test_another_asset_of_a_source_is_no_change(world, faultless):
    run = run_green(world)
    before = world.airflow.executed(run)
    renamed = [replace(each, asset="calls") if each.kind is StageKind.SOURCE else each for each in ladder(3).stages]
    world.airflow.deploy(replace(ladder(3), stages=renamed))
    lose(world, "clean", 1)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.run_until_quiet()
    again = {name: runs - before[name] for name, runs in world.airflow.executed(run).items() if runs > before[name]}
    assert again.keys() == {"raw-clean[1]", "joined[0]"}
    assert outcome(world) == faultless(3)


@pytest.mark.parametrize("parallelism", [4, 2, 1])
def test_an_adopted_run_becomes_one_of_the_present_dataflow(world, faultless, parallelism):
    run = run_green(world)
    world.airflow.deploy(ladder(parallelism))
    adoption = adopt(world.services, run)
    assert adoption.run == RUN
    assert adoption.results == 10
    assert "clear the whole run scheduled__2013-01-01" in str(adoption)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert {task.state for task in of_run(world, run)} <= {"success", "removed"}
    assert outcome(world) == faultless(parallelism)


def test_a_run_is_adopted_there_and_back_again(world, faultless):
    run = run_green(world)
    for parallelism in (4, 2, 3):
        world.airflow.deploy(ladder(parallelism))
        adopt(world.services, run)
        world.airflow.clear_run_by_hand(run)
        world.airflow.run_until_quiet()
        assert outcome(world) == faultless(parallelism)


def test_an_adopted_run_of_which_only_a_consumer_is_cleared_makes_again_what_it_needs(world, faultless):
    run = run_green(world)
    world.airflow.deploy(ladder(4))
    adopt(world.services, RUN)
    world.airflow.clear_by_hand(run, "weir_close")
    world.airflow.run_until_quiet()
    assert {task.state for task in of_run(world, run)} == {"success"}
    assert outcome(world) == faultless(4)


def test_an_attempt_that_runs_while_its_run_is_adopted_cannot_commit(world):
    run = world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    task.try_number, task.state = 1, "running"
    begun = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    adoption = adopt(world.services, RUN)
    assert adoption.fenced == (begun.attempt.id,)
    with pytest.raises(Fenced):
        world.airflow.coordinator.commit(begun, world.airflow.engine.run(begun.job), world.airflow)


def test_a_run_may_be_adopted_while_its_tasks_retry_wait_and_run(world, faultless):
    world.content["weather"] = "old"
    run = run_green(world)
    world.content["weather"] = "new"
    world.airflow.clear_by_hand(run, "weather")

    def adopt_once(key):
        if key.task_id == "joined":
            world.airflow.during = lambda _key: None
            world.airflow.deploy(ladder(4))
            adopt(world.services, RUN)

    world.airflow.during = adopt_once
    world.airflow.run_until_quiet()
    world.airflow.clear_run_by_hand(run)
    world.content.clear()
    world.airflow.run_until_quiet()
    assert {task.state for task in of_run(world, run)} == {"success"}
    assert outcome(world) == faultless(4)


def test_no_clear_of_the_old_topology_counts_as_a_repair(world):
    run = run_green(world)
    world.airflow.reachable = False
    world.content["weather"] = "new"
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.step(world.airflow.task(run, "weather"))
    assert adopt(world.services, RUN).owed == 2
    with world.ledger.transaction() as session:
        rows = session.query(PendingClearRow).all()
        assert all(row.is_void and row.settled_at is not None for row in rows)


def test_the_record_of_a_run_follows_its_pin(world):
    def record():
        return from_json(RunRecord, world.store.read("ladder/20130101T000000Z/_run.json"))

    run = run_green(world)
    first = record()
    assert (first.run, first.run_id, first.abandoned) == (RUN, run, ())
    assert Dataflow.from_json(first.pinned) == replace(ladder(3), failover="region")
    adopt(world.services, RUN)
    assert record().pinned is None
    world.airflow.deploy(ladder(4))
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert Dataflow.from_json(record().pinned) == replace(ladder(4), failover="region")
    assert len(record().abandoned) == 11
    assert record().created_at == first.created_at


def test_an_unknown_run_is_refused_with_those_that_are_known(world):
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        adopt(world.services, "nothing")
    run_green(world)
    with pytest.raises(
        Misconfigured,
        check=of_kind("ledger.run_unknown", said="it knows ladder@20130101T000000Z (scheduled__2013-01-01)"),
    ):
        adopt(world.services, "nothing")
    with world.ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).pinned is not None


def test_a_stage_that_was_not_mapped_before_becomes_so(tmp_path, faultless):
    world = new_world(tmp_path / "unmapped", 1)
    run = run_green(world)
    world.airflow.clear_by_hand(run, "raw-clean")
    world.airflow.run_until_quiet()
    world.airflow.deploy(ladder(3))
    adopt(world.services, RUN)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert {task.state for task in of_run(world, run)} == {"success", "removed"}
    assert outcome(world) == faultless(3)


def test_a_run_without_a_pin_does_not_hide_the_settings_of_the_dataflow(world):
    for day in (1, 2):
        run_green(world, day)
    adopt(world.services, "ladder@20130102T000000Z")
    with world.ledger.transaction() as session:
        assert newest_pinned(session, "ladder") == session.get_one(RunRow, RUN).pinned


# What is being made


def refusal(world, airflow=None):
    """Why the command, as it is advised, does not adopt the run; empty where it does."""
    try:
        adopt(world.services, RUN, interrupts=False, asked=Asked(airflow=airflow))
    except Misconfigured as error:
        return str(error)
    return ""


def test_what_a_task_of_a_run_makes_just_now_is_not_discarded_by_the_command_that_errors_advise(world, faultless):
    world.content["weather"] = "new"
    run, said = world.airflow.dag_run(), []

    def advised(key):
        if key.task_id == "joined":
            world.airflow.during = lambda _key: None
            said.append(refusal(world))

    world.airflow.during = advised
    world.airflow.run_until_quiet()
    assert "joined[0] (try 1) is running" in said[0]
    assert "--discard" in said[0]
    assert {task.state for task in of_run(world, run)} == {"success"}


def test_what_is_cleared_and_has_not_begun_again_is_not_discarded_either(world):
    run = run_green(world)
    lose(world, "clean", 1)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.step(world.airflow.task(run, "joined", 0))
    assert world.airflow.task(run, "raw-clean", 1).state is None
    assert "raw-clean[1] is about to run again" in refusal(world)
    world.airflow.run_until_quiet()
    assert refusal(world) == ""


def test_a_repair_that_airflow_has_no_task_for_does_not_keep_a_run_from_being_adopted(world):
    run = run_green(world)
    world.airflow.deploy(ladder(2))
    lose(world, "clean", 2)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.run_until_quiet()
    assert refusal(world) == ""


@pytest.mark.parametrize("ended", ["upstream_failed", "failed", "skipped"])
def test_a_task_that_airflow_has_ended_is_not_about_to_run(world, ended):
    run = run_green(world)
    lose(world, "clean", 1)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.step(world.airflow.task(run, "joined", 0))
    world.airflow.task(run, "raw-clean", 1).state = ended
    assert "raw-clean[1] is about to run again" in refusal(world)
    assert refusal(world, world.airflow) == ""


def test_a_task_of_a_dag_run_that_is_over_is_not_about_to_run(world):
    run = run_green(world)
    lose(world, "clean", 1)
    world.airflow.clear_by_hand(run, "joined", 0)
    world.airflow.step(world.airflow.task(run, "joined", 0))
    assert "raw-clean[1] is about to run again" in refusal(world, world.airflow)
    world.airflow.marks[run] = "failed"
    assert refusal(world, world.airflow) == ""


def test_a_task_that_was_killed_and_that_airflow_calls_failed_is_not_running(world):
    run = world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    task.try_number, task.state = 1, "running"
    world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    assert "weather[0] (try 1) is running" in refusal(world, world.airflow)
    task.state = "failed"
    assert refusal(world, world.airflow) == ""


def test_nothing_is_lost_of_a_run_without_results_that_is_about_to_run(world):
    def fails(_key):
        raise Misconfigured("the source file has changed")

    run = world.airflow.dag_run()
    world.airflow.during = fails
    world.airflow.run_until_quiet()
    standing = standing_of(world.services, RUN, Asked(airflow=world.airflow))
    assert clear_stopped(world.services, RUN, standing, world.airflow).delivered
    assert world.airflow.task(run, "weather").state is None
    assert refusal(world) == ""


def test_where_its_dagrun_was_deleted_what_creates_it_again_comes_before_what_goes_on_without_it(world):
    world.run_first(1)
    assert adopt(world.services, RUN, asked=Asked(airflow=world.airflow)).recreate == ""
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    world.airflow.delete("scheduled__2013-01-01")
    done = adopt(world.services, RUN, asked=Asked(airflow=world.airflow))
    day = "2013-01-01T00:00:00+00:00"
    assert done.recreate == f"`weir airflow backfill create --dag-id dag --from-date {day} --to-date {day}`"
    assert done.recreate in str(done)


def published_as_it_is(subtasks):
    """A source, of which each subtask has the same content whatever their number, is published."""
    day = source("day", "pipelines.ladder:day", parallelism=subtasks)
    return Dataflow("ladder", [day, sink("day", "delays")], keep="60 days")


@pytest.mark.parametrize(("before", "subtasks"), [(3, 2), (3, 1), (2, 3), (1, 3)])
def test_a_run_with_another_number_of_subtasks_is_closed_once_it_has_published_them(world, before, subtasks):
    world.airflow.deploy(published_as_it_is(before))
    first = world.run_first(1)
    world.airflow.deploy(published_as_it_is(subtasks))
    adopt(world.services, RUN)
    for key in list(world.airflow.tasks):
        if key.task_id != "weir_close" and key.map_index < subtasks:
            world.airflow.clear_by_hand(first, key.task_id, key.map_index)
    while ready := [task for task in world.airflow._runnable() if task.key.task_id != "weir_close"]:
        world.airflow.step(ready[0])
    assert closed_at(world) is None
    world.airflow.run_until_quiet()
    assert len(outcome(world)) == subtasks
    assert closed_at(world) is not None


def closed_at(world):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, RUN).closed_at

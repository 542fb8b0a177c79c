"""Notes in Airflow: green tasks show no failure, failed ones show theirs, and no DagRun is green without a word."""

import re

import pytest
from sqlalchemy import select

from weir.attempts import notes
from weir.attempts.notes import MARKED, NOT_CLOSED, annotate, annotate_healed_runs, annotate_open_runs
from weir.coordination.values import region_of_task
from weir.errors import Misconfigured
from weir.execution.failure_words import BY_PERSON, HEALED
from weir.ledger.database.tables import DataflowRow, FailoverRow, RunRow
from weir.recovery.past_failovers import failovers_of_run, told
from weir.recovery.questions import Question, apply_answer, ask
from weir.testing.fakes.airflow import Killed

RUN = "ladder@20130101T000000Z"


def fail_once(world, task_id, error):
    def fail(key):
        if key.task_id == task_id:
            world.airflow.during = lambda _key: None
            raise error

    world.airflow.during = fail


def closed(world):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, RUN).closed_at is not None


def until_in_the_middle(world):
    """Run a day until a task of it runs; answers its run and the task."""
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    task = world.airflow.task(run, "raw-clean", 0)
    task.state, task.try_number = "running", 1
    return run, task


def test_the_note_of_a_mended_failure_does_not_stay_at_the_green_task(world):
    fail_once(world, "weather", ValueError("boom"))
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    failed, mended = world.airflow.task(run, "weather").notes
    assert failed.startswith("Weir: ValueError: boom; tried again")
    assert mended.startswith("Weir: healed: ValueError: boom. ")


def test_a_task_that_was_killed_says_so_once_it_is_green(world):
    fail_once(world, "weather", Killed())
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    assert [note[:23] for note in world.airflow.task(run, "weather").notes] == ["Weir: healed: its proce"]


def test_a_task_that_has_healed_says_what_was_lost_and_how_many_tasks_ran_again(world):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    world.lose("weather", 0)
    world.airflow.run_until_quiet()
    said = [note for task in world.airflow.tasks.values() for note in task.notes if note.startswith("Weir: healed")]
    assert said
    assert all("weather[0] had been deleted" in note for note in said)
    assert sum("a task ran again" in note for note in said) == 1


def test_a_note_that_a_person_has_left_stays_at_the_green_task(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.task(run, "weather").notes.append("the provider has corrected its file")
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "weather").notes == ["the provider has corrected its file"]


@pytest.mark.parametrize("mark", ["the task", "the run"])
def test_upkeep_says_of_a_failed_task_that_a_person_has_marked_it_as_a_success(world, mark):
    error = ValueError("boom") if mark == "the run" else SyntaxError("boom")
    fail_once(world, "weather", error)
    run = world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    world.airflow.step(task)
    assert task.state == ("up_for_retry" if mark == "the run" else "failed")
    if mark == "the task":
        task.notes.pop()  # the fake keeps the reason of a failure there, too
    task.state = "success"
    (line,) = annotate_open_runs(world.services, world.airflow)
    assert line.startswith("weather[-1]")
    assert task.notes[-1].startswith(
        f"{MARKED}SyntaxError: boom" if mark == "the task" else f"{MARKED}ValueError: boom"
    )
    assert annotate_open_runs(world.services, world.airflow) == []
    world.airflow.run_until_quiet()
    assert task.state == "success"
    assert task.notes[-1].startswith("Weir: healed: ")


def healed_notes(world):
    return {
        str(region_of_task("", task.key))
        for task in world.airflow.tasks.values()
        if task.notes and task.notes[-1].startswith("Weir: healed: ")
    }


def failure_notes(world):
    """The green tasks whose note names a loss or a failure, and does not say that it is healed."""
    return [
        task.notes[-1]
        for task in world.airflow.tasks.values()
        if task.state == "success" and re.search("missing|fail|Error", (task.notes or [""])[-1])
    ]


def test_a_producer_that_was_cleared_for_a_loss_says_that_it_is_healed(world):
    world.run_first(1)
    world.lose("weather", 0)
    world.lose("joined", 1)
    world.lose("delays", 0)
    answer = ask(world.services, Question(RUN))
    apply_answer(world.services, answer)
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    assert {"joined[1]", "weir_close[0]"} < healed_notes(world)
    assert failure_notes(world) == []


def test_a_task_that_failed_and_that_weir_cleared_says_why_it_had_failed(world):
    fail_once(world, "weather", SyntaxError("bad stage"))
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "weather").state == "failed"
    apply_answer(world.services, ask(world.services, Question(RUN)))
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    assert "weather[0]" in healed_notes(world)
    assert "bad stage" in world.airflow.task(run, "weather").notes[-1]


def test_the_note_of_a_clear_says_why_the_task_ran_again_once_it_has_succeeded(world):
    run = world.run_first(1)
    task = world.airflow.task(run, "weather")
    world.content["weather"] = "corrected"
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert task.notes == []
    cleared, done = world.airflow.task(run, "joined", 0).notes
    assert cleared.startswith("weir: ")
    assert done == f"Weir: it ran again: {cleared.removeprefix('weir: ')}"


def test_a_note_of_long_ago_does_not_stay_when_a_person_clears_the_task_again(world):
    """Not while it runs, and not when it has succeeded: it was about tries before the last success."""
    fail_once(world, "weather", ValueError("boom"))
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    task = world.airflow.task(run, "weather")
    assert task.notes[-1].startswith(HEALED)
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert task.notes[-2] == BY_PERSON
    assert "boom" not in task.notes[-1]
    assert task.notes[-1] not in (BY_PERSON, "")


def test_a_failure_that_a_person_has_mended_and_cleared_is_told_as_mended(world):
    fail_once(world, "weather", SyntaxError("bad stage"))
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    task = world.airflow.task(run, "weather")
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert task.state == "success"
    assert task.notes[-2] == BY_PERSON
    assert task.notes[-1].startswith(f"{HEALED}SyntaxError: bad stage")


def test_a_person_s_note_stays_below_those_of_failures_and_of_what_heals_them(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "weather")
    task = world.airflow.task(run, "weather")
    task.notes.append("the provider has corrected its file")
    fail_once(world, "weather", ValueError("boom"))
    world.airflow.run_until_quiet()
    _, failed, mended = task.notes
    for note, begin in ((failed, "Weir: ValueError: boom"), (mended, f"{HEALED}ValueError: boom")):
        assert note.startswith(begin)
        assert note.endswith("\n\nthe provider has corrected its file")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_note_of_a_closing_task_that_failed_does_not_stay_when_the_run_is_closed(world):
    run = world.run_first(1)
    world.airflow.task(run, "weir_close").notes.append("Weir: something was lost; tried again. backtrack 1 of 20")
    world.airflow.clear_by_hand(run, "weir_close")
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "weir_close").notes[-1].startswith(f"{HEALED}something was lost. ")


def healed_by_a_plan(world):
    """A closed run of which a result was lost, and has been recomputed; the same content needs no new close."""
    run = world.run_first(1)
    world.lose("joined", 1)
    apply_answer(world.services, ask(world.services, Question(RUN)))
    world.airflow.deliver_clears("ladder")
    return run


def test_the_note_of_a_run_says_what_was_lost_and_spared_when_it_has_healed_and_no_more_after_that(world):
    run = healed_by_a_plan(world)
    assert annotate_healed_runs(world.services, world.airflow) == []
    world.airflow.run_until_quiet()
    assert closed(world)
    world.airflow.run_notes.setdefault(run, "watch this one")
    annotate_healed_runs(world.services, world.airflow)
    with world.ledger.transaction() as session:
        sentence = told(session, failovers_of_run(session, RUN))
    assert world.airflow.run_notes[run].startswith(f"Weir: {sentence}")
    world.airflow.run_notes[run] = "as a person has it now"
    assert annotate_healed_runs(world.services, world.airflow) == []
    assert world.airflow.run_notes[run] == "as a person has it now"


def test_a_run_that_heals_before_it_is_closed_says_so_when_it_is(world):
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "weather"))
    world.lose("weather", 0)
    world.airflow.run_notes[run] = "watch this one"
    world.airflow.run_until_quiet()
    assert closed(world)
    own, person = world.airflow.run_notes[run].split("\n\n")
    assert own.startswith("Weir: ")
    assert "weather[0]" in own
    assert person == "watch this one"


def test_a_run_without_failovers_has_no_note_and_asks_airflow_for_none(world):
    world.airflow.annotate_run = lambda *_: pytest.fail("noted")
    world.airflow.seen_run = lambda *_: pytest.fail("asked")
    world.run_first(1)
    assert annotate_healed_runs(world.services, world.airflow) == []


def test_a_healed_run_that_airflow_does_not_take_a_note_of_gets_it_later(world):
    run = healed_by_a_plan(world)
    world.airflow.run_until_quiet()
    world.airflow.run_notes.clear()
    with world.ledger.transaction("ladder") as session:
        session.scalars(select(FailoverRow)).one().is_told = False
    world.airflow.reachable = False
    (line,) = annotate_healed_runs(world.services, world.airflow)
    assert RUN in line
    world.airflow.reachable = True
    assert len(annotate_healed_runs(world.services, world.airflow)) == 1
    assert world.airflow.run_notes[run].startswith("Weir: ")


def test_upkeep_leaves_the_note_of_a_final_failure_that_airflow_did_not_take(world):
    fail_once(world, "weather", SyntaxError("bad stage"))
    run = world.airflow.dag_run()
    world.airflow.reachable = False
    world.airflow.run_until_quiet()
    task = world.airflow.task(run, "weather")
    assert task.state == "failed"
    task.notes.clear()  # the fake keeps the reason of a failure there, too
    world.airflow.reachable = True
    (line,) = annotate_open_runs(world.services, world.airflow)
    assert line == f"weather[-1] of {run} has a note of its failure now"
    assert task.notes == [task.notes[0]]
    assert task.notes[0].startswith("Weir: SyntaxError: bad stage; not tried again.")
    assert task.notes[0].endswith("(fatal)")
    assert "bad stage" in task.notes[0]
    assert annotate_open_runs(world.services, world.airflow) == []


def failed_finally_without_a_note(world, day=1):
    """Fail a run's `weather` for good while Airflow takes no note; answers the run and the task."""
    fail_once(world, "weather", SyntaxError("bad stage"))
    run = world.airflow.dag_run(day)
    world.airflow.reachable = False
    world.airflow.run_until_quiet()
    world.airflow.reachable = True
    task = world.airflow.task(run, "weather")
    assert task.state == "failed"
    task.notes.clear()
    return run, task


def test_a_note_of_upkeep_has_no_secret(world):
    run = world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    annotate(world.airflow, task.key, f"cannot connect to postgresql://etl:hunter2@db/{'x' * 2_000}")
    (note,) = task.notes
    assert note.startswith("cannot connect to postgresql://etl:***@db/xxx")
    assert len(note) == 1_000


def test_a_dag_that_cannot_be_inspected_keeps_no_other_dag_from_its_notes(world):
    run, task = failed_finally_without_a_note(world)
    other, _ = failed_finally_without_a_note(world, 2)
    with world.ledger.transaction("ladder") as session:
        session.scalars(select(RunRow).where(RunRow.run_id == other)).one().dag_id = "former"
    inspect = world.airflow.inspect

    def refuse(items):
        if any(item.dag_id == "former" for item in items):
            raise Misconfigured("refused POST /weir/dags/former/clear with 403")
        return inspect(items)

    world.airflow.inspect = refuse
    assert sorted(annotate_open_runs(world.services, world.airflow)) == [
        "Notes may be missing in DAG former: refused POST /weir/dags/former/clear with 403",
        f"weather[-1] of {run} has a note of its failure now",
    ]
    assert task.notes[0].startswith("Weir: SyntaxError: bad stage; not tried again.")
    assert task.notes[0].endswith("(fatal)")


def test_a_run_that_takes_no_note_keeps_no_other_run_from_its_notes(world):
    run, task = failed_finally_without_a_note(world)
    other, refused = failed_finally_without_a_note(world, 2)
    take = world.airflow.annotate

    def refuse(key, note):
        if key == refused.key:
            raise Misconfigured("refused with 403")
        take(key, note)

    world.airflow.annotate = refuse
    assert sorted(annotate_open_runs(world.services, world.airflow)) == [
        f"Notes may be missing in DagRun {other} of DAG dag: refused with 403",
        f"weather[-1] of {run} has a note of its failure now",
    ]
    assert len(task.notes) == 1


def test_many_open_runs_of_one_dataflow_keep_no_other_dataflow_from_its_notes(world, monkeypatch):
    monkeypatch.setattr(notes, "_MOST", 1)
    run, _ = failed_finally_without_a_note(world)
    with world.ledger.transaction("ladder") as session:
        session.add(DataflowRow(name="other", store_id="any"))
        session.flush()
        session.scalars(select(RunRow)).one().dataflow = "other"
    newer, _ = failed_finally_without_a_note(world, 2)
    newest, _ = failed_finally_without_a_note(world, 3)
    lines = annotate_open_runs(world.services, world.airflow)
    assert sorted(lines) == [f"weather[-1] of {each} has a note of its failure now" for each in (run, newest)]
    assert newer not in (run, newest)


def test_a_failed_task_instance_that_airflow_has_no_more_is_not_noted_at_each_upkeep(world):
    _, task = failed_finally_without_a_note(world)
    del world.airflow.tasks[task.key]
    assert annotate_open_runs(world.services, world.airflow) == []


def test_a_failed_task_that_was_marked_a_success_gets_no_note_of_its_failure(world):
    _, task = failed_finally_without_a_note(world)
    task.state = "success"
    assert annotate_open_runs(world.services, world.airflow) == []
    assert task.notes == []


def test_a_failed_task_that_turns_green_while_upkeep_looks_gets_no_note_of_its_failure(world):
    run, task = failed_finally_without_a_note(world)
    inspect = world.airflow.inspect

    def recover(items):
        found = inspect(items)
        if any(item.task_id == "weather" for item in items):
            world.airflow.inspect = inspect
            world.airflow.clear_by_hand(run, "weather")
            world.airflow.step(task)
        return found

    world.airflow.inspect = recover
    assert annotate_open_runs(world.services, world.airflow) == []
    assert task.state == "success"
    assert [note for note in task.notes if not note.startswith(HEALED)] == []


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_run_that_was_marked_by_hand_keeps_that_state(world, state):
    run, _ = until_in_the_middle(world)
    world.airflow.mark_run_by_hand(run, state)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == state
    assert not closed(world)


def test_a_run_marked_a_success_gets_a_note_that_it_is_not_closed(world):
    run, _ = until_in_the_middle(world)
    world.airflow.mark_run_by_hand(run, "success")
    world.airflow.run_notes[run] = "not wanted today"
    assert annotate_open_runs(world.services, world.airflow) == [
        f"DagRun {run} of DAG dag is a success, but is not closed"
    ]
    assert world.airflow.run_notes[run].startswith(NOT_CLOSED)
    assert world.airflow.run_notes[run].endswith("\n\nnot wanted today")
    assert world.airflow.task(run, "weir_close").notes[-1].startswith(NOT_CLOSED)
    assert annotate_open_runs(world.services, world.airflow) == []


def test_a_closing_task_marked_a_success_gets_a_note_that_the_run_is_not_closed(world):
    run = world.airflow.dag_run()
    while world.airflow._ready().key.task_id != "weir_close":
        world.airflow.step(world.airflow._ready())
    close = world.airflow.task(run, "weir_close")
    close.state, close.try_number = "success", 1
    assert len(annotate_open_runs(world.services, world.airflow)) == 1
    assert "Its closing task was marked as a success by hand" in world.airflow.run_notes[run]


def test_a_run_marked_failed_gets_no_note_since_it_says_so_itself(world):
    run, _ = until_in_the_middle(world)
    world.airflow.mark_run_by_hand(run, "failed")
    assert annotate_open_runs(world.services, world.airflow) == []
    assert run not in world.airflow.run_notes


def test_runs_that_are_closed_or_on_their_way_get_no_note(world):
    world.run_first(1)
    world.airflow.dag_run(2)
    world.airflow.step(world.airflow._ready())
    assert annotate_open_runs(world.services, world.airflow) == []
    assert world.airflow.run_notes == {}


def test_the_note_of_a_run_that_was_not_closed_goes_when_it_is_and_a_persons_stays(world):
    run, _ = until_in_the_middle(world)
    world.airflow.mark_run_by_hand(run, "success")
    world.airflow.run_notes[run] = "not wanted today"
    annotate_open_runs(world.services, world.airflow)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert closed(world)
    assert world.airflow.run_notes[run] == "not wanted today"


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_region_cleared_in_a_run_that_was_marked_has_the_run_closed_or_red(world, state):
    """Airflow's own rule would make it green: it counts the skipped closing task as a success."""
    run = world.airflow.dag_run()
    while world.airflow._ready().key.task_id != "weir_close":
        world.airflow.step(world.airflow._ready())
    world.airflow.mark_run_by_hand(run, state)
    assert world.airflow.task(run, "weir_close").state == "skipped"
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert closed(world)


def test_a_region_cleared_in_a_run_in_which_others_were_skipped_leaves_it_red_and_names_them(world):
    run, task = until_in_the_middle(world)
    world.airflow.mark_run_by_hand(run, "failed")
    world.airflow.clear_by_hand(run, task.key.task_id, 0)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "failed"
    assert not closed(world)
    notes = [note for each in world.airflow.tasks.values() for note in each.notes]
    assert any("was skipped in Airflow" in note for note in notes)


def test_a_closing_task_that_has_failed_is_not_cleared_by_its_regions(world):
    run = world.airflow.dag_run()
    while world.airflow._ready().key.task_id != "weir_close":
        world.airflow.step(world.airflow._ready())
    close = world.airflow.task(run, "weir_close")
    close.state, close.try_number = "failed", 1
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert (close.state, close.runs) == ("failed", [])
    assert world.airflow.state_of(run) == "failed"

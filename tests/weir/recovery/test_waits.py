"""Whether an attempt that waits may go on: the ledger's answer is that of a begin, whenever it is asked."""

import random

import pytest
from sqlalchemy import event, select
from tests.weir.keeping import aircraft
from tests.weir.recovery.overtaking import next_try

from weir.attempts.waiting import WaitingAttempts
from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.runs import run_by_id, run_key
from weir.recovery.adopt import adopt
from weir.recovery.awaiting import awaited_status, tell_of_gone
from weir.testing.fakes.airflow import Killed
from weir.topology.regions import RegionId

WAITS = "up_for_reschedule"
PLAIN = 0
"""Of each commit; tasks wait in it."""
FIRST, SECOND = "scheduled__2013-01-01", "scheduled__2013-01-02"


@pytest.fixture
def days(world):
    """Two days of a dataflow that keeps state; nothing has run."""
    world.airflow.deploy(aircraft(2))
    for day in (1, 2):
        world.airflow.dag_run(day)
    return world


def attempt_of(world, task):
    """The newest attempt of a task instance."""
    with world.ledger.transaction() as session:
        query = (
            select(AttemptRow.id)
            .join(RunRow, RunRow.id == AttemptRow.run)
            .where(
                RunRow.run_id == task.key.run_id,
                AttemptRow.task_id == task.key.task_id,
                AttemptRow.map_index == task.key.map_index,
            )
            .order_by(AttemptRow.try_number.desc())
        )
        return session.scalars(query).first()


def waiting_second_day(days):
    """Let a subtask of the second day wait for the first day; its attempt."""
    task = days.airflow.task(SECOND, "aircraft-known", 0)
    days.airflow.step(days.airflow.task(SECOND, "flights"))
    days.airflow.step(task)
    assert task.state == WAITS
    return attempt_of(days, task)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_wait_is_over_when_all_that_is_awaited_is_committed_and_not_before(days):
    waiting, asked = waiting_second_day(days), WaitingAttempts(days.ledger)
    for task, index in (("flights", -1), ("aircraft-known", 0)):
        days.airflow.step(days.airflow.task(FIRST, task, index))
        assert asked.over([waiting]) == frozenset()
    days.airflow.step(days.airflow.task(FIRST, "aircraft-known", 1))
    assert asked.over([waiting]) == {waiting}


def test_what_was_committed_between_the_decision_to_wait_and_the_first_question_is_seen(days):
    waiting = waiting_second_day(days)
    for task, index in (("flights", -1), ("aircraft-known", 0), ("aircraft-known", 1)):
        days.airflow.step(days.airflow.task(FIRST, task, index))
    assert WaitingAttempts(days.ledger).over([waiting]) == {waiting}


def test_a_wait_whose_attempt_was_cleared_or_is_unknown_is_over(days):
    waiting = waiting_second_day(days)
    days.airflow.clear_by_hand(SECOND, "aircraft-known", 0)
    days.airflow.step(days.airflow.task(SECOND, "aircraft-known", 0))
    again = attempt_of(days, days.airflow.task(SECOND, "aircraft-known", 0))
    assert again != waiting
    assert WaitingAttempts(days.ledger).over([waiting, again, "nobody"]) == {waiting, "nobody"}


def test_the_closing_task_waits_until_the_epoch_before_is_closed(days):
    first, second = (days.airflow.task(run, "weir_close") for run in (FIRST, SECOND))
    first.not_before = days.airflow.time.replace(year=2030)
    while second.state != WAITS:
        days.airflow.step(days.airflow._ready())
    waiting, asked = attempt_of(days, second), WaitingAttempts(days.ledger)
    assert asked.over([waiting]) == frozenset()
    days.airflow.step(first)
    assert asked.over([waiting]) == {waiting}


def test_a_dataflow_that_has_not_changed_costs_one_statement_for_all_that_wait(days):
    waiting = {waiting_second_day(days)}
    days.airflow.step(days.airflow.task(SECOND, "aircraft-known", 1))
    waiting.add(attempt_of(days, days.airflow.task(SECOND, "aircraft-known", 1)))
    asked, statements = WaitingAttempts(days.ledger), []
    assert asked.over(waiting) == frozenset()
    event.listen(days.ledger._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert asked.over(waiting) == frozenset()
    assert len([each for each in statements if each.startswith("SELECT")]) == 1


def is_waiting_for_others(task):
    return task.state == WAITS and "restarting after" not in task.waits_on


@pytest.mark.parametrize("seed", [PLAIN, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 45))])
def test_the_answer_is_that_of_a_begin_whatever_has_happened(world, seed):
    """Tasks run in any order, are killed and cleared, and what waits is begun at any time: it waits as was answered.

    One asks all the time, and another one only then.
    """
    chance, airflow = random.Random(seed), world.airflow
    airflow.deploy(aircraft(2))
    asked, outcomes = WaitingAttempts(world.ledger), []

    def perhaps_die(_key):
        if chance.random() < 0.15:
            raise Killed

    airflow.during = perhaps_die
    for day in (1, 2, 3):
        airflow.dag_run(day)
    for _ in range(90):
        tasks = list(airflow.tasks.values())
        ended = [task for task in tasks if task.state == "success"]
        if ended and chance.random() < 0.1:
            airflow._clear(chance.choice(ended))
        waiting = {attempt_of(world, task): task for task in tasks if is_waiting_for_others(task)}
        over = asked.over(waiting)
        assert over == WaitingAttempts(world.ledger).over(waiting)
        runnable = [
            task for task in tasks if task.state in (None, "up_for_retry", WAITS) and airflow._upstream_done(task)
        ]
        if not runnable:
            break
        task = chance.choice(runnable)
        answer = next((each in over for each, waits in waiting.items() if waits is task), None)
        airflow.step(task)
        if answer is not None:
            outcomes.append(answer)
            assert is_waiting_for_others(task) is not answer, f"{task.key} waits for {task.waits_on}"
    airflow.during = lambda _key: None
    airflow.run_until_quiet()
    assert set(outcomes) == {True, False} or seed != PLAIN


MEANWHILE = {"nothing": ["failed"], "commits": ["committed"], "is cleared": ["fenced", "running"]}
"""What may happen to a running try after Airflow has answered, and the states of all tries then."""


@pytest.mark.parametrize("seed", range(12))
def test_what_airflow_says_of_a_region_voids_no_try_that_has_begun_or_committed_since(world, seed):
    """A person has marked a task a success while it was running, and may clear it at once; its process may go on."""
    chance, airflow = random.Random(seed), world.airflow
    world.run = airflow.dag_run()
    begun = airflow.coordinator.begin(next_try(world, "weather"), airflow)
    airflow.task(world.run, "weather").state = "success"
    happened = chance.choice(tuple(MEANWHILE))
    answered = airflow.inspect

    def inspect(wanted):
        airflow.inspect = answered
        found = answered(wanted)
        if happened == "commits":
            airflow.coordinator.commit(begun, airflow.engine.run(begun.job), airflow)
        elif happened == "is cleared":
            airflow.clear_by_hand(world.run, "weather")
            airflow.coordinator.begin(next_try(world, "weather"), airflow)
        return found

    airflow.inspect = inspect
    with world.ledger.transaction() as session:
        run = run_by_id(session, begun.run.id)
    status = awaited_status(world.services, run, {RegionId("weather", 0)}, airflow)
    assert status.has_changed is (happened == "nothing")
    with world.ledger.transaction() as session:
        rows = session.scalars(select(AttemptRow).where(AttemptRow.region == "weather").order_by(AttemptRow.try_number))
        assert [row.state for row in rows] == MEANWHILE[happened]


def counted(*sinks):
    """Counts that go on from those of the day before; their task is named by all that they are published as."""
    counts = Stage(
        "counts", "pipelines.ladder:counts", {"day": blocking("day"), "before": previous("counts", schema="k bigint")}
    )
    return Dataflow(
        "ladder", [source("day", "pipelines.ladder:day"), counts, *(sink("counts", each) for each in sinks)]
    )


@pytest.mark.parametrize("is_first_deleted", [True, False])
def test_a_run_of_which_airflow_has_lost_a_cleared_task_that_no_task_awaits_fails_and_says_what_to_type(
    world, is_first_deleted
):
    world.airflow.deploy(counted("known", "others"))
    world.run_days(1, 2)
    world.airflow.deploy(counted("known"))
    world.content["day"] = 1
    if is_first_deleted:
        world.airflow.delete(FIRST)
        world.airflow.dag_run(1)
    else:
        adopt(world.services, run_key("ladder", "20130101T000000Z"))
        world.airflow.clear_run_by_hand(FIRST)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) <= {"success", "removed"}

    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    closing = world.airflow.task(SECOND, "weir_close")
    assert closing.state == "failed"
    assert "no task instance of counts-known-others[0] any more" in closing.failed_because
    assert "`weir run adopt ladder@20130102T000000Z`" in closing.failed_because

    adopt(world.services, run_key("ladder", "20130102T000000Z"))
    world.airflow.clear_run_by_hand(SECOND)
    world.airflow.run_until_quiet()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) <= {"success", "removed"}


def test_a_region_that_was_cleared_before_its_run_was_pinned_to_a_declaration_without_it_is_not_asked_for(world):
    world.run_first(1)
    run = run_key("ladder", "20130101T000000Z")
    with world.ledger.transaction("ladder") as session:
        session.get_one(RunRow, run).closed_at = None
    assert tell_of_gone(world.services, run, {RegionId("former", 0)}, world.airflow) == ""

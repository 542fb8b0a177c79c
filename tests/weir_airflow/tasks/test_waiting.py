"""A task that waits is deferred, and its trigger asks the ledger; without a triggerer it is rescheduled."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, event, select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.keeping import aircraft
from tests.weir.small_dataflow import World

from weir.coordination.values import Awaiting
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow

FIRST, SECOND = "scheduled__2013-01-01", "scheduled__2013-01-02"
FAR = 10**6


@pytest.fixture
def days(monkeypatch):
    """Two days of a dataflow that keeps state, of which nothing has run; the settings name its store and ledger."""
    with fast_folder() as folder:
        world = World(folder, aircraft(2))
        monkeypatch.setenv("WEIR_STORE", world.store.url)
        monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
        monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps({"conn_type": "weir-db"}))
        for day in (1, 2):
            world.airflow.dag_run(day)
        yield world
        world.ledger.close()


def run_first_day(days, *tasks):
    for task_id, index in tasks or (("flights", -1), ("aircraft-known", 0), ("aircraft-known", 1)):
        days.airflow.step(days.airflow.task(FIRST, task_id, index))


@pytest.fixture
def waiting(days):
    """The attempts of both subtasks of the second day, which wait for the first."""
    days.airflow.step(days.airflow.task(SECOND, "flights"))
    for index in (0, 1):
        days.airflow.step(days.airflow.task(SECOND, "aircraft-known", index))
    return waiting_attempts(days)


def waiting_attempts(days):
    with days.ledger.transaction() as session:
        return sorted(session.scalars(select(AttemptRow.id).where(AttemptRow.state == "waiting")))


# The trigger


def trigger_of(attempt, *, earliest=0.0, latest=FAR):
    """The trigger as a triggerer makes it, of what Airflow's database keeps."""
    from airflow.sdk._shared.module_loading import import_string
    from airflow.sdk.serde import deserialize, serialize

    from weir_airflow.tasks.trigger import WaitTrigger

    now = time.time()
    path, kept = WaitTrigger(attempt, now + earliest, now + latest).serialize()
    return import_string(path)(**deserialize(json.loads(json.dumps(serialize(kept)))))


async def fired(trigger):
    return (await anext(trigger.run())).payload


@pytest.fixture
def questions():
    """How often the ledger is asked about attempts that wait."""
    asked = []

    def note(_connection, _cursor, statement, *_more):
        if "attempt.state = " in statement and "attempt.id IN" in statement:
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield asked
    event.remove(Engine, "before_cursor_execute", note)


def test_triggers_fire_when_what_is_awaited_is_committed_and_ask_together(days, waiting, questions):
    async def scene():
        triggers = [asyncio.create_task(fired(trigger_of(attempt))) for attempt in waiting]
        while not questions:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(run_first_day, days)
        return await asyncio.gather(*triggers)

    assert asyncio.run(scene()) == ["what was awaited is there"] * 2
    both = [each for each in questions if each.count("?") - 1 == len(waiting)]
    assert both


def test_a_trigger_whose_time_has_come_fires_although_nothing_was_committed(days, waiting):
    assert (
        asyncio.run(fired(trigger_of(waiting[0], latest=0.1)))
        == "the longest wait is over; the task checks Airflow's state, too"
    )


def test_a_trigger_does_not_fire_before_the_end_of_the_first_process_was_seen(days, waiting):
    run_first_day(days)
    trigger = trigger_of(waiting[0], earliest=0.3)
    asyncio.run(fired(trigger))
    assert time.time() >= trigger.earliest


def test_a_trigger_that_is_cancelled_keeps_no_other_from_firing_and_the_last_one_ends_the_asking(
    days, waiting, questions
):
    async def scene():
        triggers = [asyncio.create_task(fired(trigger_of(attempt))) for attempt in waiting]
        while not questions:
            await asyncio.sleep(0.01)
        triggers[0].cancel()
        await asyncio.to_thread(run_first_day, days)
        last = await triggers[1]
        while others := asyncio.all_tasks() - {asyncio.current_task(), triggers[0]}:
            await asyncio.wait(others)
        return last

    assert asyncio.run(scene()) == "what was awaited is there"


def test_a_trigger_without_a_ledger_says_so(days, waiting, monkeypatch):
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{days.folder}/nowhere.db")
    with pytest.raises(Misconfigured, check=of_kind("ledger.not_there")):
        asyncio.run(fired(trigger_of(waiting[0])))


# The task's process


def operator_of(**given):
    return SimpleNamespace(**{"may_defer": True, "max_active_tis_per_dag": None, "pool": "default_pool", **given})


def wait(awaiting, **operator):
    from weir_airflow.tasks.context import TaskContext
    from weir_airflow.tasks.ports import AirflowTask

    with TaskContext.open() as context:
        AirflowTask(context, lambda _line: None, {"task": operator_of(**operator)}).wait(awaiting)


def test_a_long_wait_is_deferred_until_the_ledger_tells_that_it_is_over(days, waiting, triggerer):
    from airflow.sdk.exceptions import TaskDeferred

    triggerer()
    now = time.time()
    with pytest.raises(TaskDeferred) as deferred:
        wait(Awaiting(60, "numbers are awaited", attempt=waiting[0]))
    trigger = deferred.value.trigger
    assert (trigger.attempt, trigger.latest - now >= 60) == (waiting[0], True)
    assert now < trigger.earliest < trigger.latest
    assert deferred.value.timeout > timedelta(seconds=60)


@pytest.mark.parametrize(
    ("alive", "operator", "attempt"),
    [
        (None, {}, "a"),
        (False, {}, "a"),
        (True, {"may_defer": False}, "a"),
        (True, {"max_active_tis_per_dag": 1}, "a"),
        (True, {"pool": "narrow"}, "a"),
        (True, {"pool": "nowhere"}, "a"),
        (True, {}, ""),
    ],
    ids=[
        "no triggerer",
        "a triggerer that was killed",
        "a trigger that has failed",
        "a task of which only so many are active",
        "a pool that counts deferred tasks",
        "a pool that was deleted",
        "only time is awaited",
    ],
)
def test_else_it_is_rescheduled(days, triggerer, pool, alive, operator, attempt):
    from airflow.sdk.exceptions import AirflowRescheduleException

    if alive is not None:
        triggerer(is_alive=alive)
    with pytest.raises(AirflowRescheduleException):
        wait(Awaiting(60, "numbers are awaited", attempt=attempt), **operator)


def test_without_an_answer_of_airflow_it_is_rescheduled(days, triggerer, monkeypatch):
    from airflow.sdk.exceptions import AirflowRescheduleException

    triggerer()
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps({"conn_type": "http", "host": "http://127.0.0.1:9"}))
    with pytest.raises(AirflowRescheduleException):
        wait(Awaiting(60, "numbers are awaited", attempt="a"))


def test_a_short_wait_in_the_process_ends_when_the_ledger_tells_that_it_is_over(days, waiting, monkeypatch):
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", str(FAR))
    committing = threading.Thread(target=run_first_day, args=(days,))
    committing.start()
    wait(Awaiting(FAR - 1, "numbers are awaited", attempt=waiting[0]))
    committing.join()


DAG_FILE = """
from datetime import UTC, datetime
from tests.weir.keeping import aircraft
from weir_airflow import dataflow_dag

dataflow_dag(aircraft(2), dag_id="dag", schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""


@pytest.fixture
def closing(enter_dags):
    """The closing task of the second day as Airflow has it; it is about to run for the first time."""
    from airflow.models.dagbag import DBDagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    file, bag = enter_dags("days.py", DAG_FILE)
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag("dag", session=session)
        for run_id in (FIRST, SECOND):
            start = datetime.strptime(run_id[-10:], "%Y-%m-%d").replace(tzinfo=UTC)
            dag.create_dagrun(
                run_id=run_id,
                logical_date=start,
                data_interval=(start, start + timedelta(days=1)),
                run_after=start,
                run_type=DagRunType.SCHEDULED,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                start_date=start,
                session=session,
            )
        tasks = session.query(TaskInstance).filter_by(dag_id="dag", task_id="weir_close")
        tasks.update({"state": "running", "try_number": 1})
        yield bag.dags["dag"].task_dict["weir_close"], tasks.filter_by(run_id=SECOND).one()
    file.unlink()


@pytest.mark.soak
def test_under_dag_test_the_trigger_runs_inline_and_the_task_goes_on_in_the_same_try(
    days, closing, triggerer, monkeypatch
):
    """The closing task of the second day waits until the first day is closed."""
    from airflow.sdk.definitions.dag import _run_task

    from weir.recovery import awaiting
    from weir_airflow.tasks import ports

    monkeypatch.setattr(awaiting, "FIRST_WAIT", FAR)
    monkeypatch.setattr(awaiting, "LONGEST_WAIT", FAR)
    monkeypatch.setattr(ports, "shortest_reschedule", lambda: 0.0)
    triggerer()
    closes = [days.airflow.task(run, "weir_close") for run in (FIRST, SECOND)]
    while ready := next((each for each in days.airflow.tasks.values() if may_run(days, each, closes)), None):
        days.airflow.step(ready)

    def close_first():
        while not waiting_attempts(days):
            time.sleep(0.01)
        days.airflow.step(closes[0])

    other = threading.Thread(target=close_first)
    other.start()
    task, ti = closing
    _run_task(ti=ti, task=task, run_triggerer=True)
    other.join()
    ti.refresh_from_db()
    assert (ti.state, ti.try_number) == ("success", 1)


def may_run(days, task, closes):
    return task not in closes and task.state in (None, "up_for_reschedule") and days.airflow._upstream_done(task)


def test_a_task_that_is_resumed_begins_again_and_is_deferred_no_more_where_its_trigger_has_failed():
    from weir_airflow.tasks.operators import WeirCloseOperator

    class Closing(WeirCloseOperator):
        def execute(self, context):
            return context, self.may_defer

    task = Closing(task_id="weir_close", declared=None)
    assert task.resume_execution("execute", {"event": "it is there"}, "context") == ("context", True)
    assert task.resume_execution("__fail__", {"error": "Trigger timeout"}, "context") == ("context", False)
    failed = {"error": "Trigger failure", "traceback": ["no module\n"]}
    assert task.resume_execution("__fail__", failed, "context") == ("context", False)

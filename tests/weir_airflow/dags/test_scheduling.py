"""What Airflow's scheduler makes of a dataflow's DAG: the order of its tasks, and the state of its DagRuns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

FLOWS = """
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir_airflow import dataflow_dag

state = keyed_state("history", key="tail", schema="tail STRING, n BIGINT")
aircraft = Stage("aircraft", "scheduled:aircraft", [blocking("flights", by="tail")], parallelism=2, state=state)
report = Stage("report", "scheduled:report", [blocking("aircraft")])
stages = [source("flights", "scheduled:flights"), aircraft, report, sink("report", "known")]
dataflow_dag(Dataflow("scheduled", stages), schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC),
             is_paused_upon_creation=False)
"""
COMPACTION, REPORT, CLOSE = "weir_compact-aircraft", "report-known", "weir_close"


@pytest.fixture(scope="module")
def dag(enter_dags):
    """The DAG as the scheduler has it: read from Airflow's database."""
    from airflow.api.common.delete_dag import delete_dag
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    file, _ = enter_dags("scheduled_flows.py", FLOWS)
    with create_session() as session:
        yield DBDagBag().get_latest_version_of_dag("scheduled", session=session)
    file.unlink()
    delete_dag("scheduled")


@pytest.fixture
def session():
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        yield session
        session.rollback()


@pytest.fixture
def new_run(dag, session):
    """Make the running DagRun of a day; tasks that are not named have succeeded."""
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    def make(day, **states):
        start = datetime(2013, 1, day, tzinfo=UTC)
        run = dag.create_dagrun(
            run_id=f"day_{day}",
            logical_date=start,
            data_interval=(start, start + timedelta(days=1)),
            run_after=start + timedelta(days=1),
            run_type=DagRunType.SCHEDULED,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            start_date=start,
            session=session,
        )
        run.dag = dag
        for ti in run.get_task_instances(session=session):
            ti.state, ti.try_number = states.get(ti.task_id.replace("-", "_"), "success"), 1
        session.flush()
        return run

    return make


def states(run, session):
    session.flush()
    session.expire_all()
    return {ti.task_id: ti.state for ti in run.get_task_instances(session=session) if ti.map_index < 1}


def decided(run, dag, session):
    """The state of a run after the scheduler has looked at it."""
    session.flush()
    session.expire_all()
    run.dag = dag
    run.update_state(session=session, execute_callbacks=False)
    return str(run.state)


def queued_first(session, most):
    """The tasks that the scheduler queues first, of those that are scheduled."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    runner = SchedulerJobRunner(job=Job())
    return [(ti.run_id, ti.task_id) for ti in runner._executable_task_instances_to_queued(most, session=session)]


def test_what_can_be_closed_goes_before_the_regions_of_all_days_and_early_days_before_later_ones(new_run, session):
    new_run(1, flights="scheduled", weir_close=None)
    new_run(2, report_known="scheduled", weir_close=None)
    new_run(3, flights="scheduled", weir_close=None)
    new_run(4, weir_close="scheduled")
    assert queued_first(session, 3) == [("day_4", CLOSE), ("day_1", "flights"), ("day_2", REPORT)]


def test_a_compaction_goes_neither_before_nor_behind_the_regions_of_its_day(dag):
    weights = {name: task.weight_rule.get_weight(Of(task)) for name, task in dag.task_dict.items()}
    assert weights[COMPACTION] == weights["aircraft"] == weights["flights"]


class Of:
    """All of a task instance that the weight rule asks for."""

    def __init__(self, task):
        self.task = task


@pytest.mark.parametrize("compaction", [None, "running", "queued", "success"])
def test_a_run_marked_failed_stays_failed_whatever_its_compaction_does(new_run, dag, session, compaction):
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed

    run = new_run(1, aircraft="running", report_known=None, weir_close=None, weir_compact_aircraft=compaction)
    set_dag_run_state_to_failed(dag=dag, run_id=run.run_id, commit=True, session=session)
    session.expire_all()
    assert run.state == "failed"
    assert states(run, session)[CLOSE] == "skipped"
    assert {"running", "queued", "scheduled", None}.isdisjoint(states(run, session).values())


def test_a_region_cleared_in_a_run_that_was_marked_failed_makes_it_green_only_with_its_closing_task(
    new_run, dag, session
):
    """Airflow counts the skipped closing task as a success: so the region's task has it cleared."""
    from weir.coordination.airflow import ClearItem
    from weir_airflow.api.compare_and_clear import compare_and_clear

    run = new_run(1, aircraft="running", weir_close="skipped")
    item = ClearItem("scheduled", run.run_id, CLOSE, -1, 1, is_skipped=True)
    (answer,) = compare_and_clear(session, "scheduled", [item])
    assert answer.cleared
    for ti in run.get_task_instances(session=session):
        ti.state = None if ti.task_id == CLOSE else "success"
    assert decided(run, dag, session) == "running"


def indexes(run, dag, session, task):
    """The indexes that a task has after the scheduler has looked at its run."""
    session.flush()
    session.expire_all()
    run.dag = dag
    run.task_instance_scheduling_decisions(session=session)
    return sorted(ti.map_index for ti in run.get_task_instances(session=session) if ti.task_id == task)


@pytest.mark.parametrize("state", [None, "up_for_retry", "success"])
def test_an_index_that_a_run_lacks_is_added_when_another_one_may_run(new_run, dag, session, state):
    """As of a run that was created when the task had fewer subtasks: weir.recovery.expansion tells what is to come."""
    from weir.recovery.expansion import EXPANDABLE

    run = new_run(1, flights="running", aircraft=state, report_known=None, weir_close=None)
    tasks = {(ti.task_id, ti.map_index): ti for ti in run.get_task_instances(session=session)}
    tasks["aircraft", 0].end_date = run.start_date  # a retry is due
    session.delete(tasks["aircraft", 1])
    assert indexes(run, dag, session, "aircraft") == [0]
    tasks["flights", -1].state = "success"
    assert indexes(run, dag, session, "aircraft") == ([0, 1] if state in EXPANDABLE else [0])


def test_a_run_is_green_when_its_closing_task_is_whatever_became_of_a_failed_try_of_a_region(new_run, dag, session):
    run = new_run(1, aircraft="failed", report_known=None, weir_close=None, weir_compact_aircraft=None)
    for _ in range(2):  # the scheduler goes one task further each time that it looks
        decided(run, dag, session)
    found = states(run, session)
    assert (found[REPORT], found[CLOSE]) == ("upstream_failed", "upstream_failed")
    ready = {ti.task_id for ti in run.task_instance_scheduling_decisions(session=session).schedulable_tis}
    assert ready == {COMPACTION}  # it ends as a success, with nothing to compact


def test_the_closing_task_does_not_wait_for_a_compaction(new_run, dag, session):
    run = new_run(1, weir_close=None, weir_compact_aircraft="running")
    ready = {ti.task_id for ti in run.task_instance_scheduling_decisions(session=session).schedulable_tis}
    assert ready == {CLOSE}

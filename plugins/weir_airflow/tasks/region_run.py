"""One attempt of a region, and the closing of a run, as Airflow's tasks: what a task's context says of them.

Invariant: the steps are those of `weir.attempts`; this supplies its ports.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from weir.attempts import closing
from weir.attempts.attempt import run_attempt
from weir.coordination.values import BeginRequest, TaskKey
from weir.errors import Misconfigured
from weir.ledger.runs import PreviousRun, epoch_of
from weir_airflow.assets import announce
from weir_airflow.tasks.context import Office
from weir_airflow.tasks.ports import AirflowTask, SparkEngine
from weir_airflow.tasks.quality_pages import make_pages_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

    from weir.restarts.strategy import RestartChoice
    from weir_airflow.dags.declaration import Declaration
    from weir_airflow.engines.engines import Engine


def run_region(
    declared: Declaration,
    region: str,
    context: Context,
    tell: Callable[[str], None],
    remember: Callable[[Engine], None],
) -> dict[str, Any]:
    """Make an attempt of a region; `remember` gets the engine, so that `on_kill` can stop it."""
    with Office.open() as office:
        engine = SparkEngine(office, declared.spark_conn_id_of(region), remember)
        return run_attempt(
            AirflowTask(office, tell),
            engine,
            declared.flow.name,
            lambda: begin_request(declared, context, engine.address, office.recovery.restart),
            lambda attempt: make_pages_of(office, attempt, tell),
        )


def run_close(declared: Declaration, context: Context, tell: Callable[[str], None]) -> dict[str, Any]:
    """Complete the run and publish its sinks, or raise what is missing."""
    with Office.open() as office:
        return closing.run_close(
            AirflowTask(office, tell),
            declared.flow.name,
            lambda: begin_request(declared, context, "", office.recovery.restart),
            lambda asked, versions: announce(context, declared.flow.name, epoch_of(asked.interval[0]), versions),
        )


def begin_request(declared: Declaration, context: Context, session_url: str, deployed: RestartChoice) -> BeginRequest:
    """What the coordinator needs to know of this try; `deployed` is what the deployment says of restarts."""
    ti = context["ti"]
    return BeginRequest(
        key=task_key(context),
        try_number=ti.try_number,
        max_tries=ti.max_tries,
        ti_id=str(ti.id),
        dataflow=declared.flow,
        task_prefix=declared.task_prefix,
        interval=data_interval(context),
        session_url=session_url,
        clear_number=getattr(context["dag_run"], "clear_number", None) or 0,
        parameters=parameters_of(declared, context),
        previous=previous_run(context) if declared.topology.reads_previous else None,
        restart=declared.restart_strategy(deployed),
        is_backfill=is_backfill(context),
    )


def previous_run(context: Context) -> PreviousRun | None:
    """The newest earlier DagRun that Airflow knows, in whatever state; None where none has an interval."""
    found = context["ti"].get_previous_dagrun()
    if found is None or found.data_interval_start is None or found.data_interval_end is None:
        return None
    interval = (found.data_interval_start, found.data_interval_end)
    return PreviousRun(found.dag_id, found.run_id, interval, _is_queued_behind(context, found))


def _is_queued_behind(context: Context, found: DagRunProtocol) -> bool:
    """Whether Airflow runs a backfill from its end: it has not started an earlier run of it, but a later one."""
    kinds = {_kind(found), _kind(context["dag_run"])}
    state = str(getattr(found.state, "value", found.state))
    return kinds == {"backfill"} and state == "queued" and found.start_date is None


def is_backfill(context: Context) -> bool:
    """Whether the run is one of a backfill: what it makes is no fresh result."""
    return _kind(context["dag_run"]) == "backfill"


def _kind(run: DagRunProtocol) -> str:
    return str(getattr(run.run_type, "value", run.run_type))


def parameters_of(declared: Declaration, context: Context) -> dict[str, Any]:
    """The dataflow's parameters, as this run was triggered: with the values that its configuration has for them."""
    params = context["params"]
    return {name: params.get(name, value) for name, value in declared.flow.parameters.items()}


def task_key(context: Context) -> TaskKey:
    """The task instance; mapped ones have their index, others -1."""
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def data_interval(context: Context) -> tuple[datetime, datetime]:
    """The run's interval, the epoch. Raises Misconfigured for a run without one."""
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None:
        raise Misconfigured(
            f"The run {run.run_id!r} of {run.dag_id!r} has no data interval, and that is a dataflow's epoch. "
            "Trigger it with a logical date, and give the DAG a schedule with intervals: a cron string to "
            "dataflow_dag, or CronDataIntervalTimetable to the DAG that holds the group"
        )
    return start, end

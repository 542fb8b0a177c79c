"""A region's attempt, its compaction and the close of a run, as tasks of Airflow.

Invariant: the drivers of `weir.attempts` take the steps; this reads Airflow's context and supplies their ports. A task
does not depend on pages about its checks: where none can be made, upkeep makes them.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from weir.attempts import closing, compacting
from weir.attempts.attempt import run_attempt
from weir.code.archive import Archive, pack, top_level
from weir.coordination.values import BeginRequest, TaskKey
from weir.errors import Misconfigured, WeirError
from weir.ledger.runs import epoch_of, pinned_interval
from weir.secrecy import without_secrets, without_secrets_in_errors
from weir.state.compaction import CompactionRequest
from weir_airflow.assets import announce, extras_of
from weir_airflow.tasks.context import TaskContext, airflow_api
from weir_airflow.tasks.epochs import data_interval, is_backfill, previous_run, start_of_epoch
from weir_airflow.tasks.ports import AirflowTask, SparkEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Context

    from weir.attempts.ports import Log
    from weir.topology.ids import Epoch
    from weir_airflow.dags.declaration import Declaration
    from weir_airflow.engines.engines import Engine


def run_region(
    declared: Declaration, region: str, context: Context, log: Log, on_engine: Callable[[Engine], None]
) -> dict[str, Any]:
    """Make an attempt of a region; `on_engine` gets the engine, so that `on_kill` can stop it."""
    log = _telling_no_secret(log)
    with without_secrets_in_errors(), TaskContext.open() as task_context:
        engine = SparkEngine(task_context, declared.spark_conn_id_of(region), on_engine)
        return run_attempt(
            AirflowTask(task_context, log, context),
            engine,
            declared.flow.name,
            lambda: replace(
                begin_request(declared, context, engine.address, task_context), deployed=deployed_code(declared)
            ),
        )


def run_close(declared: Declaration, context: Context, log: Log) -> dict[str, Any]:
    """Complete the run and publish its sinks, or raise what is missing."""
    log = _telling_no_secret(log)
    with without_secrets_in_errors(), TaskContext.open() as task_context:
        task = AirflowTask(task_context, log, context)
        return closing.run_close(
            task,
            declared.flow.name,
            lambda: begin_request(declared, context, "", task_context),
            lambda request, new: _announce(task, declared, context, request, new),
        )


def _announce(
    task: AirflowTask,
    declared: Declaration,
    context: Context,
    request: BeginRequest,
    new: Mapping[str, Mapping[str, Any]],
) -> None:
    if declared.flow.shadow_of:
        return
    epoch = epoch_of(request.interval[0])
    if new and context["dag_run"].partition_key is not None:  # that enters the assets, too
        task.airflow.announce(request.key, declared.flow.name, extras_of(epoch, new))
    elif new:
        try:
            task.airflow.enter_assets(request.key.dag_id, declared.flow.name, list(new))
        except WeirError as error:
            task.log(f"Airflow enters the assets of {', '.join(new)} with their first events: {error}")
    announce(context, declared.flow.name, epoch, new)


def run_compaction(
    declared: Declaration, region: str, context: Context, log: Log, on_engine: Callable[[Engine], None]
) -> dict[str, Any]:
    """Compact the state that a region keeps; `on_engine` gets the engine, so that `on_kill` can stop it.

    Raises nothing: without the ledger or the store, the next epoch compacts.
    """
    log = _telling_no_secret(log)
    ti, key = context["ti"], task_key(context)
    kills = ti.try_number - 1 - (ti.max_tries - context["task"].retries)
    try:
        with TaskContext.open() as task_context:
            epoch = epoch_of(start_of_epoch(declared, context))
            request = CompactionRequest(declared.flow.name, epoch, ti.run_id, region)
            engine = SparkEngine(task_context, declared.spark_conn_id_of(region), on_engine)
            return compacting.run_compaction(AirflowTask(task_context, log, context), engine, request, key, kills)
    except (Exception, AirflowTaskTimeout) as error:  # noqa: BLE001  any error: it must not decide about the run
        log(traceback.format_exc())
        return compacting.left_to_next_epoch(airflow_api, key, f"{type(error).__name__}: {error}", log)


def _telling_no_secret(log: Log) -> Log:
    """Return a log in which the secrets that functions were handed do not stand, in whatever form."""
    return lambda message: log(without_secrets(message))


def begin_request(declared: Declaration, context: Context, session_url: str, task_context: TaskContext) -> BeginRequest:
    """Describe this try to the coordinator. Raises Misconfigured for a run without an epoch."""
    ti = context["ti"]

    def pinned(epoch: Epoch) -> tuple[datetime, datetime] | None:
        with task_context.services.ledger.transaction() as session:
            return pinned_interval(session, declared.flow.name, epoch, ti.dag_id, ti.run_id)

    interval = data_interval(declared, context, pinned)
    follows = declared.topology.follows_previous
    return BeginRequest(
        key=task_key(context),
        try_number=ti.try_number,
        max_tries=ti.max_tries,
        ti_id=str(ti.id),
        dataflow=declared.flow,
        task_prefix=declared.task_prefix,
        interval=interval,
        session_url=session_url,
        clear_number=clear_number(context),
        parameters=parameters_of(declared, context),
        previous=previous_run(declared, context, interval, lambda: task_context.airflow) if follows else None,
        restart=declared.restart_strategy(task_context.recovery.restart),
        is_backfill=is_backfill(context),
        schedule=declared.schedule,
        zone=declared.zone,
        cadence=declared.cadence,
    )


def deployed_code(declared: Declaration) -> Archive:
    """Pack the modules of all functions of a dataflow, its SQL files and its applications.

    Raises Misconfigured if one of them is not on this machine.
    """
    try:
        applications = {name: path.read_bytes() for name, path in declared.applications.items()}
    except OSError as error:
        raise Misconfigured.of("tasks.application_unreadable", flow=declared.flow, error=error) from error
    return pack(top_level(stage.function for stage in declared.flow.stages), declared.sql, applications)


def task_key(context: Context) -> TaskKey:
    """Identify the task instance; a mapped one has its index, any other -1."""
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def clear_number(context: Context) -> int:
    """Return how often a person had cleared tasks of the DagRun when this try began."""
    return getattr(context["dag_run"], "clear_number", None) or 0


def parameters_of(declared: Declaration, context: Context) -> dict[str, Any]:
    """Return the dataflow's parameters, with the values that this run's configuration has for them."""
    params = context["params"]
    return {name: params.get(name, value) for name, value in declared.flow.parameters.items()}

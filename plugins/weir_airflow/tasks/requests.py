"""Carries out what a person has asked for on a page: one DagRun of `weir_requests` is one request.

Invariant: nothing is done unless the request does what its person saw, and the person may have it done now. It is
carried out once, within a day, by the first try of a run that a person has made: another try, or a DAG that triggers
this one, would act in the name of somebody who has not asked.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from weir.errors import Misconfigured, WeirError
from weir.recovery.run_plans import reaching
from weir.requests.request import LATELY, REQUESTS, Request
from weir.requests.verbs import plan_request, refusal, require_same, verb_of
from weir.units import format_duration
from weir_airflow.tasks.context import TaskContext, airflow_api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from weir.attempts.ports import Log


def carry_out_request(context: Context, log: Log) -> str:
    """Carry out the request of this DagRun, and leave at the DagRun what was done, or why nothing was.

    Raises AirflowFailException with the reason where nothing was done: another try would find the same.
    """
    try:
        said = _carried_out(context, log)
    except WeirError as error:
        log(_noted(context, f"Not done. {error}"))
        raise AirflowFailException(str(error)) from None
    log(_noted(context, said))
    return said


def _carried_out(context: Context, log: Log) -> str:
    dag_run = context["dag_run"]
    request, user = Request.of(dag_run.conf or {}), dag_run.triggering_user_name or ""
    verb_of(request)
    if context["ti"].try_number > 1:
        raise Misconfigured.of("tasks.request_tried_again")
    if not user or dag_run.run_type != "manual":
        raise Misconfigured.of("tasks.request_of_nobody", run_type=dag_run.run_type)
    if datetime.now(UTC) - dag_run.run_after > LATELY:
        raise Misconfigured.of("tasks.request_too_old", made_at=dag_run.run_after, limit=format_duration(LATELY))
    log(f"{user} asks for {request.to_conf()}")
    with TaskContext.open() as task_context:
        _require_rights(task_context, request, user, [request.dag_id])  # before anything is looked at
        planned = plan_request(task_context.services, request, reaching(task_context.airflow))
        require_same(request, planned)
        _require_rights(task_context, request, user, planned.dags)
        return f"Done for {user}. {planned.carry_out(task_context.airflow, user)}"


def _require_rights(task_context: TaskContext, request: Request, user: str, dags: Iterable[str]) -> None:
    rights = {dag_id: task_context.airflow.rights(dag_id, user) for dag_id in dags}
    if reason := refusal(request, user, rights, task_context.operators):
        raise Misconfigured(reason)


def _noted(context: Context, said: str) -> str:
    """Leave a note at the DagRun; return it, with why it is not there where Airflow did not take it."""
    try:
        airflow_api().annotate_run(REQUESTS, context["run_id"], said)
    except WeirError as error:
        return f"{said} (This could not be noted at the DagRun: {error})"
    return said

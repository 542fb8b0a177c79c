"""The pages about a task of a DAG, and about what its dataflows have been through, below `/weir/dags/DAG`.

Invariant: as of the other pages: who asks may read the DAG in the path, and nothing is shown but of its dataflows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from weir.requests import request as requests
from weir.views.charts import chart_of_weeks
from weir.views.datasets import dataflows_of
from weir.views.documents import document, plain
from weir.views.failovers import failover_views, weeks_of
from weir.views.notifications import receivers_waiting
from weir.views.quality import checks_of_dag, checks_of_task_instance
from weir.views.results import results_of
from weir.views.runs import dag_runs_of, dataflows_of_dag, run_of_task, runs_of_dag_run
from weir.views.sinks import sink_versions
from weir.views.tasks import HasNotBegun, TaskDetails, task_details
from weir_airflow.pages.answers import MAY_READ, answered, dags_of, no_run, reach
from weir_airflow.pages.requests import Asker, requests_about
from weir_airflow.pages.showing import page

if TYPE_CHECKING:
    from collections.abc import Callable

    from weir.coordination.services import Services

router = APIRouter()

WEEKS = 12
"""How many weeks with failures the page about recovery shows, up to the newest."""

LISTED = 200
"""How many of the newest versions and checks are listed."""


@router.get("/dags/{dag_id}/task", dependencies=MAY_READ)
def task(
    request: Request, dag_id: str, run_id: str, task_id: str, user: GetUserDep, map_index: str = ""
) -> HTMLResponse:
    """Show a task instance, or all of a mapped task."""
    index = _index(map_index)

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            run = run_of_task(session, dag_id, run_id, task_id)
        if run is None:
            return no_run(request, dag_id, run_id)
        of: dict[str, Any] = {"dag_id": dag_id, "run": run, "run_id": run_id, "task_id": task_id, "map_index": index}
        name = task_id if index < 0 else f"{task_id}[{index}]"
        try:
            details = task_details(services, run, name, reach())
        except HasNotBegun as error:
            return page(request, "message.html", title=f"{task_id} has not begun", said=str(error), command="")
        of["buttons"], of["requests"] = _buttons(details, dag_id, run, user), []
        if len(details.tasks) == 1:
            of["requests"] = requests_about(run, details.tasks[0].region)
        return page(request, "task.html", document=document(**plain(details)), **of)

    return answered(request, shown)


@router.get("/dags/{dag_id}/results", dependencies=MAY_READ)
def results(
    request: Request, dag_id: str, run_id: str, dataflow: str, user: GetUserDep, stage: str | None = None
) -> HTMLResponse:
    """Show the results of a run: who has read them, of those whom the user may see, and why each is kept."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            runs = [run for run in runs_of_dag_run(session, dag_id, run_id) if run.partition("@")[0] == dataflow]
            seen = dataflows_of(session, dags_of(user)) | {dataflow}
        if not runs:
            return no_run(request, dag_id, run_id)
        found = document(runs=results_of(services, runs[0], stage, with_reasons=True).runs)
        return page(request, "results.html", dag_id=dag_id, document=found, dataflow=dataflow, run_id=run_id, seen=seen)

    return answered(request, shown)


def _buttons(details: TaskDetails, dag_id: str, run: str, user: GetUserDep) -> list[dict[str, Any]]:
    """Return the button that clears a task, if the page is about one."""
    if len(details.tasks) != 1 or details.acts is None or not details.acts.clears:
        return []
    region, acts = details.tasks[0].region, details.acts
    asked = requests.Request(verb="clear", dag_id=dag_id, name=run, what=region, hash=acts.hash)
    return [Asker(user).button(asked, f"Clear {region}", acts.dags)]


@router.get("/dags/{dag_id}/recovery", dependencies=MAY_READ)
def recovery(request: Request, dag_id: str) -> HTMLResponse:
    """Show the failures of the newest weeks of a DAG, and what their repair has cost."""

    def of_dataflow(services: Services, dataflow: str) -> dict[str, Any]:
        with services.ledger.transaction() as session:
            found = failover_views(session, dataflow, newest_weeks=WEEKS)
            run_ids = dag_runs_of(session, dag_id, dataflow)
        weeks = weeks_of(found)
        of = document(failovers=found, weeks=weeks)
        return {"document": of, "chart": chart_of_weeks(weeks), "run_ids": run_ids}

    return _by_dataflow(request, dag_id, "recovery", of_dataflow, weeks=WEEKS)


@router.get("/dags/{dag_id}/sinks", dependencies=MAY_READ)
def sinks(request: Request, dag_id: str) -> HTMLResponse:
    """Show the versions of the sinks of a DAG, and who has not got what was published."""

    def of_dataflow(services: Services, dataflow: str) -> dict[str, Any]:
        with services.ledger.transaction() as session:
            versions = sink_versions(session, dataflow)
            receivers = receivers_waiting(session, dataflow, services.now())
        return {"document": document(sinks=versions, receivers=receivers)}

    return _by_dataflow(request, dag_id, "sinks", of_dataflow, listed=LISTED)


@router.get("/dags/{dag_id}/quality", dependencies=MAY_READ)
def quality(
    request: Request,
    dag_id: str,
    run_id: str | None = None,
    task_id: str | None = None,
    map_index: str = "",
    *,
    violations: bool = False,
) -> HTMLResponse:
    """Show the checks by the tries of one task instance, or the newest of all runs of the DAG."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            if run_id is None or task_id is None:
                found = checks_of_dag(session, dag_id, LISTED, is_violated=violations)
            else:
                found = checks_of_task_instance(session, dag_id, run_id, task_id, _index(map_index))
            is_known = bool(found) or bool(dataflows_of_dag(session, dag_id))
        if not is_known:
            return no_run(request, dag_id)
        asked = {"run_id": run_id, "task_id": task_id, "map_index": _index(map_index), "violations": violations}
        return page(request, "quality.html", dag_id=dag_id, document=document(checks=found), asked=asked, listed=LISTED)

    return answered(request, shown)


def _index(map_index: str) -> int:
    """Read the index of a mapped task; Airflow leaves a name in braces as it is where it has none to give."""
    return int(map_index) if re.fullmatch("[0-9]{1,9}", map_index) else -1


def _by_dataflow(
    request: Request, dag_id: str, name: str, of_dataflow: Callable[[Services, str], dict[str, Any]], **more: Any
) -> HTMLResponse:
    """Show the same page of each dataflow of a DAG below each other."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            names = dataflows_of_dag(session, dag_id)
        if not names:
            return no_run(request, dag_id)
        found = {each: of_dataflow(services, each) for each in names}
        return page(request, f"{name}.html", dag_id=dag_id, dataflows=found, **more)

    return answered(request, shown)

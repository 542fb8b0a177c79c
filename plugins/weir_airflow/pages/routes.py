"""The pages, below `/weir` on Airflow's API server.

Invariant: the DAG stands in the path of each page about one, and who asks may read its task instances; a run or a task
is shown only if it is of that DAG. To look changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Depends, Query, Request, status
from fastapi.responses import HTMLResponse, Response

from weir.coordination.services import Services
from weir.recovery.questions import Question
from weir.recovery.run_plans import Acts
from weir.requests import request as requests
from weir.requests.verbs import VERIFIES
from weir.views.dataflows import dataflow_details, dataflow_overviews, upkeep_of
from weir.views.documents import document
from weir.views.drawings import STYLE, drawing_of, svg_of
from weir.views.runs import RunDetails, dataflows_of_dag, run_details, runs_of_dag_run
from weir_airflow.pages.answers import MAY_READ, answered, no_run, reach
from weir_airflow.pages.requests import Asker, requests_about
from weir_airflow.pages.showing import Addresses, page

router = APIRouter()

_MAY_SEE: Final = [Depends(requires_access_view(AccessView.PLUGINS))]
_KINDS: Final = {".js": "text/javascript", ".css": "text/css"}
_FILES: Final = {each.name: each for each in (*(Path(__file__).parent / "static").iterdir(), STYLE)}


@router.get("/dataflows", dependencies=_MAY_SEE)
def dataflows(request: Request, user: GetUserDep) -> HTMLResponse:
    """Show the dataflows of all DAGs that the user may read."""
    from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415  the app is being made while this is imported

    dags = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")

    def shown(services: Services) -> HTMLResponse:
        found = document(dataflows=dataflow_overviews(services, reach(), dags), upkeep=upkeep_of(services))
        return page(request, "dataflows.html", document=found)

    return answered(request, shown)


@router.get("/dags/{dag_id}/dataflow", dependencies=MAY_READ)
def dataflow(request: Request, dag_id: str, *, kept: bool = False) -> HTMLResponse:
    """Show the dataflows of a DAG: their newest run drawn, and their runs; with `kept` what keeps their bytes."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            names = dataflows_of_dag(session, dag_id)
        if not names:
            return no_run(request, dag_id)
        found = [dataflow_details(services, name, reach(), with_kept=kept) for name in names]
        drawings = [None if each.graph is None else svg_of(drawing_of(each.graph)) for each in found]
        return page(request, "dataflow.html", dag_id=dag_id, document=document(dataflows=found), drawings=drawings)

    return answered(request, shown)


@router.get("/dags/{dag_id}/run", dependencies=MAY_READ)
def run(
    request: Request,
    dag_id: str,
    run_id: str,
    user: GetUserDep,
    dataflow: str | None = None,
    look: Annotated[bool | None, Query()] = None,
    fail: str | None = None,
    lost: Annotated[list[str] | None, Query()] = None,
) -> HTMLResponse:
    """Show a run; with `look` each result is looked for in the store; what `fail` and `lost` would restart."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            runs = runs_of_dag_run(session, dag_id, run_id)
        wanted = [each for each in runs if dataflow in (None, each.partition("@")[0])]
        if not wanted:
            return no_run(request, dag_id, run_id)
        details = run_details(services, Question(wanted[0], fail, tuple(lost or ()), looks=bool(look)), reach())
        to = Addresses.of(request)
        drawing = None
        if details.graph is not None:
            tasks = {region.name: region.task_id for region in details.graph.regions}
            drawing = svg_of(
                drawing_of(details.graph),
                lambda region: to.page(dag_id, "task", run_id=run_id, task_id=tasks[region]),
            )
        is_assumed = bool(fail or lost)
        of: dict[str, Any] = {
            "document": document(run=details),
            "drawing": drawing,
            "runs": runs,
            "asked": {"fail": fail, "lost": lost or []},
            "buttons": [] if is_assumed else _buttons(details, dag_id, user, is_looked=bool(look)),
            "requests": requests_about(details.run),
        }
        return page(request, "run.html", dag_id=dag_id, **of)

    return answered(request, shown)


def _buttons(details: RunDetails, dag_id: str, user: GetUserDep, *, is_looked: bool) -> list[dict[str, Any]]:
    """Return the buttons of the page of a run."""
    acts: Acts = details.plan["acts"]
    apply = requests.Request(verb="apply", dag_id=dag_id, name=details.run, hash=acts.hash, looked=is_looked)
    repair, verify = replace(apply, verb="repair"), replace(apply, verb="verify", hash=VERIFIES, looked=False)
    asker = Asker(user)
    return [
        *([asker.button(apply, "Apply this plan", acts.dags)] if acts.clears else []),
        asker.button(repair, "Read every byte again, and recompute what is damaged"),
        asker.button(verify, "Only read every byte again"),
    ]


@router.get("/static/{name}")
def own_file(name: str) -> Response:
    """Serve the pages' script and style."""
    if name not in _FILES:
        return Response(status_code=status.HTTP_404_NOT_FOUND)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=600"}
    file = _FILES[name]
    return Response(file.read_bytes(), media_type=_KINDS[file.suffix], headers=headers)

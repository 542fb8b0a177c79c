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
from weir.recovery.dataset_plans import plans_if_changed
from weir.recovery.questions import Question
from weir.recovery.run_plans import Acts
from weir.requests import request as requests
from weir.requests.verbs import VERIFIES, plan_request
from weir.views.comparison import Comparison, epochs_compared
from weir.views.dataflows import NEWEST, DataflowDetails, dataflow_details, dataflow_overviews, upkeep_of
from weir.views.datasets import dataflows_of, dataset_views, inputs_of_run
from weir.views.documents import document
from weir.views.drawings import STYLE, drawing_of, drawing_of_lineage, svg_of
from weir.views.lineage import lineage_of
from weir.views.runs import RunDetails, dataflows_of_dag, run_details, runs_of_dag_run
from weir_airflow.pages.answers import MAY_READ, answered, dags_of, no_run, reach
from weir_airflow.pages.requests import Asker, requests_about
from weir_airflow.pages.showing import Addresses, page

router = APIRouter()

_MAY_SEE: Final = [Depends(requires_access_view(AccessView.PLUGINS))]
_KINDS: Final = {".js": "text/javascript", ".css": "text/css"}
_FILES: Final = {each.name: each for each in (*(Path(__file__).parent / "static").iterdir(), STYLE)}


@router.get("/dataflows", dependencies=_MAY_SEE)
def dataflows(request: Request, user: GetUserDep) -> HTMLResponse:
    """Show the dataflows of all DAGs that the user may read."""
    dags = dags_of(user)

    def shown(services: Services) -> HTMLResponse:
        overviews = dataflow_overviews(services, reach(), dags)
        with services.ledger.transaction() as session:
            found, lineage = dataset_views(session, dags), lineage_of(session, dag_ids=dags)
        is_read = any(each.readers for each in found) or any(each.made_of for each in lineage.nodes)
        drawing = svg_of(drawing_of_lineage(lineage)) if is_read else None
        of = document(dataflows=overviews, upkeep=upkeep_of(services), datasets=found if is_read else ())
        return page(request, "dataflows.html", document=of, drawing=drawing)

    return answered(request, shown)


@router.get("/dags/{dag_id}/dataflow", dependencies=MAY_READ)
def dataflow(request: Request, dag_id: str, user: GetUserDep, *, kept: bool = False) -> HTMLResponse:
    """Show the dataflows of a DAG: their newest run drawn, and their runs; with `kept` what keeps their bytes.

    A shadow is compared with the dataflow that it runs beside, if the user may see that.
    """

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            names, seen = dataflows_of_dag(session, dag_id), dataflows_of(session, dags_of(user))
        if not names:
            return no_run(request, dag_id)
        found = [dataflow_details(services, name, reach(), with_kept=kept) for name in names]
        drawings = [None if each.graph is None else svg_of(drawing_of(each.graph)) for each in found]
        beside = {each.overview.dataflow: _epochs_beside(services, each) for each in found if each.shadow_of in seen}
        of = document(dataflows=found, compared=beside)
        return page(request, "dataflow.html", dag_id=dag_id, document=of, drawings=drawings)

    return answered(request, shown)


def _epochs_beside(services: Services, details: DataflowDetails) -> list[Comparison]:
    """Return how the newest epochs of a shadow compare with those of the dataflow that it runs beside."""
    return epochs_compared(services, details.shadow_of, details.overview.dataflow, NEWEST) or []


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
    changed: str | None = None,
) -> HTMLResponse:
    """Show a run; with `look` each result is looked for in the store; what `fail` and `lost` would restart.

    `changed` is a sink: what would restart in other dataflows if it published other rows.
    """

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
            "buttons": [] if is_assumed else _buttons(services, details, dag_id, user, is_looked=bool(look)),
            "requests": requests_about(details.run),
            "inputs": _inputs(services, details),
            "readers": None if changed is None else _readers(services, details, changed, user),
        }
        return page(request, "run.html", dag_id=dag_id, **of)

    return answered(request, shown)


def _inputs(services: Services, details: RunDetails) -> dict[str, Any]:
    """Return what a run that has begun reads of other dataflows."""
    if details.graph is None:
        return document(inputs=())
    with services.ledger.transaction() as session:
        return document(inputs=inputs_of_run(session, details.run).inputs)


def _readers(services: Services, details: RunDetails, sink: str, user: GetUserDep) -> dict[str, Any]:
    """Return the plans of runs of other dataflows if a sink changed; of those of other users only how many."""
    found = plans_if_changed(services, f"{details.dataflow}.{sink}", details.epoch)
    with services.ledger.transaction() as session:
        seen = dataflows_of(session, dags_of(user))
    plans = [each for each in found.plans if each.run.partition("@")[0] in seen]
    return document(dataset=found.dataset, plans=plans, hidden=len(found.plans) - len(plans))


def _buttons(
    services: Services, details: RunDetails, dag_id: str, user: GetUserDep, *, is_looked: bool
) -> list[dict[str, Any]]:
    """Return the buttons of the page of a run."""
    acts: Acts = details.plan["acts"]
    apply = requests.Request(verb="apply", dag_id=dag_id, name=details.run, hash=acts.hash, looked=is_looked)
    repair, verify = replace(apply, verb="repair"), replace(apply, verb="verify", hash=VERIFIES, looked=False)
    asker = Asker(user)
    return [
        *([asker.button(apply, "Apply this plan", acts.dags)] if acts.clears else []),
        *_run_again(services, apply, asker),
        *_seal(services, apply, asker),
        asker.button(repair, "Read every byte again, and recompute what is damaged"),
        asker.button(verify, "Only read every byte again"),
    ]


def _run_again(services: Services, apply: requests.Request, asker: Asker) -> list[dict[str, Any]]:
    """Return the button that runs all of a run again that has changed, where its dataflow reuses results."""
    asked = replace(apply, verb="reuse", looked=False)
    planned = plan_request(services, asked, reach())
    found = replace(asked, hash=planned.hash)
    return [] if planned.nothing else [asker.button(found, "Run again what has changed", planned.dags)]


def _seal(services: Services, apply: requests.Request, asker: Asker) -> list[dict[str, Any]]:
    """Return the button that has later days go on without this one, where a task of it has failed and they wait."""
    asked = replace(apply, verb="seal", looked=False)
    planned = plan_request(services, asked, reach())
    found = replace(asked, hash=planned.hash)
    return [asker.button(found, f"Seal this day: {planned.says}", planned.dags)] if planned.says else []


@router.get("/static/{name}")
def own_file(name: str) -> Response:
    """Serve the pages' script and style."""
    if name not in _FILES:
        return Response(status_code=status.HTTP_404_NOT_FOUND)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=600"}
    file = _FILES[name]
    return Response(file.read_bytes(), media_type=_KINDS[file.suffix], headers=headers)

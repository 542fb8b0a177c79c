"""The page about the state of a DAG: its checkpoints, the dry run of a restore, the row of a key, and requests.

Invariant: it looks into the store only for what a button has asked, whose answer has its time; and it opens no place
that is not in the ledger: what is restored or read is named by its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Query, Request, status
from fastapi.responses import HTMLResponse

from weir.coordination.services import Services
from weir.errors import Misconfigured, OtherBuild, ResultUnavailable
from weir.ledger.ledger import NotMigrated
from weir.requests import request as requests
from weir.requests.verbs import SAVES, dags_of
from weir.views.charts import chart_of_bytes
from weir.views.checkpoints import checkpoint_views, dry_run_of
from weir.views.documents import document
from weir.views.runs import dataflows_of_dag
from weir.views.states import keyed_state_views, row_of_key
from weir_airflow.pages.answers import MAY_READ, answered, no_run
from weir_airflow.pages.requests import Asker, requests_about
from weir_airflow.pages.showing import page

if TYPE_CHECKING:
    from collections.abc import Callable

router = APIRouter()

DRAWN: Final = 60
"""How many of the newest checkpoints are drawn."""

LISTED: Final = 200
"""How many of the newest checkpoints are listed."""

_KEPT: Final = ("checkpoint", "completed")

_Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page is asked of a dataflow: the dry run of a restore, or a key of a state.

    `key` are the texts of the key's columns; `null` the places of those that are null.
    """

    dataflow: str = ""
    restore: _Number = None
    state: str = ""
    key: Annotated[list[str] | None, Query()] = None
    null: Annotated[list[int] | None, Query()] = None
    epoch: str = ""
    checkpoint: str = ""

    def row(self, services: Services) -> dict[str, Any]:
        """Return the fields of the document of the key's row."""
        nulls = self.null or []
        key = [None if place in nulls else text for place, text in enumerate(self.key or [])]
        checkpoint = self.checkpoint if self.checkpoint.isdecimal() else None
        return row_of_key(services, self.dataflow, self.state, key, self.epoch or None, checkpoint)


@router.get("/dags/{dag_id}/state", dependencies=MAY_READ)
def state(request: Request, dag_id: str, asked: Annotated[Asked, Depends()], user: GetUserDep) -> HTMLResponse:
    """Show the checkpoints and savepoints of a DAG, by what the ledger knows, and what was asked."""

    def shown(services: Services) -> HTMLResponse:
        with services.ledger.transaction() as session:
            names = dataflows_of_dag(session, dag_id)
        if not names:
            return no_run(request, dag_id)
        found = {name: _of_dataflow(services, name, asked) for name in names}
        asker = Asker(user)
        for name, of in found.items():
            of["buttons"] = _buttons(asker, dag_id, name, of, dags_of(services, name))
            of["requests"] = requests_about(name)
        is_refused = any("problem" in each for of in found.values() for each in (of["dry_run"], of["row"]))
        code = status.HTTP_404_NOT_FOUND if is_refused else status.HTTP_200_OK
        return page(request, "state.html", status=code, dag_id=dag_id, dataflows=found, asked=asked, listed=LISTED)

    return answered(request, shown)


def _of_dataflow(services: Services, dataflow: str, asked: Asked) -> dict[str, Any]:
    checkpoints = checkpoint_views(services, dataflow, looks=False)
    with services.ledger.transaction() as session:
        states = keyed_state_views(session, dataflow)
    of: dict[str, Any] = {
        "document": document(checkpoints=checkpoints, states=states),
        "chart": chart_of_bytes(checkpoints, DRAWN),
        "dry_run": {},
        "row": {},
    }
    if asked.dataflow != dataflow:
        return of
    number = asked.restore
    if number is not None:
        of["dry_run"], of["what"] = _answer(lambda: dry_run_of(services, dataflow, number)), str(number)
    if asked.state:
        of["row"] = _answer(lambda: asked.row(services))
    return of


def _buttons(
    asker: Asker, dag_id: str, dataflow: str, of: dict[str, Any], dags: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Return the buttons by verb: a restore is asked for only after its dry run."""
    found = {}
    kept = [each["number"] for each in of["document"]["checkpoints"] if (each["kind"], each["status"]) == _KEPT]
    if kept:
        what = str(kept[-1])
        asked = requests.Request(verb="savepoint", dag_id=dag_id, name=dataflow, what=what, hash=SAVES)
        found["savepoint"] = asker.button(asked, f"Create a savepoint of checkpoint {what}", dags)
    shown = of["dry_run"].get("document")
    if shown is not None and not shown["is_in_effect"]:
        asked = requests.Request(verb="restore", dag_id=dag_id, name=dataflow, what=of["what"], hash=shown["hash"])
        found["restore"] = asker.button(asked, f"Restore {shown['source']}", dags)
    return found


def _answer(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the document of an answer, or why there is none; what concerns the whole page is raised."""
    try:
        return {"document": document(**ask())}
    except (NotMigrated, OtherBuild):
        raise
    except (Misconfigured, ResultUnavailable) as error:
        return {"problem": str(error)}

"""Pages about checks, served to users who may read the task instances of the DAG.

Invariant: an address names a check by its number, never a file: the ledger says which page belongs to it, and whether
its run is of the DAG in the address. A page from the store can run nothing in a browser. A request changes nothing: a
ledger of another revision is not migrated.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import APIRouter, Depends, Query, status
from fastapi.responses import HTMLResponse

from weir.errors import OtherBuild, WeirError
from weir.formats.paths import PAGES
from weir.ledger.ledger import Ledger, NotMigrated
from weir.quality.check_queries import check_of_dag, checks_of_task, may_have_page, newest_checks_of_dag
from weir.quality.pages import checks_table, html_page
from weir.store.errors import NotFound
from weir.store.store import Store
from weir_airflow.connections.connections import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weir.ledger.database.tables import QualityCheckRow
    from weir.settings import Settings


router = APIRouter()
log = logging.getLogger(__name__)
_MAY_READ: Final = [Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))]
_HARMLESS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_FROM_STORE: Final = {
    **_HARMLESS,
    "Content-Security-Policy": f"{_HARMLESS['Content-Security-Policy']}; sandbox",
}

LISTED = 200
"""The largest number of checks of a DAG that are listed."""

_LATER = (
    "<p>Without a link there is no page yet. The DAG weir_upkeep makes it within minutes (is it unpaused?), and "
    "<code>weir quality docs</code> at once. Rows whose digest has passed before are not checked again, and get "
    "none.</p>"
)


_NOT_MADE = (
    "<p>It is not there, or has no tables, and a page changes nothing. Type <code>weir ledger upgrade</code> where the "
    "workers' settings are; the next task of a Weir DAG makes it, too. If neither helps, the API server has other "
    "settings than the workers (WEIR_LEDGER, or the connection weir_ledger).</p>"
)

_OF_OTHER_BUILD = (
    "<p>Its tables are those of another build of Weir: the API server and the workers need the same one. <code>weir "
    "doctor</code> says what to do.</p>"
)


@router.get("/dags/{dag_id}/quality", dependencies=_MAY_READ)
def checks(
    dag_id: str,
    run_id: Annotated[str | None, Query()] = None,
    task_id: Annotated[str | None, Query()] = None,
    map_index: Annotated[int, Query()] = -1,
) -> HTMLResponse:
    """List checks: those of one task instance's tries, or the newest of all runs of the DAG."""
    try:
        with _ledger() as (_, ledger), ledger.transaction() as session:
            if run_id is None or task_id is None:
                return _listed(f"Data quality of {dag_id}", newest_checks_of_dag(session, dag_id, LISTED))
            name = task_id if map_index < 0 else f"{task_id}[{map_index}]"
            found = checks_of_task(session, dag_id, run_id, task_id, map_index)
            return _listed(f"Data quality of {name} in {run_id}", found)
    except WeirError as error:
        return _unknown(error)


@router.get("/dags/{dag_id}/quality/{check}", dependencies=_MAY_READ)
def page(dag_id: str, check: int) -> HTMLResponse:
    """Show the page about a check of a run of this DAG."""
    try:
        with _ledger() as (found, ledger):
            with ledger.transaction() as session:
                row = check_of_dag(session, dag_id, check)
            if row is None:
                return _message(f"The ledger knows no check {check} of this DAG", status.HTTP_404_NOT_FOUND)
            if row.page is None:
                return _listed("There is no page yet", [row])
            return _stored(Store.open(found.store, found.store_options), row.page)
    except WeirError as error:
        return _unknown(error)


def _stored(store: Store, path: str) -> HTMLResponse:
    parts = path.split("/")
    if parts[0] != PAGES or ".." in parts or not path.endswith(".html"):
        return _message("The ledger names a file that is no page", status.HTTP_404_NOT_FOUND)
    try:
        return HTMLResponse(store.read(path), headers=_FROM_STORE)
    except NotFound:
        return _message("The page is gone: its run has expired, or it was deleted", status.HTTP_404_NOT_FOUND)


def _listed(title: str, rows: Sequence[QualityCheckRow]) -> HTMLResponse:
    if not rows:
        return HTMLResponse(html_page(title, "<p>Nothing was checked here, or not yet.</p>"), headers=_HARMLESS)
    links = {row.id: f"quality/{row.id}" for row in rows if row.page is not None}
    is_missing = any(row.page is None and may_have_page(row) for row in rows)
    body = checks_table(rows, links) + (_LATER if is_missing else "")
    return HTMLResponse(html_page(title, body), headers=_HARMLESS)


def _message(title: str, code: int) -> HTMLResponse:
    return HTMLResponse(html_page(title, ""), status_code=code, headers=_HARMLESS)


def _unknown(error: WeirError) -> HTMLResponse:
    """Answer 503 where the API server cannot reach ledger or store; the page does not show where they are."""
    log.warning("Checks of data quality cannot be shown: %s", error)
    if isinstance(error, NotMigrated | OtherBuild):
        body = _NOT_MADE if isinstance(error, NotMigrated) else _OF_OTHER_BUILD
        return HTMLResponse(
            html_page("Weir's ledger cannot be read", body),
            status_code=status.HTTP_503_SERVICE_UNAVAILABLE,
            headers=_HARMLESS,
        )
    title = "The API server of Airflow cannot read Weir's ledger and store"
    body = (
        f"<p>{type(error).__name__}. It needs the same settings as the workers (WEIR_LEDGER and WEIR_STORE, or the "
        "connections weir_ledger and weir_store); its log says more. <code>weir quality</code> shows the same where "
        "these are set.</p>"
    )
    return HTMLResponse(html_page(title, body), status_code=status.HTTP_503_SERVICE_UNAVAILABLE, headers=_HARMLESS)


@contextmanager
def _ledger() -> Iterator[tuple[Settings, Any]]:
    found = settings()
    ledger = Ledger.open_as_it_is(found.ledger)
    try:
        yield found, ledger
    finally:
        ledger.close()

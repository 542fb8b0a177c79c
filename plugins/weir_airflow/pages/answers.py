"""Answers a request for a page, also where there is nothing to show or ledger and store cannot be read.

Invariant: a page opens the ledger as it is, and closes it again; an answer does not show where ledger and store are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends

from weir.errors import Misconfigured, OtherBuild, WeirError
from weir.ledger.ledger import NotMigrated
from weir.recovery.run_plans import reaching
from weir_airflow.api.compare_and_clear import DbClearer
from weir_airflow.connections.reading import services_to_read
from weir_airflow.pages.showing import page

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from fastapi.responses import HTMLResponse
    from starlette.requests import Request

    from weir.coordination.services import Services
    from weir.recovery.run_plans import Reach

log = logging.getLogger(__name__)

MAY_READ: Final = [Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))]
"""Of the user who asks, about the DAG in the path."""


def dags_of(user: BaseUser) -> set[str]:
    """Return the DAGs that a user may read."""
    from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415  the app is being made while this is imported

    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def reach() -> Reach:
    """Return what asks the Airflow of this API server."""
    return reaching(DbClearer())


def answered(request: Request, shown: Callable[[Services], HTMLResponse]) -> HTMLResponse:
    """Answer with a page; 404 for what the ledger does not know, 503 where ledger or store cannot be read."""
    if any("\0" in value for _, value in request.query_params.multi_items()):  # PostgreSQL takes no such text
        said = "Nothing has a name with a NUL character."
        return page(request, "message.html", status=404, title="Not found", said=said, command="")
    try:
        with services_to_read() as services:
            return _of_known(request, shown, services)
    except NotMigrated as error:
        return _unreadable(request, error, "ledger upgrade")
    except WeirError as error:
        return _unreadable(request, error, "doctor")


def _of_known(request: Request, shown: Callable[[Services], HTMLResponse], services: Services) -> HTMLResponse:
    """Answer 404 for what an open ledger does not know; settings that are wrong are no question of the page's."""
    try:
        return shown(services)
    except (NotMigrated, OtherBuild):
        raise
    except Misconfigured as error:
        return page(request, "message.html", status=404, title="Not found", said=str(error), command="")


def _unreadable(request: Request, error: WeirError, command: str) -> HTMLResponse:
    """Answer that ledger or store cannot be read; where they are is in the log of the API server only."""
    log.warning("A page of Weir cannot be shown: %s", error)
    return page(
        request,
        "message.html",
        status=503,
        title="The API server of Airflow cannot read Weir's ledger or store",
        said=f"{type(error).__name__}. It needs the same settings as the workers: WEIR_LEDGER and WEIR_STORE, or the "
        "connections weir_ledger and weir_store. Its log says more.",
        command=f"weir {command}",
    )


def no_run(request: Request, dag_id: str, run_id: str = "") -> HTMLResponse:
    """Answer that the ledger knows no run of a DAG, or not this one."""
    named = f"{run_id} of {dag_id}" if run_id else f"of {dag_id}"
    said = f"The ledger knows no run {named}: no task of it has begun."
    return page(
        request, "message.html", status=404, title=f"Nothing to show of {dag_id}", said=said, command="weir runs"
    )

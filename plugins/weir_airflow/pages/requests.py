"""Requests from a page: a button makes a DagRun of `weir_requests`, and the page shows what becomes of it.

Invariant: a page only asks. A request is made by a POST from a page of this Airflow, of a user who may have it carried
out in each DAG that it is about; it is recorded in Airflow's database, and neither ledger nor store is changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.exceptions import DagRunAlreadyExists
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.utils.session import create_session
from airflow.utils.state import State
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import APIRouter, Depends, HTTPException, Request, status
from fastapi.responses import HTMLResponse
from sqlalchemy import func, or_, select
from sqlalchemy.exc import IntegrityError

from weir.coordination.services import Services
from weir.errors import Conflict, Message, Misconfigured
from weir.requests import request as requests
from weir.requests.request import REQUESTS
from weir.requests.verbs import plan_request, refusal, require_same, verb_of
from weir_airflow.api.users import rights_named, rights_of
from weir_airflow.connections.connections import settings
from weir_airflow.pages.answers import MAY_READ, answered, reach
from weir_airflow.pages.showing import HEADERS, Addresses, page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.orm import Session

    from weir.coordination.airflow import UserRights

router = APIRouter()

MOST_OPEN: Final = 8
"""The largest number of requests of a user that are not over, fewer than the runs of a DAG that Airflow has active."""

_MOST: Final = 200
_LARGEST: Final = 16_384
_PORTS: Final = {"http": 80, "https": 443}


def own_origin() -> str | None:
    """Return the site of Airflow's pages as browsers name it; None where `[api] base_url` does not say."""
    from airflow.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    try:
        url = urlsplit(str(conf.get("api", "base_url", fallback="") or ""))
        port = url.port
    except ValueError:  # no such address can be
        return None
    if url.scheme not in _PORTS or not url.hostname:
        return None
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}" + ("" if port in (None, _PORTS[url.scheme]) else f":{port}")


async def form_of(request: Request) -> dict[str, str]:
    """Read a small form; what is none is empty."""
    body = b""
    async for part in request.stream():  # what is too large is not read to its end
        body += part
        if len(body) > _LARGEST:
            raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))
    except ValueError:
        return {}


@router.post("/dags/{dag_id}/requests", dependencies=MAY_READ)
def make(
    request: Request, dag_id: str, user: GetUserDep, form: Annotated[dict[str, str], Depends(form_of)]
) -> HTMLResponse:
    """Make a request, and answer with its page; one that is there already and not over is not made again.

    A browser says with each form which site the page is of: Airflow has nothing else against forged ones.
    """
    own = own_origin()
    if own is None or request.headers.getlist("origin") != [own]:
        said = Message("pages.no_base_url") if own is None else Message("pages.of_another_site", own=own)
        return _refused(request, status.HTTP_403_FORBIDDEN, said)
    try:
        asked = requests.Request.of({**form, "dag_id": dag_id, "looked": form.get("looked") == "true"})
        verb = verb_of(asked)
    except Misconfigured as error:
        return _refused(request, status.HTTP_400_BAD_REQUEST, str(error))

    def recorded(services: Services) -> HTMLResponse:
        planned = plan_request(services, asked, reach())
        to = Addresses.of(request).page(dag_id, verb.page, **planned.at)
        asker = Asker(user)
        if why := asker.why_not(asked, planned.dags):
            return _refused(request, status.HTTP_403_FORBIDDEN, why, back=to, command=verb.as_command(asked))
        try:
            require_same(asked, planned)
            _record(asked, asker.name)
        except Conflict as error:
            return _refused(request, status.HTTP_409_CONFLICT, str(error), back=to)
        return HTMLResponse(status_code=status.HTTP_303_SEE_OTHER, headers={**HEADERS, "Location": to})

    return answered(request, recorded)


def _refused(request: Request, code: int, said: str, back: str = "", command: str = "") -> HTMLResponse:
    title = "Nothing was asked for"
    return page(request, "message.html", status=code, title=title, said=said, back=back, command=command)


def _record(asked: requests.Request, user: str) -> None:
    """Make the DagRun that is the request, unless it is there already.

    Raises Conflict if too many of the user are not over: to read every byte of a run lasts, and others wait meanwhile.
    """
    with create_session() as session:
        is_open = (DagRun.dag_id == REQUESTS, DagRun.state.not_in([*State.finished_dr_states]))
        of_user = select(func.count(DagRun.id)).where(*is_open, DagRun.triggering_user_name == user)
        query = select(DagRun.run_id, DagRun.state).where(
            DagRun.dag_id == REQUESTS, DagRun.run_id.startswith(asked.key, autoescape=True)
        )
        rows = session.execute(query).all()
        if any(state not in State.finished_dr_states for _, state in rows):
            return
        if (session.scalar(of_user) or 0) >= MOST_OPEN:
            raise Conflict.of("requests.too_many_open", user=user, most=MOST_OPEN)
        # Not by how many there are: old runs are deleted.
        ends = [run_id.removeprefix(asked.key) for run_id, _ in rows]
        run_id = f"{asked.key}{max((int(end) for end in ends if end.isdecimal()), default=0) + 1}"
    try:
        trigger_dag(
            REQUESTS,
            triggered_by=DagRunTriggeredByType.UI,
            run_type=DagRunType.MANUAL,
            triggering_user_name=user,
            run_id=run_id,
            conf=asked.to_conf(),
        )
    except (DagRunAlreadyExists, IntegrityError):
        return  # a click came twice
    with create_session() as session:
        extra = json.dumps({**asked.to_conf(), "request": run_id})
        session.add(Log(event="weir_request", owner=user, dag_id=asked.dag_id, extra=extra))


class Asker:
    """The user of a page, and what that user may ask for."""

    def __init__(self, user: GetUserDep) -> None:
        from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415  the app is being made while this is imported

        self.name = user.get_name()
        self._user, self._manager = user, get_auth_manager()
        self._operators, self._not_ready = settings().operators, _not_ready()
        self._known: dict[str, tuple[UserRights, UserRights]] = {}

    def why_not(self, asked: requests.Request, dags: Iterable[str]) -> str:
        """Return why the user cannot ask for this; empty if that can be asked for, and would be carried out."""
        if self._not_ready:
            return self._not_ready
        rights = {dag_id: self._rights(dag_id) for dag_id in sorted({asked.dag_id, *dags})}
        now_and_later = ({dag_id: each[which] for dag_id, each in rights.items()} for which in (0, 1))
        return next(filter(None, (refusal(asked, self.name, each, self._operators) for each in now_and_later)), "")

    def _rights(self, dag_id: str) -> tuple[UserRights, UserRights]:
        """Return what the user may do, and what is said of the name, as the worker will ask; once for all buttons."""
        if dag_id not in self._known:
            by_name = rights_named(self._manager, self.name, dag_id)
            self._known[dag_id] = rights_of(self._manager, self._user, dag_id), by_name
        return self._known[dag_id]

    def button(self, asked: requests.Request, label: str, dags: Iterable[str] = ()) -> dict[str, Any]:
        """Return a button for a template: what it asks for, and why the user cannot ask for it here."""
        why = self.why_not(asked, dags)
        return {"asked": asdict(asked), "label": label, "why_not": why, "command": verb_of(asked).as_command(asked)}


def _not_ready() -> str:
    """Return why no request can be made here at all; empty if one can."""
    if own_origin() is None:
        return Message("pages.no_base_url")
    with create_session() as session:
        dag = session.scalar(select(DagModel).where(DagModel.dag_id == REQUESTS, ~DagModel.is_stale))
        if dag is None:
            return Message("pages.no_requests_dag", dag_id=REQUESTS)
        if dag.has_import_errors:
            return Message("pages.requests_dag_broken", dag_id=REQUESTS)
        return Message("pages.requests_dag_paused", dag_id=REQUESTS) if dag.is_paused else ""


def requests_about(name: str, what: str | None = None) -> list[dict[str, Any]]:
    """Return the requests about a run or a dataflow that are not over, or were made lately, newest first."""
    with create_session() as session:
        return [_shown(row, asked) for row, asked in _rows(session) if asked.is_about(name, what)]


def _rows(session: Session) -> Iterable[tuple[DagRun, requests.Request]]:
    is_new = DagRun.run_after >= datetime.now(UTC) - requests.LATELY
    query = select(DagRun).where(
        DagRun.dag_id == REQUESTS, or_(is_new, DagRun.state.not_in([*State.finished_dr_states]))
    )
    for row in session.scalars(query.order_by(DagRun.run_after.desc()).limit(_MOST)):
        try:
            asked = requests.Request.of(row.conf)
        except Misconfigured:
            continue  # somebody has triggered it by hand, with something else
        yield row, asked


def _shown(row: DagRun, asked: requests.Request) -> dict[str, Any]:
    return {
        "verb": asked.verb,
        "what": asked.what,
        "by": row.triggering_user_name or "",
        "at": row.run_after.astimezone(UTC).isoformat(),
        "state": str(row.state),
        "is_over": row.state in State.finished_dr_states,
        "note": row.note or "",
        "dag_id": REQUESTS,
        "run_id": row.run_id,
    }

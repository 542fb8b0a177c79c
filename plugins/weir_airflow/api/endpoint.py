"""The endpoint at /weir: it compares and clears, enters assets of sinks and events, and finds the run before another.

Invariant: each verb is guarded as Airflow guards the like: clearing, and what comes before an event of a task, by the
permission to edit task instances of the DAG in its path; starting a run by that to edit its DagRuns; and looking for
one by that to read them. It knows nothing of the ledger.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, status
from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints

from weir.coordination.airflow import ClearAnswer, ClearItem, UserRights
from weir.coordination.values import TaskKey
from weir.execution.cadence import Cadence
from weir.execution.failure_words import NOTE_LENGTH
from weir_airflow.api.compare_and_clear import announce, compare_and_clear, enter_assets, run_before, start_queued
from weir_airflow.api.users import rights_named

app = FastAPI(title="Weir", description="Compares and clears task instances, for Weir's recovery.")


_MAY_CLEAR: Final = [Depends(requires_access_dag(method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE))]
_MAY_LOOK: Final = [Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN))]
_MAY_START: Final = [Depends(requires_access_dag(method="PUT", access_entity=DagAccessEntity.RUN))]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Item(_Body):
    """A task instance; with `expected_try` None, whatever its try is; a skipped one only with `is_skipped`.

    `note`, if there is one, is left at it.
    """

    task_id: str
    map_index: int = -1
    run_id: str | None = None
    expected_try: int | None = None
    is_skipped: bool = False
    note: Annotated[str, StringConstraints(max_length=NOTE_LENGTH)] = ""


class ClearBody(_Body):
    """Task instances to clear; `run_id` holds for items that name none; `dry_run` answers and changes nothing."""

    items: list[Item]
    run_id: str | None = None
    dry_run: bool = False


class Answer(BaseModel):
    """A task instance as it was found; `state` is null for one without a state, "missing" for an unknown one.

    `ti_id` is the id of its present try.
    """

    run_id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    cleared: bool
    ti_id: str


class ClearAnswers(BaseModel):
    """The answers, in the order of the items."""

    items: list[Answer]


class StartBody(_Body):
    """The run that `max_active_runs` keeps queued."""

    run_id: str


class StartAnswer(BaseModel):
    """The state that the run was found in; `started` if it was queued and runs now."""

    run_id: str
    state: str
    started: bool


class RightsBody(_Body):
    """The user, by the name that Airflow keeps with a DagRun."""

    user: Annotated[str, StringConstraints(min_length=1, max_length=512)]


class AssetsBody(_Body):
    """The sinks of a dataflow that are about to be announced."""

    dataflow: str
    sinks: list[str]


class AssetsAnswer(BaseModel):
    """The sinks whose assets, or events, Airflow has now."""

    sinks: list[str]


class EventsBody(_Body):
    """The task that has published versions of sinks, and the `extra` of the event of each."""

    run_id: str
    task_id: str
    dataflow: str
    events: dict[str, dict[str, Any]]


class BeforeBody(_Body):
    """The start of an epoch, its partition key, and the cadence by which epochs begin."""

    start: AwareDatetime
    key: str
    every: str
    zone: str


class BeforeAnswer(BaseModel):
    """The newest DagRun of an earlier epoch and its data interval; all null where there is none."""

    run_id: str | None = None
    start: AwareDatetime | None = None
    end: AwareDatetime | None = None


@app.post("/dags/{dag_id}/clear", dependencies=_MAY_CLEAR)
def clear(dag_id: str, body: ClearBody, session: SessionDep, user: GetUserDep) -> ClearAnswers:
    """Clear the task instances that have finished and have the expected try."""
    wanted = [_item(dag_id, body.run_id, item) for item in body.items]
    answers = compare_and_clear(
        session,
        dag_id,
        wanted,
        user_id=user.get_id(),
        user_name=user.get_name(),
        dry_run=body.dry_run,
    )
    return ClearAnswers(items=[_answer(answer) for answer in answers])


@app.post("/dags/{dag_id}/start", dependencies=_MAY_START)
def start(dag_id: str, body: StartBody, session: SessionDep, user: GetUserDep) -> StartAnswer:
    """Set a queued run running that a run of a later epoch waits for."""
    state, is_started = start_queued(session, dag_id, body.run_id, user_name=user.get_name())
    return StartAnswer(run_id=body.run_id, state=state, started=is_started)


@app.post("/dags/{dag_id}/assets", dependencies=_MAY_CLEAR)
def assets(dag_id: str, body: AssetsBody, session: SessionDep) -> AssetsAnswer:  # noqa: ARG001  its rights are asked
    """Enter the assets of sinks that Airflow does not have."""
    enter_assets(session, body.dataflow, body.sinks)
    return AssetsAnswer(sinks=body.sinks)


@app.post("/dags/{dag_id}/events", dependencies=_MAY_CLEAR)
def events(dag_id: str, body: EventsBody, session: SessionDep) -> AssetsAnswer:
    """Emit events of sinks without a partition, for a task whose own would have that of its run."""
    announce(session, TaskKey(dag_id, body.run_id, body.task_id, -1), body.dataflow, body.events)
    return AssetsAnswer(sinks=[*body.events])


@app.post("/dags/{dag_id}/before", dependencies=_MAY_LOOK)
def before(dag_id: str, body: BeforeBody, session: SessionDep) -> BeforeAnswer:
    """Find the newest DagRun of an epoch before that of a run with a partition key."""
    found = run_before(session, dag_id, body.start, body.key, Cadence(body.every, body.zone))
    if found is None:
        return BeforeAnswer()
    return BeforeAnswer(run_id=found.run_id, start=found.interval[0], end=found.interval[1])


@app.post("/dags/{dag_id}/rights", dependencies=_MAY_CLEAR)
def rights(dag_id: str, body: RightsBody) -> UserRights:
    """Tell what another user may do with the task instances of the DAG: asked before a request is carried out."""
    from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415  the app is being made while this is imported

    return rights_named(get_auth_manager(), body.user, dag_id)


def _item(dag_id: str, default_run_id: str | None, item: Item) -> ClearItem:
    run_id = item.run_id or default_run_id
    if run_id is None:
        message = f"Item {item.task_id}[{item.map_index}] names no run: give run_id in the item or in the body."
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, message)
    return ClearItem(dag_id, run_id, item.task_id, item.map_index, item.expected_try, item.is_skipped, item.note)


def _answer(answer: ClearAnswer) -> Answer:
    item = answer.item
    return Answer(
        run_id=item.run_id,
        task_id=item.task_id,
        map_index=item.map_index,
        state=answer.state,
        try_number=answer.try_number,
        cleared=answer.cleared,
        ti_id=answer.ti_id,
    )

"""Stores attempts, one row for each try of a region.

Invariant 2: a try is registered once, and never below a newer one; all attempts but the newest are fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session, aliased, object_session

from weir.execution.failure_class import FailureCause, FailureClass
from weir.execution.labels import TYPE
from weir.execution.metrics import ATTEMPTS, WAITING
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.counts import count
from weir.ledger.database.tables import AttemptRow, PendingClearRow, RunRow
from weir.ledger.failed_begins import failed_for_good
from weir.ledger.runs import dataflow_of
from weir.topology.regions import RegionId

LIVE = (AttemptState.RUNNING.value, AttemptState.WAITING.value)

# Built once: to build a statement costs more than to execute it.
_OF_REGION = (
    select(AttemptRow)
    .where(
        AttemptRow.run == bindparam("run"),
        AttemptRow.region == bindparam("region"),
        AttemptRow.subtask == bindparam("subtask"),
    )
    .order_by(AttemptRow.try_number)
)


# A running attempt is the newest of its region: the begin of the next one ends it.
_RUNNING_CLOSES = (
    select(AttemptRow, RunRow)
    .join(RunRow, RunRow.id == AttemptRow.run)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        AttemptRow.region == CLOSE.name,
        AttemptRow.state == AttemptState.RUNNING.value,
        AttemptRow.is_of_dag_run,
    )
)
_NEWER = aliased(AttemptRow)
_RETRYING_CLOSES = (
    select(AttemptRow, RunRow)
    .join(RunRow, RunRow.id == AttemptRow.run)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        RunRow.closed_at.is_(None),
        AttemptRow.region == CLOSE.name,
        AttemptRow.state == AttemptState.RETRYING.value,
        AttemptRow.is_of_dag_run,
        ~select(_NEWER.id)
        .where(
            _NEWER.run == AttemptRow.run,
            _NEWER.region == AttemptRow.region,
            _NEWER.subtask == AttemptRow.subtask,
            _NEWER.try_number > AttemptRow.try_number,
        )
        .exists(),
    )
)


class Origin(Enum):
    """The reason for an attempt."""

    FIRST = "first"
    RETRY = "retry"
    CLEARED_BY_WEIR = "cleared by weir"
    CLEARED_BY_PERSON = "cleared by a person"
    REBUILT = "rebuilt"
    """Found in the store when the ledger was rebuilt; its reason is unknown."""
    RESTORED = "restored"
    """Synthetic: its results are those of a checkpoint or savepoint."""


def awaited_by(row: AttemptRow) -> str:
    """Return why an attempt waits for data sets of other dataflows; empty where it does not."""
    is_waiting = row.state == AttemptState.WAITING.value
    return "; ".join(row.awaited.values()) if is_waiting and row.awaited else ""


def taken_from(row: AttemptRow) -> str:
    """Return the attempt whose results one has taken, so that it tells nothing of what they cost; empty if none."""
    return str((row.metrics or {}).get("taken", ""))


def said_of_taken(attempt: str) -> str:
    """Say for people that a result is a copy of what an attempt has made."""
    return f"taken, not computed: a copy of what attempt {attempt} has made of the same"


def attempts_of(session: Session, run: str, region: RegionId) -> list[AttemptRow]:
    """Return the attempts of `region`, oldest try first, without those of deleted DagRuns, which have tries below 1."""
    return [row for row in attempts_ever_of(session, run, region) if row.is_of_dag_run]


def attempts_known(session: Session, run: str) -> frozenset[str]:
    """Return the attempts of a run that the ledger has."""
    return frozenset(session.scalars(select(AttemptRow.id).where(AttemptRow.run == run)))


def attempts_ever_of(session: Session, run: str, region: RegionId) -> list[AttemptRow]:
    """Return all attempts of `region`, also those of deleted DagRuns; oldest first."""
    return list(session.scalars(_OF_REGION, {"run": run, "region": region.name, "subtask": region.subtask}))


def unended_closes(session: Session, dataflow: str) -> list[tuple[AttemptRow, RunRow]]:
    """Return the closing tasks that are running, and those of open runs that are to be tried again; with their runs."""
    found = (session.execute(query, {"dataflow": dataflow}) for query in (_RUNNING_CLOSES, _RETRYING_CLOSES))
    return [(attempt, run) for rows in found for attempt, run in rows]


def may_have_ended_well(row: AttemptRow) -> bool:
    """Report whether nothing is known of how an attempt ended: it is running, or a restore has ended it."""
    return row.state == AttemptState.RUNNING.value or (row.state == AttemptState.RETRYING.value and row.failure is None)


def name_of_try(row: AttemptRow) -> str:
    """Name the try of an attempt for people; a number below 1 says only in which order the attempts were made."""
    if row.is_of_dag_run:
        return f"try {row.try_number}"
    return "a restore" if row.origin == Origin.RESTORED.value else "a deleted DagRun's try"


def free_number(session: Session, run: str, region: RegionId) -> int:
    """Return the number below 1 for another attempt of `region` that is no try of the run's DagRun."""
    query = select(func.min(AttemptRow.try_number)).where(
        AttemptRow.run == run, AttemptRow.region == region.name, AttemptRow.subtask == region.subtask
    )
    least = session.scalar(query)
    return min(1 if least is None else least, 1) - 1


def tries_of_task(dataflow: str, dag_id: str, run_id: str, task_id: str, map_index: int) -> Select[AttemptRow]:
    """Return the query of the attempts of a task instance of Airflow."""
    return (
        select(AttemptRow)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(
            RunRow.dataflow == dataflow,
            RunRow.dag_id == dag_id,
            RunRow.run_id == run_id,
            AttemptRow.task_id == task_id,
            AttemptRow.map_index == map_index,
        )
    )


def newest_attempts(session: Session, run: str) -> dict[RegionId, list[AttemptRow]]:
    """Return the attempts of a run by region, oldest try first, without those of deleted DagRuns."""
    found: dict[RegionId, list[AttemptRow]] = {}
    query = select(AttemptRow).where(AttemptRow.run == run, AttemptRow.is_of_dag_run).order_by(AttemptRow.try_number)
    for row in session.scalars(query):
        found.setdefault(RegionId(row.region, row.subtask), []).append(row)
    return found


def times_cleared(session: Session, run: str) -> int:
    """Return how often a person had cleared tasks of a run when the newest of its attempts began."""
    numbers = select(func.max(AttemptRow.clear_number)).where(AttemptRow.run == run, AttemptRow.is_of_dag_run)
    return session.scalar(numbers) or 0


def origin_of(
    session: Session, run: str, region: RegionId, earlier: list[AttemptRow], clears: tuple[int, int]
) -> Origin:
    """Return the reason for a new try; `clears` are the task instance's `max_tries` and the run's `clear_number`.

    Airflow raises `max_tries` at the clear of a task instance that is not running. At the clear of a running one it
    raises only the run's `clear_number`, which may also mean another task of the run: a kill is not counted then.
    Weir has cleared it only where a pending clear was sent: of a run that a person clears as a whole, consumers are
    cleared before Weir owes their clears.
    A clear by Weir explains the tries up to one that failed for good before it was registered, and none after it.
    """
    if not earlier:
        return Origin.FIRST
    newest = earlier[-1]
    max_tries, clear_number = clears
    if newest.max_tries == max_tries:
        was_cleared = _may_be_running(newest) and newest.clear_number != clear_number
        return Origin.CLEARED_BY_PERSON if was_cleared else Origin.RETRY
    owed = session.scalar(
        select(PendingClearRow.id).where(
            PendingClearRow.run == run,
            PendingClearRow.region == region.name,
            PendingClearRow.subtask == region.subtask,
            PendingClearRow.expected_try >= max(newest.try_number, failed_for_good(session, newest)),
            PendingClearRow.sends > 0,
        )
    )
    return Origin.CLEARED_BY_WEIR if owed else Origin.CLEARED_BY_PERSON


def _may_be_running(row: AttemptRow) -> bool:
    """Report whether Airflow may still call an attempt running, also one that a rebuild or a restore has ended."""
    if row.state in (AttemptState.RUNNING.value, AttemptState.COMMITTED.value, AttemptState.ADOPTED.value):
        return True
    return row.state in (AttemptState.FENCED.value, AttemptState.RETRYING.value) and row.failure is None


def end(
    row: AttemptRow,
    state: AttemptState,
    now: datetime,
    *,
    failure: FailureClass | None = None,
    cause: FailureCause | None = None,
    error: str = "",
) -> None:
    """End an attempt, once; `cause` is that of the `failure`. A closing task that has committed may end once more."""
    session = object_session(row)
    if session is not None and row.ended_at is None:
        counted = AttemptState.FAILED if state is AttemptState.RETRYING else state
        why = "none" if failure is None else failure.value
        count(session, ATTEMPTS.of(1, dataflow_of(row.run), row.task_id, counted.value, why))
    row.state, row.ended_at = state.value, now
    row.failure, row.error = (failure.value if failure else row.failure), (error or row.error)
    if failure is not None:
        row.labels = {TYPE: failure.value}
        row.failure_cause = None if cause is None else cause.value


def count_wait(session: Session, row: AttemptRow, now: datetime) -> None:
    """Count how long an attempt has waited, now that it has what it waited for."""
    if row.waits and row.ended_at is None:
        seconds = (now - row.began_at).total_seconds()
        count(session, WAITING.of(seconds, dataflow_of(row.run), row.task_id))


def synthetic_attempt(
    run: RunRow,
    region: RegionId,
    attempt: str,
    map_index: int,
    try_number: int,
    lineage: int,
    at: datetime,
    state: AttemptState,
    origin: Origin,
) -> AttemptRow:
    """Make the row of a synthetic attempt, which no process has run: its results were found, or restored."""
    return AttemptRow(
        id=attempt,
        run=run.id,
        region=region.name,
        subtask=region.subtask,
        task_id=run.task_prefix + region.name,
        map_index=map_index,
        try_number=try_number,
        max_tries=0,
        ti_id="",
        lineage=lineage,
        origin=origin.value,
        state=state.value,
        session_id="",
        session_url="",
        began_at=at,
        ended_at=at,
        waits=0,
    )


def failures_since_clear(
    rows: Iterable[AttemptRow], classes: Iterable[FailureClass], *, or_commit: bool = False
) -> list[datetime]:
    """Return when the attempts of a region failed with one of `classes`, since a person last cleared it.

    With `or_commit` also only since it last committed.
    """
    wanted = {each.value for each in classes}
    times: list[datetime] = []
    for row in rows:
        if row.origin == Origin.CLEARED_BY_PERSON.value:
            times.clear()
        if or_commit and row.state == AttemptState.COMMITTED.value:
            times.clear()
        elif row.failure in wanted and row.ended_at is not None:
            times.append(row.ended_at)
    return times

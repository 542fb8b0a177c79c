"""Attempts: one row a try of a region.

Invariant 2: a try is registered once, and never below a newer one; whoever is not the newest is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, OwedClearRow
from weir.recovery.classify import FailureClass
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId

LIVE = (AttemptState.RUNNING.value, AttemptState.WAITING.value)


class Origin(Enum):
    """Why an attempt was made."""

    FIRST = "first"
    RETRY = "retry"
    CLEARED_BY_WEIR = "cleared by weir"
    CLEARED_BY_PERSON = "cleared by a person"
    REBUILT = "rebuilt"
    """Found in the store when the ledger was built again; nobody knows any more."""


def attempts_of(session: Session, run: str, region: RegionId) -> list[AttemptRow]:
    """All attempts of `region`, oldest try first."""
    query = (
        select(AttemptRow)
        .where(AttemptRow.run == run, AttemptRow.region == region.name, AttemptRow.subtask == region.subtask)
        .order_by(AttemptRow.try_number)
    )
    return list(session.scalars(query))


def newest_attempts(session: Session, run: str) -> dict[RegionId, list[AttemptRow]]:
    """All attempts of a run by region, oldest try first."""
    found: dict[RegionId, list[AttemptRow]] = {}
    for row in session.scalars(select(AttemptRow).where(AttemptRow.run == run).order_by(AttemptRow.try_number)):
        found.setdefault(RegionId(row.region, row.subtask), []).append(row)
    return found


def origin_of(session: Session, run: str, region: RegionId, earlier: list[AttemptRow], max_tries: int) -> Origin:
    """Why a new try was made. Airflow raises `max_tries` at each clear and at nothing else."""
    if not earlier:
        return Origin.FIRST
    newest = earlier[-1]
    if newest.max_tries == max_tries:
        return Origin.RETRY
    owed = session.scalar(
        select(OwedClearRow.id).where(
            OwedClearRow.run == run,
            OwedClearRow.region == region.name,
            OwedClearRow.subtask == region.subtask,
            OwedClearRow.expected_try >= newest.try_number,
        )
    )
    return Origin.CLEARED_BY_WEIR if owed else Origin.CLEARED_BY_PERSON


def end(
    row: AttemptRow, state: AttemptState, now: datetime, *, failure: FailureClass | None = None, error: str = ""
) -> None:
    """End an attempt, once."""
    row.state, row.ended_at = state.value, now
    row.failure, row.error = (failure.value if failure else row.failure), (error or row.error)


def failures_since_clear(rows: Iterable[AttemptRow], classes: Iterable[FailureClass]) -> list[datetime]:
    """When the attempts of a region failed with one of `classes`, since a person last cleared it."""
    wanted = {each.value for each in classes}
    times: list[datetime] = []
    for row in rows:
        if row.origin == Origin.CLEARED_BY_PERSON.value:
            times.clear()
        if row.failure in wanted and row.ended_at is not None:
            times.append(row.ended_at)
    return times

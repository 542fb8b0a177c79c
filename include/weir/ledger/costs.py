"""What regions have cost: the history that plans are priced with. Invariant: only committed attempts are history."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, ResultRow
from weir.recovery.plan import Cost
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId


def costs_of(session: Session, runs: Collection[str], current: str) -> dict[RegionId, Cost]:
    """What the newest committed attempt of each region of `runs` cost; regions of the run `current` have no run."""
    query = (
        select(AttemptRow)
        .where(AttemptRow.run.in_(runs), AttemptRow.state == AttemptState.COMMITTED.value)
        .order_by(AttemptRow.try_number)
    )
    newest = {
        RegionId(row.region, row.subtask, "" if row.run == current else row.run): row for row in session.scalars(query)
    }
    costs = costs_of_attempts(session, newest.values())
    return {region: costs[row.id] for region, row in newest.items()}


def costs_of_attempts(session: Session, attempts: Iterable[AttemptRow]) -> dict[str, Cost]:
    """What attempts cost, by id: rows and bytes that they wrote, in all layouts, and seconds at work."""
    rows = {row.id: row for row in attempts}
    query = (
        select(ResultRow.attempt, func.sum(ResultRow.rows), func.sum(ResultRow.bytes))
        .where(ResultRow.run.in_({row.run for row in rows.values()}))
        .group_by(ResultRow.attempt)
    )
    written = {attempt: (int(count), int(size)) for attempt, count, size in session.execute(query)}
    return {each: Cost(*written.get(each, (0, 0)), seconds_of(row)) for each, row in rows.items()}


def seconds_of(row: AttemptRow) -> float:
    """How long an attempt was at work; 0 while it has not ended, and the time that it waited is left out."""
    if row.ended_at is None:
        return 0.0
    if row.waits and row.metrics:
        return round(sum(each for each in row.metrics.values() if isinstance(each, int | float)), 3)
    return round((row.ended_at - row.began_at).total_seconds(), 3)

"""When the jobs of upkeep were last done. Invariant: a job that did not come to its end is due as it was before."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from weir.ledger.database.tables import HousekeepingRow


def is_due(session: Session, job: str, scope: str, every: timedelta, now: datetime) -> bool:
    """Whether a job was never done for `scope` (a dataflow, or empty), or at least `every` ago."""
    row = session.get(HousekeepingRow, (job, scope))
    return row is None or row.done_at + every <= now


def note_done(session: Session, job: str, scope: str, now: datetime) -> None:
    """Write down that a job was done, to its end, now."""
    session.merge(HousekeepingRow(job=job, scope=scope, done_at=now))

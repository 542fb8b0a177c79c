"""Stores when the upkeep jobs were last completed. Invariant: a job that did not complete is due as before."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from weir.ledger.database.tables import HousekeepingRow


def is_due(session: Session, job: str, scope: str, every: timedelta, now: datetime) -> bool:
    """Report whether a job was never completed for `scope` (a dataflow, or empty), or at least `every` ago."""
    row = session.get(HousekeepingRow, (job, scope))
    return row is None or row.done_at + every <= now


def note_done(session: Session, job: str, scope: str, now: datetime) -> None:
    """Record that a job was completed now."""
    session.merge(HousekeepingRow(job=job, scope=scope, done_at=now))

"""Stores when the upkeep jobs were last completed, and how far a long one has come.

Invariant: a job that did not complete is due as before, and goes on after the epoch that it has reached.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy.orm import Session

from weir.ledger.database.tables import HousekeepingRow
from weir.topology.ids import Epoch

CAUGHT_UP: Final = "caught up"
"""The job of upkeep by which the ledger records when it last caught up with the store."""

ALL: Final = ""
"""The scope of a job that is done for all dataflows at once, and what its transactions name."""

UPKEEP: Final = "upkeep"
"""The job that stands for all of upkeep: whether anybody does it."""

_NEVER: Final = datetime.min.replace(year=1970, tzinfo=UTC)
"""When a job was last completed that has been stopped each time."""


def is_due(session: Session, job: str, scope: str, every: timedelta, now: datetime) -> bool:
    """Report whether a job was never completed for `scope` (a dataflow, or empty), or at least `every` ago."""
    row = session.get(HousekeepingRow, (job, scope))
    return row is None or row.done_at + every <= now


def last_done(session: Session, job: str, scope: str) -> datetime | None:
    """Return when a job was last completed for `scope`; None where it never was."""
    row = session.get(HousekeepingRow, (job, scope))
    return None if row is None or row.done_at == _NEVER else row.done_at


def note_done(session: Session, job: str, scope: str, now: datetime) -> None:
    """Record that a job was completed now; the next one begins with the first epoch."""
    session.merge(HousekeepingRow(job=job, scope=scope, done_at=now, reached=None))


def reached(session: Session, job: str, dataflow: str) -> Epoch | None:
    """Return the epoch of a dataflow up to which a job was done that was stopped; None where it begins anew."""
    row = session.get(HousekeepingRow, (job, dataflow))
    return None if row is None else row.reached


def note_reached(session: Session, job: str, dataflow: str, epoch: Epoch) -> None:
    """Record that a job was done up to an epoch of a dataflow, and is due as before."""
    row = session.get(HousekeepingRow, (job, dataflow)) or HousekeepingRow(job=job, scope=dataflow, done_at=_NEVER)
    row.reached = epoch
    session.add(row)

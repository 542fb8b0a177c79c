"""Attempts of DagRuns that were deleted in Airflow, in an epoch that another DagRun has now.

Invariant 2: Airflow counts the tries of a DagRun from 1, so those of deleted ones get numbers below; and a task
instance has one id a try, so an attempt with the same try and another id is one of a deleted DagRun.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow


def set_aside(session: Session, run: str) -> None:
    """Number all attempts of `run` below 1, in their order."""
    least, most = session.execute(
        select(func.min(AttemptRow.try_number), func.max(AttemptRow.try_number)).where(AttemptRow.run == run)
    ).one()
    if most is None or most < 1:
        return
    # By so much that none takes, on the way, a number that another one still has.
    by = most - least + 1
    session.execute(update(AttemptRow).where(AttemptRow.run == run).values(try_number=AttemptRow.try_number - by))


def is_another_life(earlier: Iterable[AttemptRow], try_number: int, ti_id: str) -> bool:
    """Whether `earlier` attempts of a region are those of another DagRun than the task instance with this id.

    Nobody knows any more whose id an attempt had that was found in the store.
    """
    ids = {row.ti_id: row.try_number for row in earlier if row.ti_id}
    return ti_id not in ids and try_number in ids.values()

"""Source slices. Invariant: what the subtasks of a source read in a run is decided once, by whoever comes first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.ledger.models import SourceSliceRow

_SLICES = select(SourceSliceRow.slices).where(
    SourceSliceRow.run == bindparam("run"), SourceSliceRow.stage == bindparam("stage")
)


def slices_of(session: Session, run: str, stage: str) -> list[Any] | None:
    """One value a subtask; None if nobody has resolved them yet."""
    return session.scalar(_SLICES, {"run": run, "stage": stage})


def fix_slices(session: Session, run: str, stage: str, slices: list[Any], attempt: str, now: datetime) -> list[Any]:
    """Record `slices` unless somebody was faster; answers what is in force."""
    known = slices_of(session, run, stage)
    if known is not None:
        return known
    session.add(SourceSliceRow(run=run, stage=stage, slices=slices, attempt=attempt, resolved_at=now))
    session.flush()
    return slices


def forget_slices(session: Session, run: str) -> None:
    """Let the sources of `run` be resolved anew."""
    session.query(SourceSliceRow).filter(SourceSliceRow.run == run).delete()

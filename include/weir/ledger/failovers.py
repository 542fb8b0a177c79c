"""Failovers: every decision to restart, as it was carried out, and the incidents that they belong to.

Invariant: an incident is open until the first region that it cleared has committed; what fails meanwhile belongs to it.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, FailoverRow, OwedClearRow, RunRow
from weir.ledger.runs import Run
from weir.recovery.plan import Plan, StepKind
from weir.recovery.run_state import AttemptState


class FailoverKind(Enum):
    """What asked for a failover."""

    LOSS = "loss"
    """An attempt did not find its inputs."""
    FAILURE = "failure"
    """An attempt failed, and the dataflow restarts others with it."""
    HELD_BACK = "held back"
    """A loss whose plan a person has to carry out."""
    BY_HAND = "by hand"
    """A person carried a plan out."""
    SCRUB = "scrub"
    """Something was found bad before anybody has missed it."""


def record_failover(
    session: Session, run: Run, plan: Plan, now: datetime, kind: FailoverKind, row: AttemptRow | None
) -> int:
    """Write a plan down; answers its id. `row` is the attempt that failed, None where none did."""
    failover = FailoverRow(
        run=run.id,
        attempt=row.id if row else "",
        region=row.region if row else "",
        subtask=row.subtask if row else 0,
        decided_at=now,
        cause=plan.cause,
        plan=plan.to_json(),
        kind=kind.value,
        labels=row.labels if row else None,
        incident=_open_incident(session, run.id),
    )
    session.add(failover)
    session.flush()
    return failover.id


def _open_incident(session: Session, run: str) -> int | None:
    newest = session.scalar(select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id.desc()).limit(1))
    if newest is None:
        return None
    root = newest.incident or newest.id
    members = list(
        session.scalars(select(FailoverRow).where(or_(FailoverRow.id == root, FailoverRow.incident == root)))
    )
    repaired = [step for member in members for step in _repaired(session, member)]
    return root if repaired and not any(_has_committed(session, *each) for each in repaired) else None


def _repaired(session: Session, failover: FailoverRow) -> list[tuple[str, str, int, int]]:
    """The tries that a failover restarted; those that it joined if it restarted none."""
    owed = select(OwedClearRow).where(OwedClearRow.failover == failover.id)
    cleared = [(row.run, row.region, row.subtask, row.expected_try) for row in session.scalars(owed)]
    if cleared:
        return cleared
    joined = Plan.from_json(failover.plan).of(StepKind.JOINED)
    return [(step.region.run or failover.run, step.region.name, step.region.subtask, step.after_try) for step in joined]


def _has_committed(session: Session, run: str, region: str, subtask: int, after_try: int) -> bool:
    query = select(AttemptRow.id).where(
        AttemptRow.run == run,
        AttemptRow.region == region,
        AttemptRow.subtask == subtask,
        AttemptRow.try_number > after_try,
        AttemptRow.state.in_((AttemptState.COMMITTED.value, AttemptState.ADOPTED.value)),
    )
    return session.scalar(query.limit(1)) is not None


def failovers_of(session: Session, dataflow: str | None = None, epoch: str | None = None) -> list[FailoverRow]:
    """Past decisions, oldest first."""
    query = select(FailoverRow).join(RunRow, RunRow.id == FailoverRow.run).order_by(FailoverRow.id)
    if dataflow is not None:
        query = query.where(RunRow.dataflow == dataflow)
    if epoch is not None:
        query = query.where(RunRow.epoch == epoch)
    return list(session.scalars(query))

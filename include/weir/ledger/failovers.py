"""Failovers: every decision to restart, as it was carried out."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, FailoverRow, RunRow
from weir.ledger.runs import Run
from weir.recovery.plan import Plan


def record_failover(session: Session, run: Run, row: AttemptRow, plan: Plan, now: datetime) -> int:
    """Write a plan down; answers its id."""
    failover = FailoverRow(
        run=run.id,
        attempt=row.id,
        region=row.region,
        subtask=row.subtask,
        decided_at=now,
        cause=plan.cause,
        plan=plan.to_json(),
    )
    session.add(failover)
    session.flush()
    return failover.id


def failovers_of(session: Session, dataflow: str | None = None, epoch: str | None = None) -> list[FailoverRow]:
    """Past decisions, oldest first."""
    query = select(FailoverRow).join(RunRow, RunRow.id == FailoverRow.run).order_by(FailoverRow.id)
    if dataflow is not None:
        query = query.where(RunRow.dataflow == dataflow)
    if epoch is not None:
        query = query.where(RunRow.epoch == epoch)
    return list(session.scalars(query))

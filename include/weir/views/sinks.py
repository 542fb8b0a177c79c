"""Lists the sinks of open runs whose version is still to come, and why: from the ledger only, no target is opened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.dataflow.targets import Target
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import attempts_of
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.runs import topology_of
from weir.topology.ids import Epoch


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A sink of a run that is not closed, and the reason why it has no new version yet, for some time or just now."""

    dataflow: str
    epoch: Epoch
    sink: str
    target: Target
    reason: str
    since: datetime | None


def unpublished(session: Session, dataflow: str | None) -> list[Unpublished]:
    """Return the sinks with targets of the open runs of a dataflow, or of all, whose version is still to come.

    A run that its closing task has closed, and that is open again since results of it have become stale, has one
    already: it may come to equal content.
    """
    query = select(RunRow).where(RunRow.closed_at.is_(None), RunRow.is_pinned, RunRow.has_dag_run)
    query = query.where(RunRow.deleted_at.is_(None), RunRow.expired_at.is_(None))
    rows = session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)).all()
    return [each for row in rows for each in _to_come(session, row)]


def _to_come(session: Session, row: RunRow) -> list[Unpublished]:
    sinks = [stage for stage in topology_of(row.pinned or {}).dataflow.stages if stage.targets]
    closing = attempts_of(session, row.id, CLOSE) if sinks else ()
    newest = closing[-1] if closing else None
    if newest is not None and newest.state == AttemptState.COMMITTED.value:
        return []
    reason, since = _why_open(newest)
    return [
        Unpublished(row.dataflow, row.epoch, stage.name, each, reason, since)
        for stage in sinks
        for each in stage.targets
    ]


def _why_open(closing: AttemptRow | None) -> tuple[str, datetime | None]:
    if closing is None:
        return f"{CLOSE.name} of its run has not begun yet", None
    if closing.state == AttemptState.WAITING.value:
        what = f"waits: {closing.error}" if closing.error else "waits for results"
        return f"{CLOSE.name} {what}", closing.began_at
    if closing.ended_at is None:
        return f"{CLOSE.name} is running", closing.began_at
    return f"{CLOSE.name} has failed: {closing.error or closing.state}", closing.ended_at

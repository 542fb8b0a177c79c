"""The versions of sinks that have targets: from the ledger only, no target is opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import attempts_of
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, DeliveryRow, PublicationRow, RunRow
from weir.ledger.names import require_dataflow
from weir.ledger.runs import topology_of
from weir.sinks.protocol import Delivery

PENDING, UNPUBLISHED = "pending", "unpublished"
"""The state of a version that is not yet in its target, and of one that is still to come."""

PROVISIONAL, WITHDRAWN = "provisional", "withdrawn"
"""The state of provisional rows that a target has, and of those that were replaced or taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkVersion:
    """A version of a sink in one of its targets, or, without a number, one that is to come of a run that is not closed.

    `problem` is why it is not there, for some time or just now.
    """

    epoch: str
    dataflow: str
    sink: str
    version: int | None = None
    target: str
    rows: int | None = None
    copied_bytes: int | None = None
    state: str
    delivered_at: datetime | None = None
    problem_since: datetime | None
    problem: str | None


def sink_versions(session: Session, dataflow: str | None = None) -> list[SinkVersion]:
    """Return the versions of the sinks of a dataflow, or of all, by epoch and sink; what is to come is last.

    Raises Misconfigured for a dataflow that the ledger does not know.
    """
    if dataflow is not None:
        require_dataflow(session, dataflow)
    found = [*_published(session, dataflow), *_to_come(session, dataflow)]
    return sorted(found, key=lambda each: (each.dataflow, each.epoch, each.sink))


def _published(session: Session, dataflow: str | None) -> Iterator[SinkVersion]:
    query = select(DeliveryRow).join(RunRow, RunRow.id == DeliveryRow.run)
    shown = select(PublicationRow).join(RunRow, RunRow.id == PublicationRow.run)
    shown = shown.where(PublicationRow.lacks.is_not(None))
    if dataflow is not None:
        query, shown = query.where(RunRow.dataflow == dataflow), shown.where(RunRow.dataflow == dataflow)
    provisional = {(each.run, each.sink, each.version): each for each in session.scalars(shown)}
    for row in session.scalars(query.order_by(DeliveryRow.version, DeliveryRow.place)):
        delivery = Delivery.from_json(row.delivery)
        version = delivery.version
        of = {"epoch": version.epoch, "dataflow": version.dataflow, "rows": version.rows}
        early = provisional.get((row.run, row.sink, row.version))
        if early is not None:
            state = WITHDRAWN if early.expiring_at is not None else PROVISIONAL if row.outcome else PENDING
            of |= {"state": state, "problem": row.problem or (early.lacks if early.expiring_at is None else None)}
        yield taken(SinkVersion, row, **{"state": row.outcome or PENDING, **of}, target=str(delivery.target))


def _to_come(session: Session, dataflow: str | None) -> Iterator[SinkVersion]:
    """Yield the versions of open runs.

    A run that its closing task has closed, and that is open again since results of it have become stale, has one
    already: it may come to equal content.
    """
    query = select(RunRow).where(RunRow.closed_at.is_(None), RunRow.is_pinned, RunRow.has_dag_run)
    query = query.where(RunRow.deleted_at.is_(None), RunRow.expired_at.is_(None))
    for row in session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)).all():
        sinks = [stage for stage in topology_of(row.pinned or {}).dataflow.stages if stage.targets]
        closing = attempts_of(session, row.id, CLOSE)[-1:] if sinks else ()
        if any(each.state == AttemptState.COMMITTED.value for each in closing):
            continue
        reason, since = _why_open(*closing)
        for stage in sinks:
            for target in stage.targets:
                yield SinkVersion(
                    epoch=row.epoch,
                    dataflow=row.dataflow,
                    sink=stage.name,
                    target=str(target),
                    state=UNPUBLISHED,
                    problem_since=since,
                    problem=reason,
                )


def _why_open(closing: AttemptRow | None = None) -> tuple[str, datetime | None]:
    if closing is None:
        return f"{CLOSE.name} of its run has not begun yet", None
    if closing.state == AttemptState.WAITING.value:
        what = f"waits: {closing.error}" if closing.error else "waits for results"
        return f"{CLOSE.name} {what}", closing.began_at
    if closing.ended_at is None:
        return f"{CLOSE.name} is running", closing.began_at
    return f"{CLOSE.name} has failed: {closing.error or closing.state}", closing.ended_at

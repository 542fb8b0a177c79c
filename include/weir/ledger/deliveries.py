"""Stores the deliveries of versions into targets.

Invariant: a version is delivered once it is published, to each of its targets; a newer one of the same epoch supersedes
it. Each target of a sink gets versions in the order in which they were published, whatever their epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from weir.dataflow.targets import Target
from weir.errors import Misconfigured
from weir.ledger.database.tables import DeliveryRow, PublicationRow, RunRow
from weir.ledger.names import require_dataflow, similar

_IS_PUBLISHED = (
    (PublicationRow.run == DeliveryRow.run)
    & (PublicationRow.sink == DeliveryRow.sink)
    & (PublicationRow.version == DeliveryRow.version)
    & PublicationRow.published_at.is_not(None)
)
"""Of a version whose number was assigned only, nothing may ever become visible."""


def enter_deliveries(
    session: Session, run: str, sink: str, version: int, deliveries: Sequence[Mapping[str, Any]]
) -> None:
    """Record how a version that is about to be published will be committed into its targets."""
    for place, delivery in enumerate(deliveries):
        session.add(DeliveryRow(run=run, sink=sink, version=version, place=place, delivery=dict(delivery)))


def deliveries_of(session: Session, run: str, sink: str, version: int | None = None) -> Sequence[DeliveryRow]:
    """Return the deliveries of a version, in the order of its targets; of all versions of the epoch, newest first."""
    query = _of_epoch(run, sink)
    return session.scalars(query if version is None else query.where(DeliveryRow.version == version)).all()


def published_deliveries_of(session: Session, run: str, sink: str) -> Sequence[DeliveryRow]:
    """Return the deliveries of the versions of an epoch that are published, newest first, in the order of targets."""
    return session.scalars(_of_epoch(run, sink).join(PublicationRow, _IS_PUBLISHED)).all()


def _of_epoch(run: str, sink: str) -> Select[DeliveryRow]:
    query = select(DeliveryRow).where(DeliveryRow.run == run, DeliveryRow.sink == sink)
    return query.order_by(DeliveryRow.version.desc(), DeliveryRow.place)


def targets_without(session: Session, run: str, sink: str, version: int, targets: Sequence[Target]) -> list[Target]:
    """Return those of some targets into which a version neither is committed nor will be."""
    planned = [row.delivery["target"] for row in deliveries_of(session, run, sink, version)]
    return [each for each in targets if each.to_json() not in planned]


def pending_deliveries(session: Session, dataflow: str) -> Sequence[DeliveryRow]:
    """Return the versions that are published and not committed into their targets, in their order."""
    query = (
        select(DeliveryRow)
        .join(RunRow, RunRow.id == DeliveryRow.run)
        .join(PublicationRow, _IS_PUBLISHED)
        .where(RunRow.dataflow == dataflow, DeliveryRow.outcome.is_(None))
        .order_by(DeliveryRow.id)
    )
    return session.scalars(query).all()


def dataflow_of_sink(session: Session, sink: str, dataflow: str | None = None) -> str:
    """Return the dataflow that has published a sink into a target. Raises Misconfigured for none, and for several.

    Where `dataflow` is given, it is that one.
    """
    query = select(RunRow.dataflow, DeliveryRow.sink).join(DeliveryRow, DeliveryRow.run == RunRow.id)
    if dataflow is not None:
        require_dataflow(session, dataflow)
        query = query.where(RunRow.dataflow == dataflow)
    known = session.execute(query.distinct().order_by(RunRow.dataflow, DeliveryRow.sink)).all()
    found = [row.dataflow for row in known if row.sink == sink]
    if not found:
        said = similar(sink, list(dict.fromkeys(row.sink for row in known)))
        raise Misconfigured.of("ledger.sink_unknown", dataflow=dataflow or "the ledger", sink=sink, said=said)
    if len(found) > 1:
        raise Misconfigured.of("ledger.sink_ambiguous", found=found, sink=sink, first=found[0])
    return str(found[0])


def is_pending(session: Session, run: str, sink: str, version: int) -> bool:
    """Report whether a version is not yet committed into all of its targets, and so is still to be read."""
    return any(row.outcome is None for row in deliveries_of(session, run, sink, version))


def deliver_again(session: Session, run: str, sink: str, version: int) -> None:
    """Have a version looked for in its targets once more: somebody may have changed them."""
    for row in deliveries_of(session, run, sink, version):
        row.outcome = None


def note_delivered(
    session: Session, row: DeliveryRow, outcome: str, copied_bytes: int | None, superseded: str, now: datetime
) -> None:
    """Record the outcome of a delivery; what is older of the same epoch is not delivered any more."""
    row.outcome, row.delivered_at, row.problem, row.problem_since = outcome, now, None, None
    row.copied_bytes = row.copied_bytes if copied_bytes is None else (row.copied_bytes or 0) + copied_bytes
    older = (DeliveryRow.run == row.run) & (DeliveryRow.sink == row.sink) & (DeliveryRow.version < row.version)
    pending = update(DeliveryRow).where(older, DeliveryRow.outcome.is_(None))
    session.execute(pending.values(outcome=superseded, delivered_at=now, problem=None, problem_since=None))


def note_problem(row: DeliveryRow, problem: str, now: datetime) -> None:
    """Record why a delivery did not succeed."""
    row.problem, row.problem_since = problem, row.problem_since or now

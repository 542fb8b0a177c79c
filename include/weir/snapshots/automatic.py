"""Automatic savepoints: those that `Dataflow(savepoint_every=..., retained_savepoints=...)` asks for.

Invariant: whether one is due follows from the closed runs and the savepoints in the ledger, as they are in the
transaction that takes its number. So of several processes one creates it, and where that is killed a later one does.
Old ones are dropped after newer ones are complete; a person's savepoint is never dropped.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.evidence import require_not_behind
from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.errors import Conflict
from weir.formats.checkpoint import SnapshotKind
from weir.ledger.checkpoints import CheckpointStatus, automatic_savepoints, newest_checkpoint
from weir.ledger.database.tables import RunRow
from weir.ledger.leases import is_holding
from weir.ledger.runs import newest_pinned, topology_of
from weir.snapshots.savepoint import Count, SavepointRequest, counted_rows, create, drop_row, tidy


class NotDue(Conflict):
    """No automatic savepoint is due; the message says why."""


def maintain_savepoints(services: Services, dataflow: str, count: Count = counted_rows) -> str:
    """Create the automatic savepoint of a dataflow that is due, drop the old ones, and return what was done.

    The newest run declares how often, and it is of the newest checkpoint. Raises as `create` and `drop_row`.
    """
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    declared = None if pinned is None else topology_of(pinned).dataflow
    if declared is None or declared.savepoint_every is None:
        return "no automatic savepoints"
    tidy(services, dataflow)
    return "; ".join([_create_due(services, declared, count), *_drop_old(services, declared)])


def _create_due(services: Services, declared: Dataflow, count: Count) -> str:
    guard = partial(_require_due, services, declared)
    try:
        with services.ledger.transaction() as session:
            guard(session)  # most often it is not, and this asks no store
        made = create(services, SavepointRequest(declared.name, kind=SnapshotKind.AUTOMATIC), count, guard)
    except NotDue as error:
        return str(error)
    return f"automatic: {made}"


def _require_due(services: Services, declared: Dataflow, session: Session) -> None:
    """Require that enough epochs were closed since the newest automatic savepoint, dropped or not. Raises NotDue."""
    name, every = declared.name, declared.savepoint_every or 0
    found = automatic_savepoints(session, name)
    for row in found:
        # What a killed process has left keeps nobody from the next one; `tidy` removes it when it is old.
        if row.status == CheckpointStatus.PENDING.value and is_holding(session, row.attempt, services.now()):
            raise NotDue.of("snapshots.not_due", dataflow=name, why=f"savepoint {row.number} is being created")
    before = next((row.epoch for row in reversed(found) if row.status == CheckpointStatus.COMPLETED.value), "")
    newest = newest_checkpoint(session, name)
    closed = 0 if newest is None else _closed(session, name, before, newest.epoch)
    if closed < every:
        why = f"{closed} of {every} epoch(s) were closed" + (f" since {before}" if before else "")
        raise NotDue.of("snapshots.not_due", dataflow=name, why=why)


def _closed(session: Session, dataflow: str, after: str, last: str) -> int:
    """Return how many epochs after one, and up to another, were closed by runs of Airflow."""
    of_epochs = (RunRow.dataflow == dataflow) & (RunRow.epoch > after) & (RunRow.epoch <= last)
    query = select(func.count()).where(of_epochs, RunRow.closed_at.is_not(None), RunRow.has_dag_run)
    return session.scalar(query) or 0


def _drop_old(services: Services, declared: Dataflow) -> list[str]:
    """Drop the automatic savepoints that are not among the newest; return a line for each."""
    with services.ledger.transaction() as session:
        found = automatic_savepoints(session, declared.name)
    kept = [row for row in found if row.status == CheckpointStatus.COMPLETED.value and row.deleted_at is None]
    old = kept[: -declared.retained_savepoints]
    if old:
        require_not_behind(services, declared.name)
    return [f"dropped: {drop_row(services, row)}" for row in old]

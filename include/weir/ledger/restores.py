"""Stores the restores of dataflows.

Invariant: no epoch up to a restored one that has no DagRun is ever computed, since the state before it is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.formats.manifest import Manifest, StateFile
from weir.formats.paths import dataflow_of_path
from weir.ledger.database.tables import RestoreRow, RunRow

SAME, FORK = "same", "fork"
"""The modes of a restore: into the same dataflow, or into another."""

_RUN = RunRow.__table__.c

_RESTORED_FROM = (
    select(_RUN.epoch)
    .where(_RUN.dataflow == bindparam("dataflow"), ~RunRow.has_dag_run, _RUN.epoch >= bindparam("epoch"))
    .order_by(_RUN.epoch)
    .limit(1)
)
"""Built once: each task runs this query when it begins."""


def restores_of(session: Session, dataflow: str) -> list[RestoreRow]:
    """Return all restores of a dataflow, oldest first."""
    return list(session.scalars(select(RestoreRow).where(RestoreRow.dataflow == dataflow).order_by(RestoreRow.id)))


def last_restore(session: Session, dataflow: str, epoch: str, lineage: int | None = None) -> RestoreRow | None:
    """Return the last restore of an epoch, if there was one, or the one that began a lineage."""
    query = select(RestoreRow).where(RestoreRow.dataflow == dataflow, RestoreRow.epoch == epoch)
    query = query if lineage is None else query.where(RestoreRow.lineage == lineage)
    return session.scalar(query.order_by(RestoreRow.id.desc()).limit(1))


def left_out(session: Session, dataflow: str, epoch: str) -> tuple[str, ...]:
    """Return the states that were left out of the restore of `epoch`, which its successor may lack."""
    row = last_restore(session, dataflow, epoch)
    return () if row is None else tuple(str(each) for each in row.left_out)


def pins_on(session: Session, origin: str) -> list[RestoreRow]:
    """Return the restores, in any dataflow, that still need files of a dataflow."""
    query = select(RestoreRow).where(RestoreRow.origin == origin, RestoreRow.unpinned_at.is_(None))
    return list(session.scalars(query.order_by(RestoreRow.id)))


def pins_of(session: Session, dataflow: str) -> list[RestoreRow]:
    """Return the restores of a dataflow whose files are still needed, since no checkpoint has replaced them."""
    return [row for row in restores_of(session, dataflow) if row.unpinned_at is None]


def end_pin(row: RestoreRow, now: datetime) -> None:
    """Allow the restored files to be released, as those of any state."""
    row.unpinned_at = now


def origins_of(dataflow: str, restored: Iterable[Manifest]) -> list[str]:
    """Return the other dataflows whose files the restored results consist of."""
    files = [file for manifest in restored for file in _files(manifest)]
    return sorted({dataflow_of_path(file.folder) for file in files} - {dataflow})


def _files(manifest: Manifest) -> tuple[StateFile, ...]:
    return () if manifest.state is None else manifest.state.files


def require_after_restore(session: Session, dataflow: str, epoch: str) -> None:
    """Refuse to compute an epoch up to the one that a dataflow begins with. Raises Misconfigured."""
    first = session.connection().execute(_RESTORED_FROM, {"dataflow": dataflow, "epoch": epoch}).scalar()
    if first is None:
        return
    row = last_restore(session, dataflow, first)
    source = "a checkpoint" if row is None else f"{row.source} of {row.origin}"
    raise Misconfigured.of("ledger.before_restored_epoch", dataflow=dataflow, first=first, source=source, epoch=epoch)

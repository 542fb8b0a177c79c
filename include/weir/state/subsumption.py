"""Which checkpoints are subsumed when another one completes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from weir.formats.checkpoint import SnapshotKind
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import CheckpointRow
from weir.state.retention_rules import CompletedSnapshot, subsumed


def subsume_checkpoints(session: Session, dataflow: str, retained: int, now: datetime) -> list[CheckpointRow]:
    """Mark subsumed what has to go so that `retained` checkpoints and savepoints stay; answers which."""
    rows = {row.number: row for row in retained_checkpoints(session, dataflow)}
    listed = [CompletedSnapshot(row.number, SnapshotKind(row.kind), row.epoch) for row in rows.values()]
    gone = subsumed(listed, retained)
    for number, by in gone.items():
        rows[number].subsumed_at, rows[number].subsumed_by = now, by
    return [rows[number] for number in sorted(gone)]

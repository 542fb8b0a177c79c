"""What a dataflow can go on from when a state that it needs is not kept any more, in words."""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.ledger.checkpoints import CheckpointStatus, checkpoints_of, retained_checkpoints
from weir.state.retention import SnapshotKind

_SHOWN = 10


def what_is_kept(session: Session, dataflow: str) -> str:
    """Name the kept checkpoints and savepoints of a dataflow, and how to go on from one of them."""
    kept = [row for row in retained_checkpoints(session, dataflow) if not SnapshotKind(row.kind).is_savepoint]
    savepoints = [
        row
        for row in checkpoints_of(session, dataflow)
        if SnapshotKind(row.kind).is_savepoint
        and row.status == CheckpointStatus.COMPLETED.value
        and row.deleted_at is None
    ]
    oldest = "No checkpoint is kept"
    if kept:
        oldest = f"The oldest kept checkpoint is {kept[0].number}, of epoch {kept[0].epoch}"
    listed = [f"{row.number} of epoch {row.epoch}" for row in savepoints[-_SHOWN:]]
    more = f" (and {len(savepoints) - _SHOWN} older ones)" if len(savepoints) > _SHOWN else ""
    held = f"savepoints are {', '.join(listed)}{more}" if listed else "there is no savepoint"
    if kept[1:]:
        held += f"; newer checkpoints are {', '.join(str(row.number) for row in kept[1:][-_SHOWN:])}"
    if not kept and not listed:
        return f"{oldest}, and {held}"
    return (
        f"{oldest}; {held}. `weir restore {dataflow} NUMBER --dry-run` tells what it means to go on from one of them: "
        "epochs behind it are computed again, in order"
    )

"""Entering the checkpoints that a store holds into a ledger that is built again.

Invariant: no number is given out twice, and no manifest that can be read is given up but by the ledger's own word: its
content was that of committed results when it was written, and its files go only behind it. Whether a run had published
anything says nothing of its checkpoint: it may have no sink, and versions expire.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_content import fingerprint
from weir.coordinator.restored_results import partitions_in
from weir.coordinator.services import Services
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus, checkpoint_row, checkpoints_of, enter_checkpoint, enter_taken
from weir.ledger.models import ResultRow, RunRow
from weir.ledger.runs import runs_of, topology_of
from weir.results.checkpoint import Checkpoint, checkpoint_number, checkpoint_path, checkpoints_folder
from weir.results.codec import checkpoint_from_json
from weir.state.retention import SnapshotKind
from weir.store.errors import NotFound
from weir.topology.regions import PartitionId

Found = dict[int, Checkpoint | str]
"""What was found under each number: the checkpoint, or why it cannot be read."""


def stored_checkpoints(services: Services, dataflow: str) -> Found:
    """The checkpoints of a dataflow that the store holds. Raises Retryable."""
    try:
        names = [name for name, _ in services.store.list(checkpoints_folder(dataflow))]
    except NotFound:
        return {}
    numbers = sorted(number for number in map(checkpoint_number, names) if number is not None)
    return {number: _read(services, dataflow, number) for number in numbers}


def _read(services: Services, dataflow: str, number: int) -> Checkpoint | str:
    path = checkpoint_path(dataflow, number)
    try:
        found = checkpoint_from_json(services.store.read(path))
    except (NotFound, Misconfigured) as error:
        return f"{path} cannot be read, so checkpoint {number} is left out: {error}"
    if (found.dataflow, found.number) != (dataflow, number):
        return f"{path} is checkpoint {found.number} of {found.dataflow}, so it is left out: was it copied there?"
    return found


def restore_checkpoints(session: Session, dataflow: str, found: Found, now: datetime) -> tuple[str, ...]:
    """Make the ledger say what the store holds, behind its runs; answers what is to be told. Savepoints stay as known.

    What the ledger knows as pending is given up unless its run was closed: its closing task checkpoints it anew.
    """
    _close_runs(session, dataflow, [each for each in found.values() if not isinstance(each, str)])
    notes = [each for each in found.values() if isinstance(each, str)]
    for number, each in found.items():
        _enter(session, dataflow, number, each, now)
    for row in checkpoints_of(session, dataflow):
        if row.kind != SnapshotKind.CHECKPOINT.value or row.number in found:
            continue
        if row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is None and row.deleted_at is None:
            notes.append(f"checkpoint {row.number} has no manifest in the store: it is given up")
        if row.status != CheckpointStatus.COMPLETED.value or row.subsumed_at is None:
            row.status = CheckpointStatus.FAILED.value
        row.deleted_at = row.deleted_at or now
    return tuple(notes)


def _close_runs(session: Session, dataflow: str, found: list[Checkpoint]) -> None:
    """Runs whose present results a checkpoint has were closed when it was complete, and so were all before them.

    Checkpoints complete in the order of epochs.
    """
    rows = {row.id: row for row in runs_of(session, dataflow)}
    for each in sorted(found, key=lambda checkpoint: checkpoint.number):
        row = rows.get(each.run)
        if row is not None and row.closed_at is None and _is_current(session, each):
            row.closed_at = datetime.fromisoformat(each.completed_at)
    after: datetime | None = None
    for row in sorted(rows.values(), key=lambda run: run.epoch, reverse=True):
        if row.pinned is None or not topology_of(row.pinned).dataflow.keeps_state:
            continue  # the next epoch waits for its closing task for other reasons, or not at all
        row.closed_at = after = row.closed_at or after


def _is_current(session: Session, checkpoint: Checkpoint) -> bool:
    """Whether its run has just what a checkpoint has; who made it, and to which files, does not count."""
    query = select(ResultRow).where(ResultRow.run == checkpoint.run, ResultRow.is_current)
    present = {PartitionId(row.stage, row.subtask, row.layout): row.digest for row in session.scalars(query)}
    return partitions_in(checkpoint).items() <= present.items()


def _enter(session: Session, dataflow: str, number: int, found: Checkpoint | str, now: datetime) -> None:
    row = checkpoint_row(session, dataflow, number)
    if isinstance(found, str):
        if row is None:
            enter_taken(session, dataflow, number, now)
        elif row.subsumed_at is None:
            row.status = CheckpointStatus.FAILED.value
        return
    if row is None:
        row = enter_checkpoint(session, found, fingerprint(found), datetime.fromisoformat(found.triggered_at))
    elif row.status == CheckpointStatus.PENDING.value and not _is_closed(session, found.run):
        row.status = CheckpointStatus.FAILED.value
    row.deleted_at = None
    if row.status != CheckpointStatus.FAILED.value:
        row.status = CheckpointStatus.COMPLETED.value
        row.completed_at = row.completed_at or datetime.fromisoformat(found.completed_at)


def _is_closed(session: Session, run: str) -> bool:
    row = session.get(RunRow, run)
    return row is not None and row.closed_at is not None

"""Entering the savepoints that a store holds into a ledger that is built again.

Invariant: no number is given out twice. Savepoints in other places are known by their folders only.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_content import fingerprint
from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import Folder, Source, read_savepoint
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus, checkpoint_row, enter_checkpoint
from weir.results.savepoint import savepoints_folder
from weir.store.errors import NotFound


def stored_savepoints(services: Services, dataflow: str) -> tuple[Source | str, ...]:
    """The savepoints of a dataflow that the store itself holds, or why one cannot be read. Raises Retryable."""
    folder = savepoints_folder(dataflow)
    try:
        names = [name for name, size in services.store.entries(folder) if size is None]
    except NotFound:
        return ()
    return tuple(_read(Folder(services.store, f"{folder}/{name}")) for name in names)


def _read(folder: Folder) -> Source | str:
    try:
        return read_savepoint(folder)
    except Misconfigured as error:
        return f"savepoint {folder.url} is left out: {error}"


def restore_savepoints(session: Session, dataflow: str, found: tuple[Source | str, ...]) -> tuple[str, ...]:
    """Enter savepoints that the ledger does not know; answers what is to be told."""
    notes = [each for each in found if isinstance(each, str)]
    for each in found:
        if isinstance(each, str):
            continue
        known = checkpoint_row(session, dataflow, each.checkpoint.number)
        if known is None and each.checkpoint.dataflow == dataflow:
            _enter(session, each)
        elif known is None or known.folder != each.folder.url:
            notes.append(f"{each.folder.url} has the number of another: `weir restore` knows it by its folder")
    return tuple(notes)


def _enter(session: Session, source: Source) -> None:
    made = source.checkpoint
    at = datetime.fromisoformat(made.triggered_at)
    row = enter_checkpoint(session, made, fingerprint(made), at, source.folder.url)
    row.status, row.completed_at = CheckpointStatus.COMPLETED.value, datetime.fromisoformat(made.completed_at)

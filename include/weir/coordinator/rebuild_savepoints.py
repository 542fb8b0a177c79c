"""Entering the savepoints that a store holds into a ledger that is built again.

Invariant: no number is given out twice. Savepoints in other places are known by their folders only; their numbers are
taken, as are those of savepoints that were dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_content import fingerprint
from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import Folder, Source, read_savepoint
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus, checkpoint_row, enter_checkpoint, enter_taken
from weir.results.savepoint import NUMBERS, numbers_folder, savepoints_folder
from weir.state.retention import SnapshotKind
from weir.store.errors import NotFound
from weir.store.walk import folders_in


def stored_savepoints(services: Services, dataflow: str) -> tuple[Source | str, ...]:
    """The savepoints of a dataflow that the store itself holds, or why one cannot be read. Raises Retryable."""
    folder = savepoints_folder(dataflow)
    names = [name for name in folders_in(services.store, folder) if name != NUMBERS]
    return tuple(_read(Folder(services.store, f"{folder}/{name}")) for name in names)


def _read(folder: Folder) -> Source | str:
    try:
        return read_savepoint(folder)
    except Misconfigured as error:
        return f"savepoint {folder.url} is left out: {error}"


def kept_numbers(services: Services, dataflow: str) -> dict[int, str]:
    """The numbers of savepoints that the store does not hold, or no more, each with its folder. Raises Retryable."""
    folder = numbers_folder(dataflow)
    try:
        names = [name for name, _ in services.store.list(folder)]
    except NotFound:
        return {}
    numbers = {int(name): name for name in names if name.isdecimal()}
    return {number: services.store.read(f"{folder}/{name}").decode() for number, name in numbers.items()}


def restore_numbers(session: Session, dataflow: str, taken: Mapping[int, str], now: datetime) -> None:
    """Enter that numbers are taken which the ledger does not know."""
    for number, url in taken.items():
        if checkpoint_row(session, dataflow, number) is None:
            enter_taken(session, dataflow, number, now, SnapshotKind.SAVEPOINT, url)


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

"""Enter the checkpoints, savepoints and pins of forks that a store holds into a ledger that is rebuilt.

Invariant: no number is given out twice: those of savepoints in other stores, and of dropped ones, are taken too. Where
a ledger that had lost commits has given one out again, it is that of the manifest in the store. A manifest that can be
read is given up only if the ledger records it as given up: its content was that of committed results when it was
written, and its files are deleted only after it. Whether a run has published does not matter: it may have no sink, and
versions expire.

Invariant 4: whichever dataflow is rebuilt first, no file is deleted that another dataflow in the store was restored
with: pins of forks are entered before any dataflow is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint, SnapshotKind, fingerprint
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import (
    NUMBERS,
    checkpoint_number,
    checkpoint_path,
    checkpoints_folder,
    numbers_folder,
    savepoints_folder,
)
from weir.ledger.checkpoints import (
    CheckpointStatus,
    checkpoint_row,
    checkpoints_of,
    enter_checkpoint,
    enter_taken,
    is_other,
    results_named,
    savepoint_url,
)
from weir.ledger.database.tables import CheckpointRow, ResultRow, RunRow
from weir.ledger.restores import origins_of
from weir.ledger.runs import ensure_dataflow, runs_of, topology_of
from weir.rebuild.ledger import enter_pins
from weir.snapshots.restored_results import partitions_in
from weir.snapshots.savepoint import CLAIM
from weir.snapshots.source import Folder, Source, read_savepoint
from weir.store.catalogue import restored, stored_dataflows
from weir.store.errors import NotFound
from weir.store.walk import files_in, folders_in
from weir.topology.regions import PartitionId

Found = dict[int, Checkpoint | str]
"""The checkpoints found, by number, or why one cannot be read."""


# Pins of forks


def enter_pins_of_all(services: Services, store_id: str) -> dict[str, set[str]]:
    """Enter the pins of forks in the store that the ledger does not have; return the forks by their origins.

    Raises Retryable, and Misconfigured for files of another Weir.
    """
    forks: dict[str, set[str]] = {}
    for dataflow in stored_dataflows(services.store):
        found: dict[str, list[Manifest]] = {}
        for each in restored(services.store, dataflow):
            if each.released is None:
                found.setdefault(each.manifest.epoch, []).append(each.manifest)
        of_others = {epoch: manifests for epoch, manifests in found.items() if origins_of(dataflow, manifests)}
        for origin in _enter_pins(services, store_id, dataflow, of_others):
            forks.setdefault(origin, set()).add(dataflow)
    return forks


def _enter_pins(services: Services, store_id: str, dataflow: str, found: dict[str, list[Manifest]]) -> Iterable[str]:
    entered: set[str] = set()
    if not found:
        return entered
    with services.ledger.transaction(dataflow) as session:
        ensure_dataflow(session, dataflow, store_id)
        for epoch, manifests in found.items():
            entered |= set(enter_pins(session, dataflow, epoch, manifests, services.now()))
    return entered


# Checkpoints


def stored_checkpoints(services: Services, dataflow: str) -> Found:
    """Read the checkpoints of a dataflow in the store. Raises Retryable."""
    names = files_in(services.store, checkpoints_folder(dataflow))
    numbers = sorted(number for number in map(checkpoint_number, names) if number is not None)
    return {number: _read(services, dataflow, number) for number in numbers}


def _read(services: Services, dataflow: str, number: int) -> Checkpoint | str:
    path = checkpoint_path(dataflow, number)
    try:
        found = from_json(Checkpoint, services.store.read(path))
    except (NotFound, Misconfigured) as error:
        return f"{path} cannot be read, so checkpoint {number} is left out: {error}"
    if (found.dataflow, found.number) != (dataflow, number):
        return f"{path} is checkpoint {found.number} of {found.dataflow}, so it is left out: was it copied there?"
    return found


def restore_checkpoints(session: Session, dataflow: str, found: Found, now: datetime) -> tuple[str, ...]:
    """Enter the checkpoints in the store after the runs; return notes. Rows of savepoints are not changed.

    A pending checkpoint is given up unless its run was closed: the closing task completes another one.
    """
    _close_runs(session, dataflow, [each for each in found.values() if not isinstance(each, str)])
    notes = [each for each in found.values() if isinstance(each, str)]
    for number, each in found.items():
        row = checkpoint_row(session, dataflow, number)
        if row is not None and row.is_savepoint:  # it was made when the ledger had lost that the number was taken
            notes.append(f"{checkpoint_path(dataflow, number)} has the number of a savepoint, so it is left out")
            continue
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
    """Mark closed the runs whose present results a checkpoint has, and all runs before them.

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
            continue  # checkpoints of later epochs do not wait for it
        row.closed_at = after = row.closed_at or after


def _is_current(session: Session, checkpoint: Checkpoint) -> bool:
    """Report whether the present results of the run have the digests of the checkpoint, of whichever attempt."""
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
    if row is not None and is_other(row, found):
        session.delete(row)  # no manifest of it can be written any more
        session.flush()
        row = None
    if row is None:
        row = enter_checkpoint(session, found, fingerprint(found), datetime.fromisoformat(found.triggered_at))
    elif row.status == CheckpointStatus.PENDING.value and not _is_closed(session, found.run):
        row.status = CheckpointStatus.FAILED.value
    row.deleted_at, row.results = None, results_named(session, found)
    if row.status != CheckpointStatus.FAILED.value:
        row.status = CheckpointStatus.COMPLETED.value
        row.completed_at = row.completed_at or datetime.fromisoformat(found.completed_at)


def _is_closed(session: Session, run: str) -> bool:
    row = session.get(RunRow, run)
    return row is not None and row.closed_at is not None


# Savepoints


@dataclass(frozen=True, slots=True)
class Unread:
    """The folder of a savepoint that cannot be read, or is not finished; `attempt` writes it, empty if none does."""

    url: str
    why: str
    attempt: str


StoredSavepoints = tuple[Source | Unread, ...]


def stored_savepoints(services: Services, dataflow: str) -> StoredSavepoints:
    """Read the savepoints of a dataflow in the store itself. Raises Retryable."""
    folder = savepoints_folder(dataflow)
    names = [name for name in folders_in(services.store, folder) if name != NUMBERS]
    return tuple(_read_savepoint(Folder(services.store, f"{folder}/{name}")) for name in names)


def _read_savepoint(folder: Folder) -> Source | Unread:
    try:
        return read_savepoint(folder)
    except Misconfigured as error:
        why, claim = f"savepoint {folder.url} is left out: {error}", b""
    with suppress(NotFound):
        claim = folder.store.read(folder.at(CLAIM))
    return Unread(folder.url, why, claim.decode())


def restore_savepoints(session: Session, dataflow: str, found: StoredSavepoints) -> tuple[str, ...]:
    """Enter savepoints that the ledger does not have, or of which it has only the number; return notes.

    Without a manifest, a checkpoint of the same number was begun when the ledger had lost that the number was taken.
    """
    notes = [each.why for each in found if isinstance(each, Unread)]
    for each in found:
        if isinstance(each, Unread):
            continue
        known = checkpoint_row(session, dataflow, each.checkpoint.number)
        if known is not None and _was_never_written(known):
            session.delete(known)
            session.flush()
            known = None
        if known is None and each.checkpoint.dataflow == dataflow:
            _enter_savepoint(session, each)
        elif known is None or savepoint_url(known, each.folder.store.url) != each.folder.url:
            notes.append(f"{each.folder.url} has the number of another: `weir restore` knows it by its folder")
    return tuple(notes)


def _was_never_written(row: CheckpointRow) -> bool:
    if row.is_savepoint:
        return not row.run
    return row.status == CheckpointStatus.FAILED.value and row.deleted_at is not None


def _enter_savepoint(session: Session, source: Source) -> None:
    made = source.checkpoint
    at = datetime.fromisoformat(made.triggered_at)
    row = enter_checkpoint(session, made, fingerprint(made), at, source.folder.url)
    row.status, row.completed_at = CheckpointStatus.COMPLETED.value, datetime.fromisoformat(made.completed_at)


def kept_numbers(services: Services, dataflow: str) -> dict[int, str]:
    """Read the numbers of savepoints, with their folders, and of checkpoints that were deleted. Raises Retryable."""
    folder = numbers_folder(dataflow)
    names = files_in(services.store, folder)
    numbers = {int(name): name for name in names if name.isdecimal()}
    return {number: services.store.read(f"{folder}/{name}").decode() for number, name in numbers.items()}


def restore_numbers(
    session: Session, dataflow: str, taken: Mapping[int, str], savepoints: StoredSavepoints, now: datetime
) -> None:
    """Enter numbers as taken that the ledger does not have; a savepoint has a folder.

    One that an attempt writes in the store is pending, and goes when it is old.
    """
    writing = {each.url: each.attempt for each in savepoints if isinstance(each, Unread)}
    for number, url in taken.items():
        if checkpoint_row(session, dataflow, number) is None:
            kind = SnapshotKind.SAVEPOINT if url else SnapshotKind.CHECKPOINT
            enter_taken(session, dataflow, number, now, kind, url, writing.get(url, ""))

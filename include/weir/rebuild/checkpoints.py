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

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.importing import enter_pins
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
from weir.snapshots.savepoint import CLAIM
from weir.snapshots.source import Folder, Source, read_savepoint
from weir.store.catalogue import restored, stored_dataflows
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.store.walk import files_in, folders_in
from weir.topology.regions import PartitionId


@dataclass(frozen=True, slots=True)
class Unread:
    """The folder of a savepoint that cannot be read, or is not finished; `attempt` writes it, empty if none does."""

    url: str
    why: str
    attempt: str


@dataclass(frozen=True, slots=True)
class StoredSnapshots:
    """The checkpoints of a dataflow in its store by number, or why one cannot be read, and the savepoints there.

    `numbers` are those of savepoints, with their folders wherever these are, and of checkpoints that were deleted.
    """

    checkpoints: Mapping[int, Checkpoint | str]
    savepoints: tuple[Source | Unread, ...]
    numbers: Mapping[int, str]

    @property
    def readable(self) -> list[Checkpoint]:
        """The checkpoints that can be read, by number."""
        return [each for each in self.checkpoints.values() if not isinstance(each, str)]


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
        of_others = [pair for pair in found.items() if origins_of(dataflow, pair[1])]
        if not of_others:
            continue
        with services.ledger.transaction(dataflow) as session:
            ensure_dataflow(session, dataflow, store_id)
            entered = [enter_pins(session, dataflow, *pair, services.now()) for pair in of_others]
        for origin in chain.from_iterable(entered):
            forks.setdefault(origin, set()).add(dataflow)
    return forks


# Reading


def stored_snapshots(services: Services, dataflow: str) -> StoredSnapshots:
    """Read the checkpoints and savepoints of a dataflow in the store. Raises Retryable."""
    store, savepoints, numbers = services.store, savepoints_folder(dataflow), numbers_folder(dataflow)
    names = map(checkpoint_number, files_in(store, checkpoints_folder(dataflow)))
    folders = (f"{savepoints}/{name}" for name in folders_in(store, savepoints) if name != NUMBERS)
    taken = (name for name in files_in(store, numbers) if name.isdecimal())
    return StoredSnapshots(
        {number: _read(store, dataflow, number) for number in sorted(each for each in names if each is not None)},
        tuple(_read_savepoint(Folder(store, each)) for each in folders),
        {int(name): store.read(f"{numbers}/{name}").decode() for name in taken},
    )


def _read(store: Store, dataflow: str, number: int) -> Checkpoint | str:
    path = checkpoint_path(dataflow, number)
    try:
        found = from_json(Checkpoint, store.read(path))
    except (NotFound, Misconfigured) as error:
        return f"{path} cannot be read, so checkpoint {number} is left out: {error}"
    if (found.dataflow, found.number) != (dataflow, number):
        return f"{path} is checkpoint {found.number} of {found.dataflow}, so it is left out: was it copied there?"
    return found


def _read_savepoint(folder: Folder) -> Source | Unread:
    try:
        return read_savepoint(folder)
    except Misconfigured as error:
        why, claim = f"savepoint {folder.url} is left out: {error}", b""
    with suppress(NotFound):
        claim = folder.store.read(folder.at(CLAIM))
    return Unread(folder.url, why, claim.decode())


# Entering


def enter_snapshots(session: Session, dataflow: str, found: StoredSnapshots, now: datetime) -> tuple[str, ...]:
    """Enter the checkpoints and savepoints in the store after the runs; return notes.

    Of a number that neither has, only is known that it is taken. A savepoint that an attempt writes in the store is
    pending, and goes when it is old.
    """
    _close_runs(session, dataflow, found.readable)
    checkpoints = [_enter(session, dataflow, number, each, now) for number, each in found.checkpoints.items()]
    given_up = _give_up_others(session, dataflow, found.checkpoints, now)
    savepoints = [_enter_savepoint(session, dataflow, each) for each in found.savepoints]
    writing = {each.url: each.attempt for each in found.savepoints if isinstance(each, Unread)}
    for number, url in found.numbers.items():
        if checkpoint_row(session, dataflow, number) is None:
            kind = SnapshotKind.SAVEPOINT if url else SnapshotKind.CHECKPOINT
            enter_taken(session, dataflow, number, now, kind, url, writing.get(url, ""))
    return tuple(note for note in (*checkpoints, *given_up, *savepoints) if note)


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
    return all(present.get(each) == part.digest for each, part in checkpoint.parts.items())


def _enter(session: Session, dataflow: str, number: int, found: Checkpoint | str, now: datetime) -> str:
    """Enter a checkpoint; return a note if it is left out. The row of a savepoint is not changed.

    A pending checkpoint is given up unless its run was closed: the closing task completes another one.
    """
    row = checkpoint_row(session, dataflow, number)
    if row is not None and row.is_savepoint:  # it was made when the ledger had lost that the number was taken
        return f"{checkpoint_path(dataflow, number)} has the number of a savepoint, so it is left out"
    if isinstance(found, str):
        if row is None:
            enter_taken(session, dataflow, number, now)
        elif row.subsumed_at is None:
            row.status = CheckpointStatus.FAILED.value
        return found
    if row is not None and is_other(row, found):
        _remove(session, row)  # no manifest of it can be written any more
        row = None
    if row is None:
        row = _new_row(session, found)
    elif row.status == CheckpointStatus.PENDING.value and not _is_closed(session, found.run):
        row.status = CheckpointStatus.FAILED.value
    row.deleted_at, row.results = None, results_named(session, found)
    if row.status != CheckpointStatus.FAILED.value:
        _complete(row, found)
    return ""


def _new_row(session: Session, found: Checkpoint, url: str = "") -> CheckpointRow:
    return enter_checkpoint(session, found, fingerprint(found), datetime.fromisoformat(found.triggered_at), url)


def _complete(row: CheckpointRow, found: Checkpoint) -> None:
    row.status = CheckpointStatus.COMPLETED.value
    row.completed_at = row.completed_at or datetime.fromisoformat(found.completed_at)


def _remove(session: Session, row: CheckpointRow) -> None:
    session.delete(row)
    session.flush()


def _is_closed(session: Session, run: str) -> bool:
    row = session.get(RunRow, run)
    return row is not None and row.closed_at is not None


def _give_up_others(session: Session, dataflow: str, found: Container[int], now: datetime) -> list[str]:
    """Give up the checkpoints in the ledger whose manifests are gone; return notes on those that were retained."""
    notes = []
    for row in checkpoints_of(session, dataflow):
        if row.kind != SnapshotKind.CHECKPOINT.value or row.number in found:
            continue
        is_subsumed = row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is not None
        if row.status == CheckpointStatus.COMPLETED.value and not is_subsumed and row.deleted_at is None:
            notes.append(f"checkpoint {row.number} has no manifest in the store: it is given up")
        if not is_subsumed:
            row.status = CheckpointStatus.FAILED.value
        row.deleted_at = row.deleted_at or now
    return notes


def _enter_savepoint(session: Session, dataflow: str, found: Source | Unread) -> str:
    """Enter a savepoint that the ledger does not have, or of which it has only the number; return a note, if any."""
    if isinstance(found, Unread):
        return found.why
    made = found.checkpoint
    known = checkpoint_row(session, dataflow, made.number)
    if known is not None and _was_never_written(known):
        _remove(session, known)
        known = None
    if known is None and made.dataflow == dataflow:
        _complete(_new_row(session, made, found.folder.url), made)
    elif known is None or savepoint_url(known, found.folder.store.url) != found.folder.url:
        return f"{found.folder.url} has the number of another: `weir restore` knows it by its folder"
    return ""


def _was_never_written(row: CheckpointRow) -> bool:
    """Report whether only the number is known, or whether a ledger that had lost it gave it to a checkpoint."""
    if row.is_savepoint:
        return not row.run
    return row.status == CheckpointStatus.FAILED.value and row.deleted_at is not None

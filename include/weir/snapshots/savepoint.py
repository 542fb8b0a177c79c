"""Create, list, show and drop savepoints: `weir savepoint create|list|show|drop`.

Invariant: a savepoint exists when its manifest does, which is written last and deleted first: from then on only a drop
deletes it, whatever the ledger answers. A folder is claimed before anything is written there, and only the savepoint's
own files are ever deleted. A savepoint that was not finished, and whose process renews no leases, is removed by a later
command once it is old, or completed in the ledger if its manifest was written. What is copied is compared with its
SHA-256. No number is given out twice, even if the ledger was lost: the store keeps the number of each savepoint,
wherever that is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.evidence import require_not_behind
from weir.coordination.positions import loaded_position
from weir.coordination.services import Services
from weir.errors import Conflict, Message, Misconfigured, WeirError, said_by
from weir.execution.partition_state import PartitionState
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, SnapshotKind, StatePartition
from weir.formats.codec import to_json
from weir.formats.paths import name_of, number_path, savepoints_folder
from weir.formats.savepoint import FILES, RESULTS, SAVEPOINT, FileCopy, as_savepoint
from weir.ledger.checkpoints import (
    CheckpointStatus,
    abandon,
    checkpoint_row,
    complete,
    enter_checkpoint,
    next_number,
    results_named,
    retained_checkpoints,
    savepoint_url,
)
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import CheckpointRow
from weir.ledger.leases import drop_leases, hold_leases, is_holding, take_leases
from weir.ledger.names import require_dataflow
from weir.ledger.runs import newest_dataflow_settings
from weir.snapshots.source import (
    Folder,
    NotThere,
    Source,
    find_source,
    folder_at,
    folder_of_savepoint,
    is_retained_now,
    read_checkpoint,
    read_savepoint,
)
from weir.state.checkpoint import Guard, to_subsume
from weir.state.file_rules import expired_until
from weir.store.copying import copy_all, copy_file
from weir.store.errors import AlreadyExists, NotFound, OtherBytes
from weir.store.store import Store
from weir.topology.ids import AttemptId
from weir.units import format_size

ROUNDS = 3
"""How often the newest checkpoint may be subsumed while it is being copied."""

CLAIM = "making.txt"
"""The file in the folder of an unfinished savepoint with the id of the attempt that writes it."""

_BETWEEN_RENEWALS = 16
"""How many files are copied between two renewals of the leases."""


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """A request to create a savepoint of a checkpoint (None: the newest) in the folder `to` (None: in the store).

    Of all tries of a request with the same `key`, such as those of a task, one makes a savepoint.
    """

    dataflow: str
    checkpoint: int | None = None
    to: str | None = None
    name: str | None = None
    key: str = ""
    kind: SnapshotKind = SnapshotKind.SAVEPOINT

    @property
    def prefix(self) -> str:
        """What the attempts of all its tries begin with, and those of no other request."""
        return f"{hashlib.sha256(self.key.encode()).hexdigest()[:16]}-" if self.key else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint in the ledger: its status is that of `weir checkpoints`, and `folder` is its URL."""

    dataflow: str
    number: int
    kind: str
    epoch: str
    status: str
    folder: str
    bytes: int
    files: int
    triggered_at: datetime
    completed_at: datetime | None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return name_of(self.folder)

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"Savepoint {self.number} of {self.dataflow}, the state at the end of epoch {self.epoch}: "
            f"{self.files} file(s), {format_size(self.bytes)}, at {self.folder}"
        )


def counted_rows(store: Store, state: KeyedSnapshot, part: StatePartition, expired_until: int | None) -> int:
    """Count the rows of a partition of keyed state by its keys. Raises NotThere where a file is gone or damaged."""
    from weir.state.spark_schema import arrow_schema  # noqa: PLC0415  pyarrow is slow to import
    from weir.state.state_files import Gone, Shape, count_rows  # noqa: PLC0415

    shape = Shape(arrow_schema(state.spark_schema), state.state.keys, expired_until)
    try:
        return count_rows(store, part.files, shape, part.key_groups)
    except Gone as error:
        raise NotThere.of("snapshots.rows_uncountable", state=state.state.name, detail=error.detail) from error


Count = Callable[[Store, KeyedSnapshot, StatePartition, int | None], int]
"""Counts the rows of a partition that were last updated after a time."""


def _always(session: Session) -> None:
    """Raise nothing: whoever asks for a savepoint gets one."""


def create(
    services: Services, request: SavepointRequest, count: Count = counted_rows, guard: Guard = _always
) -> Savepoint:
    """Copy a checkpoint with all of its files to a folder of its own, unless `guard` raises as its number is taken.

    Raises Misconfigured if there is no such checkpoint, or the folder is taken; Retryable if a store does not answer:
    then nothing is left in the folder. If the ledger does not answer when all is written, the savepoint exists, and the
    next command completes it in the ledger. LedgerBehind where the ledger has lost commits: the newest checkpoint
    that it knows may be an old one, and the next number may be taken.
    """
    services.store_id()
    require_not_behind(services, request.dataflow)
    tidy(services, request.dataflow)
    made = _made_by_earlier_try(services, request)
    if made is not None:
        return made
    for _ in range(ROUNDS - 1):
        try:
            return _create(services, request, count, guard)
        except _NumberTaken:
            continue
        except NotThere:
            if request.checkpoint is not None:
                raise
    return _create(services, request, count, guard)


def _made_by_earlier_try(services: Services, request: SavepointRequest) -> Savepoint | None:
    """Return the savepoint that an earlier try of a request has made, or remove what that try has left."""
    if not request.key:
        return None
    with services.ledger.transaction() as session:
        rows = [row for row in _rows(session, request.dataflow) if row.attempt.startswith(request.prefix)]
    for row in rows:
        if row.deleted_at is None and row.status == CheckpointStatus.COMPLETED.value:
            return _savepoint(services, row)
    for row in rows:
        if row.deleted_at is None:
            _remove(services, row, folder_of_savepoint(services, row))
    return None


class _NumberTaken(Conflict):
    """Another command took the number in whose folder the savepoint was to be."""


def _create(services: Services, request: SavepointRequest, count: Count, guard: Guard) -> Savepoint:
    with services.ledger.transaction() as session:
        row = checkpoint_to_save(session, request)
        number = next_number(session, request.dataflow)
    source = read_checkpoint(services, request.dataflow, row.number)
    source = replace(source, checkpoint=_counted(source, count))
    folder = _folder(services, request, number)
    try:
        require_free(folder)
    except Misconfigured:
        with services.ledger.transaction() as session:
            _require_next(session, request, number)  # else it is that of the savepoint which has this number
        raise
    now = services.now()
    savepoint, copies = as_savepoint(source.checkpoint, number, _attempt_of(services, request), now.isoformat())
    savepoint = replace(savepoint, kind=request.kind)
    with services.ledger.transaction(request.dataflow) as session:
        _require_next(session, request, number)
        guard(session)
        if not is_retained_now(session, source):
            raise NotThere.of("snapshots.subsumed_meanwhile", source=source)
        entered = enter_checkpoint(session, savepoint, row.content, now, folder.url)
        # The files of a checkpoint that is subsumed meanwhile stay while they are copied.
        named = results_named(session, source.checkpoint)
        take_leases(session, named, savepoint.attempt, now)
    try:
        _keep_number(services, savepoint, folder)
        claim(folder, savepoint.attempt)
        _copy_leased(services, source, folder, savepoint, copies, named)
        _write(services, folder, savepoint)
    except BaseException:
        _undo(services, entered, folder)
        raise
    return _completed(services, entered, folder)


def _require_next(session: Session, request: SavepointRequest, number: int) -> None:
    if next_number(session, request.dataflow) != number:
        raise _NumberTaken.of("snapshots.number_taken", number=number, dataflow=request.dataflow)


def _attempt_of(services: Services, request: SavepointRequest) -> AttemptId:
    new = services.new_uuid()
    return AttemptId(f"{request.prefix}{new.hex[:12]}" if request.key else str(new))


@dataclass(frozen=True, slots=True)
class Displaced:
    """What a savepoint means for checkpoints: it is one of the `retained`, and `going` are subsumed by the next close.

    `beside` is how many checkpoints stay beside all savepoints.
    """

    retained: int
    beside: int
    going: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        """Say what stays, what goes, and what keeps it."""
        named = ", ".join(f"{number} (epoch {epoch})" for number, epoch in self.going)
        goes = f", and checkpoint {named} goes when the next run is closed" if self.going else ""
        return (
            f"It counts as one of retained_checkpoints={self.retained}, so that {self.beside} checkpoint(s) stay "
            f"beside the savepoints{goes}: retained_checkpoints={self.retained + 1} keeps one more"
        )


def displaced(services: Services, dataflow: str) -> Displaced:
    """Return what the savepoints of a dataflow leave of its checkpoints. Raises Retryable."""
    with services.ledger.transaction() as session:
        retained = newest_dataflow_settings(session, dataflow, services.retention).retained_checkpoints
        rows, gone = to_subsume(session, dataflow, retained)
        own = sum(row.is_savepoint for row in rows.values())
        going = tuple((number, rows[number].epoch) for number in sorted(gone) if not rows[number].is_savepoint)
    return Displaced(retained, max(retained - own, 1), going)


def _counted(source: Source, count: Count) -> Checkpoint:
    """Return a checkpoint whose rows are counted where blind upserts have left only bounds.

    Raises NotThere where a file is gone or damaged.
    """
    states = tuple(
        replace(state, partitions=tuple(_counted_part(source, state, part, count) for part in state.partitions))
        for state in source.checkpoint.states
    )
    return replace(source.checkpoint, states=states)


def _counted_part(source: Source, state: KeyedSnapshot, part: StatePartition, count: Count) -> StatePartition:
    if part.is_counted:
        return part
    rows = count(source.folder.store, state, part, expired_until(state.state, source.checkpoint.epoch))
    return replace(part, rows=rows, rows_at_least=rows)


def checkpoint_to_save(session: Session, request: SavepointRequest) -> CheckpointRow:
    """Return the retained checkpoint that a request names, or the newest. Raises Misconfigured."""
    kept = retained_checkpoints(session, request.dataflow)
    if request.checkpoint is None and kept:
        return max(kept, key=lambda row: (row.epoch, row.number))
    for row in kept:
        if row.number == request.checkpoint:
            return row
    listed = ", ".join(f"{row.number} (epoch {row.epoch})" for row in kept) or "none"
    require_dataflow(session, request.dataflow)
    wanted = "a checkpoint" if request.checkpoint is None else f"checkpoint {request.checkpoint}"
    raise Misconfigured.of("snapshots.nothing_to_save", dataflow=request.dataflow, wanted=wanted, listed=listed)


def _folder(services: Services, request: SavepointRequest, number: int) -> Folder:
    name = request.name or (f"{number:08d}" if request.to is None else f"{request.dataflow}-{number:08d}")
    if "/" in name or name.startswith((".", "_")) or name.isspace() or (request.name is not None and name.isdigit()):
        raise Misconfigured.of("snapshots.name_malformed", name=name)
    if request.to is None:
        return Folder(services.store, f"{savepoints_folder(request.dataflow)}/{name}")
    folder = folder_at(services, f"{request.to.rstrip('/')}/{name}")
    if folder.store is not services.store:
        _require_root(folder.store, request.to)
    return folder


def _require_root(store: Store, to: str) -> None:
    """Require the folder `to` on a disk: a store never makes its root, and objects need none. Raises Misconfigured."""
    try:
        if store.url.startswith("file://"):
            store.entries("")
    except NotFound as error:
        raise Misconfigured.of("snapshots.folder_missing", to=to) from error


def _copy_leased(
    services: Services,
    source: Source,
    folder: Folder,
    savepoint: Checkpoint,
    copies: tuple[FileCopy, ...],
    results: list[int],
) -> None:
    """Copy the files, and renew the leases on the results that they are of: all of them may take hours."""
    placed = [replace(each, target=folder.at(each.target)) for each in copies]
    for begin in range(0, len(placed), _BETWEEN_RENEWALS):
        with services.ledger.transaction(savepoint.dataflow) as session:
            hold_leases(session, savepoint.attempt, results, tuple(PartitionState), services.now())
        copy_files(source.folder.store, folder.store, placed[begin : begin + _BETWEEN_RENEWALS])


def _keep_number(services: Services, savepoint: Checkpoint, folder: Folder) -> None:
    """Keep the number in the store before anything of the savepoint is written: the ledger may lose it, or has."""
    try:
        services.store.create(number_path(savepoint.dataflow, savepoint.number), folder.url.encode())
    except AlreadyExists:
        raise services.ledger.behind(
            savepoint.dataflow, Message("coordination.savepoint_unknown", number=savepoint.number)
        ) from None


def _write(services: Services, folder: Folder, savepoint: Checkpoint) -> None:
    """Write the manifest, with which the savepoint exists."""
    positions = {
        source: {"value": loaded_position(services, position)} for source, position in savepoint.positions.items()
    }
    whole = replace(savepoint, completed_at=services.now().isoformat(), positions=positions)
    folder.store.create(folder.at(SAVEPOINT), to_json(whole))


def _completed(services: Services, row: CheckpointRow, folder: Folder) -> Savepoint:
    services.store_id()  # else it was written below a mount point whose disk is gone
    _require_not_dropped(services, row, folder)
    folder.store.delete(folder.at(CLAIM))
    with services.ledger.transaction(row.dataflow) as session:
        drop_leases(session, row.attempt)
        known = checkpoint_row(session, row.dataflow, row.number)
        if known is not None and known.run and known.attempt == row.attempt:
            done = complete(session, row.dataflow, row.number, row.attempt, row.content, services.now())
            return _savepoint(services, done)
    raise services.ledger.behind(row.dataflow, f"it does not know savepoint {row.number}, which is whole")


def _require_not_dropped(services: Services, row: CheckpointRow, folder: Folder) -> None:
    """Remove what was written since somebody has dropped the savepoint that was being made. Raises Conflict."""
    with services.ledger.transaction() as session:
        known = checkpoint_row(session, row.dataflow, row.number)
        is_dropped = known is not None and known.attempt == row.attempt and known.deleted_at is not None
    if is_dropped:
        if is_own(folder, row):
            remove(folder)
        raise Conflict.of("snapshots.dropped_meanwhile", number=row.number, dataflow=row.dataflow)


def _undo(services: Services, row: CheckpointRow, folder: Folder) -> None:
    """Remove what was begun; where that fails too, a later command does it."""
    with suppress(WeirError):
        _remove(services, row, folder)


def tidy(services: Services, dataflow: str) -> tuple[int, ...]:
    """Complete savepoints that have a manifest although their process was killed, and remove old ones without.

    Returns the numbers of those removed. A store that cannot be reached is left to a later command.
    """
    removed = []
    with services.ledger.transaction() as session:
        rows = [row for row in _rows(session, dataflow) if row.status == CheckpointStatus.PENDING.value]
    for row in rows:
        with suppress(WeirError):
            folder = folder_of_savepoint(services, row)
            if is_made(folder, row):
                _completed(services, row, folder)
            elif row.triggered_at + services.retention.orphan_age <= services.now() and not _is_alive(services, row):
                _remove(services, row, folder)
                removed.append(row.number)
    return tuple(removed)


def _is_alive(services: Services, row: CheckpointRow) -> bool:
    """Report whether a process copies the files of a savepoint, however long that takes."""
    with services.ledger.transaction() as session:
        return is_holding(session, row.attempt, services.now())


def _remove(services: Services, row: CheckpointRow, folder: Folder) -> None:
    if is_own(folder, row):
        remove(folder)
    services.store_id()  # else the folder looks empty because the disk is not mounted
    with services.ledger.transaction(row.dataflow) as session:
        present = checkpoint_row(session, row.dataflow, row.number)
        drop_leases(session, row.attempt)
        if present is not None:
            abandon(session, present, services.now())
            present.deleted_at = services.now()


def savepoints(services: Services, dataflow: str | None = None) -> tuple[Savepoint, ...]:
    """Return all savepoints in the ledger that were not dropped, by dataflow and number.

    Raises Misconfigured for a dataflow that the ledger does not know.
    """
    with services.ledger.transaction() as session:
        if dataflow is not None:
            require_dataflow(session, dataflow)
        return tuple(_savepoint(services, row) for row in _rows(session, dataflow) if row.deleted_at is None)


def _rows(session: Session, dataflow: str | None) -> list[CheckpointRow]:
    query = select(CheckpointRow).where(CheckpointRow.kind != SnapshotKind.CHECKPOINT.value)
    if dataflow is not None:
        query = query.where(CheckpointRow.dataflow == dataflow)
    return list(session.scalars(query.order_by(CheckpointRow.dataflow, CheckpointRow.number)))


def _savepoint(services: Services, row: CheckpointRow) -> Savepoint:
    folder = savepoint_url(row, services.store.url)
    return taken(Savepoint, row, folder=folder, bytes=row.full_bytes, files=row.new_files)


def show(services: Services, dataflow: str, name: str) -> Source:
    """Find the savepoint of a number, name or folder. Raises Misconfigured where there is none, or for a checkpoint."""
    source = find_source(services, dataflow, name)
    if not source.is_savepoint:
        raise Misconfigured.of("snapshots.is_a_checkpoint", name=name, dataflow=dataflow)
    return source


def drop(services: Services, dataflow: str, name: str) -> Savepoint:
    """Delete a savepoint, finished or not. Raises Misconfigured where there is none."""
    with services.ledger.transaction() as session:
        require_dataflow(session, dataflow)
        rows = [row for row in _rows(session, dataflow) if row.deleted_at is None]
    urls = {row.number: savepoint_url(row, services.store.url) for row in rows}
    wanted = [row for row in rows if name in (str(row.number), urls[row.number], name_of(row.folder))]
    if len(wanted) != 1:
        known = ", ".join(f"{number} ({url})" for number, url in urls.items()) or "none"
        raise Misconfigured.of("snapshots.savepoint_unknown", dataflow=dataflow, name=name, known=known)
    return drop_row(services, wanted[0])


def drop_row(services: Services, row: CheckpointRow) -> Savepoint:
    """Delete the savepoint of a row, also if another process does so. Raises Misconfigured, Conflict or Retryable."""
    drop_files(folder_of_savepoint(services, row), row)
    services.store_id()  # else the folder looks empty because the disk is not mounted
    with services.ledger.transaction(row.dataflow) as session:
        present = checkpoint_row(session, row.dataflow, row.number)
        if present is None:
            raise Conflict.of("snapshots.savepoint_gone", number=row.number, dataflow=row.dataflow)
        if present.status == CheckpointStatus.PENDING.value:
            abandon(session, present, services.now())
        present.deleted_at = services.now()
        return _savepoint(services, present)


# The folder of a savepoint


def require_free(folder: Folder) -> None:
    """Require that a folder is empty or missing. Raises Misconfigured."""
    with suppress(NotFound):
        if folder.store.entries(folder.path):
            raise _taken(folder)


def _taken(folder: Folder) -> Misconfigured:
    return Misconfigured.of("snapshots.place_taken", folder_url=folder.url)


def claim(folder: Folder, attempt: str) -> None:
    """Claim a folder for an attempt. Raises Misconfigured if it is taken."""
    try:
        folder.store.create(folder.at(CLAIM), attempt.encode())
    except AlreadyExists as error:
        raise _taken(folder) from error


def is_own(folder: Folder, row: CheckpointRow) -> bool:
    """Report whether the content of a folder was written for this savepoint."""
    try:
        return folder.store.read(folder.at(CLAIM)) == row.attempt.encode()
    except NotFound:
        return is_made(folder, row)


def is_made(folder: Folder, row: CheckpointRow) -> bool:
    """Report whether the savepoint of a row is complete in its folder."""
    try:
        found = read_savepoint(folder).checkpoint
    except Misconfigured:
        return False
    return (found.number, found.attempt) == (row.number, row.attempt)


def remove(folder: Folder) -> None:
    """Delete a savepoint's own files: the manifest first, so that it does not exist any more, the claim after all.

    What somebody else has put there stays, such as another savepoint in a folder below.
    """
    folder.store.delete(folder.at(SAVEPOINT))
    for name in (FILES, RESULTS):
        folder.store.delete_folder(folder.at(name))
    folder.store.delete(folder.at(CLAIM))
    with suppress(NotFound):
        if not folder.store.entries(folder.path):
            folder.store.delete_folder(folder.path)


def drop_files(folder: Folder, row: CheckpointRow) -> None:
    """Delete the files of a savepoint, also if another drop has deleted some of them. Raises Misconfigured."""
    try:
        names = {name for name, _ in folder.store.entries(folder.path)}
    except NotFound:
        return
    is_completed = row.status == CheckpointStatus.COMPLETED.value
    if not names & {SAVEPOINT, CLAIM, FILES, RESULTS}:
        if not names:
            folder.store.delete_folder(folder.path)
        return
    if is_completed and names <= {FILES, RESULTS}:
        remove(folder)  # an earlier drop has removed its manifest, and was killed
    elif is_own(folder, row):
        remove(folder)
    elif is_completed:
        raise Misconfigured.of("snapshots.not_that_savepoint", folder_url=folder.url, number=row.number)


# Copying from store to store


def copy_files(source: Store, target: Store, copies: Sequence[FileCopy]) -> int:
    """Copy files; return the bytes. Raises NotThere if one is missing or damaged, Retryable, or Misconfigured.

    When it raises, no thread is writing any more: the copies can be deleted.
    """
    return copy_all(lambda each: _copy(source, target, each), copies, target)


def _copy(source: Store, target: Store, copy: FileCopy) -> int:
    try:
        return copy_file(source, copy.source, target, copy.target, copy.sha256)
    except NotFound as error:
        raise NotThere.of("snapshots.file_gone", source_url=source.url, source=copy.source) from error
    except OtherBytes as error:
        raise NotThere(said_by(error)) from error
    except AlreadyExists as error:
        raise Misconfigured.of("snapshots.file_in_the_way", target_url=target.url, target=copy.target) from error

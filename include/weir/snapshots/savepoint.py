"""Savepoints: `weir savepoint create|list|show|drop`.

Invariant: a savepoint is there when its manifest is, which is written last and removed first; one that was not finished
is nobody's, and whoever comes by removes it once it is old, or completes it in the ledger if its manifest was written.
A folder is claimed before anything is written there, and only what is one's own is ever removed. No number is given out
twice, also when the ledger was lost: the store keeps those of savepoints that it does not hold itself, or no more.

The folder of a savepoint. Invariant: it is claimed before anything is written there; only what is one's own goes.

Copying files from store to store. Invariant: what is copied is, byte for byte, what was to be copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Conflict, Misconfigured, WeirError
from weir.formats.checkpoint import Checkpoint, SnapshotKind
from weir.formats.codec import checkpoint_to_json
from weir.formats.paths import number_path, savepoints_folder
from weir.formats.savepoint import FILES, RESULTS, SAVEPOINT, FileCopy, as_savepoint
from weir.ledger.checkpoints import CheckpointStatus, abandon, checkpoint_row, complete, enter_checkpoint, next_number
from weir.ledger.checkpoints import retained_checkpoints as retained_snapshots
from weir.ledger.database.tables import CheckpointRow, DataflowRow
from weir.snapshots.source import Folder, OpenStore, Source, find_source, folder_at, read_checkpoint, read_savepoint
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store
from weir.topology.ids import AttemptId

ROUNDS = 3
"""How often a checkpoint may be subsumed under a savepoint of the newest one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A savepoint to be made: of which checkpoint (None: the newest), where (None: in the store), and named how."""

    dataflow: str
    checkpoint: int | None = None
    to: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint as the ledger knows it: unfinished, complete or given up; `url` is its folder."""

    dataflow: str
    number: int
    epoch: str
    status: str
    url: str
    bytes: int
    files: int
    triggered_at: datetime
    completed_at: datetime | None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.url.rpartition("/")[2]


def create(services: Services, asked: Asked, open_store: OpenStore) -> Savepoint:
    """Copy all that a checkpoint consists of to a folder that needs nothing else.

    Raises Misconfigured if there is no such checkpoint, or the place is taken; Retryable if a store does not answer.
    Whatever it raises, nothing of it is left.
    """
    services.store_id()
    tidy(services, asked.dataflow, open_store)
    for _ in range(ROUNDS - 1):
        try:
            return _create(services, asked, open_store)
        except NotThere:
            if asked.checkpoint is not None:
                raise
    return _create(services, asked, open_store)


def _create(services: Services, asked: Asked, open_store: OpenStore) -> Savepoint:
    with services.ledger.transaction() as session:
        row = _wanted(session, asked)
    source = read_checkpoint(services, asked.dataflow, row.number)
    with services.ledger.transaction(asked.dataflow) as session:
        number = next_number(session, asked.dataflow)
        folder = _folder(services, asked, number, open_store)
        require_free(folder)
        now = services.now()
        savepoint, copies = as_savepoint(
            source.checkpoint, number, AttemptId(str(services.new_uuid())), now.isoformat()
        )
        entered = enter_checkpoint(session, savepoint, row.content, now, folder.url)
    try:
        claim(folder, savepoint.attempt)
        _write(services, source, folder, savepoint, copies)
        return _completed(services, entered, folder)
    except BaseException:
        _undo(services, entered, folder)
        raise


def _wanted(session: Session, asked: Asked) -> CheckpointRow:
    kept = [row for row in retained_snapshots(session, asked.dataflow) if not row.is_savepoint]
    if asked.checkpoint is None and kept:
        return max(kept, key=lambda row: (row.epoch, row.number))
    for row in kept:
        if row.number == asked.checkpoint:
            return row
    listed = ", ".join(f"{row.number} (epoch {row.epoch})" for row in kept) or "none"
    if session.get(DataflowRow, asked.dataflow) is None:
        names = ", ".join(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name))) or "none"
        raise Misconfigured(f"the ledger knows no dataflow {asked.dataflow}; it knows {names}")
    wanted = "a checkpoint" if asked.checkpoint is None else f"checkpoint {asked.checkpoint}"
    raise Misconfigured(f"{asked.dataflow} has not {wanted} to make a savepoint of; it keeps {listed}")


def _folder(services: Services, asked: Asked, number: int, open_store: OpenStore) -> Folder:
    name = asked.name or (f"{number:08d}" if asked.to is None else f"{asked.dataflow}-{number:08d}")
    if "/" in name or name.startswith((".", "_")) or name.isspace() or (asked.name is not None and name.isdigit()):
        raise Misconfigured(f"a savepoint cannot be named {name!r}: write a plain name that is not a number")
    if asked.to is None:
        return Folder(services.store, f"{savepoints_folder(asked.dataflow)}/{name}")
    return folder_at(services, f"{asked.to.rstrip('/')}/{name}", open_store)


def _write(
    services: Services, source: Source, folder: Folder, savepoint: Checkpoint, copies: tuple[FileCopy, ...]
) -> None:
    """Copy, then describe: the manifest is what makes a savepoint of the files."""
    placed = [replace(each, target=folder.at(each.target)) for each in copies]
    copy_files(source.folder.store, folder.store, placed)
    if folder.store is not services.store:
        _keep_number(services, savepoint.dataflow, savepoint.number, folder.url)
    whole = replace(savepoint, completed_at=services.now().isoformat())
    folder.store.create(folder.at(SAVEPOINT), checkpoint_to_json(whole))


def _keep_number(services: Services, dataflow: str, number: int, url: str) -> None:
    with suppress(AlreadyExists):
        services.store.create(number_path(dataflow, number), url.encode())


def _completed(services: Services, row: CheckpointRow, folder: Folder) -> Savepoint:
    services.store_id()  # or it was written under a mount point whose disk is gone
    folder.store.delete(folder.at(CLAIM))
    with services.ledger.transaction(row.dataflow) as session:
        return _told(complete(session, row.dataflow, row.number, services.now()))


def _undo(services: Services, row: CheckpointRow, folder: Folder) -> None:
    """Remove what was begun; where that fails too, whoever comes by does it."""
    with suppress(WeirError):
        _remove(services, row, folder)


def _remove(services: Services, row: CheckpointRow, folder: Folder) -> None:
    if is_own(folder, row):
        remove(folder)
    services.store_id()  # or nothing is seen there because the disk is not mounted
    with services.ledger.transaction(row.dataflow) as session:
        present = checkpoint_row(session, row.dataflow, row.number)
        if present is not None:
            abandon(present)
            present.deleted_at = services.now()


def tidy(services: Services, dataflow: str, open_store: OpenStore) -> tuple[int, ...]:
    """Complete savepoints whose maker was killed behind the manifest, and remove old ones that have none.

    Answers the numbers of those that were removed. A place that cannot be reached is left for another time.
    """
    removed = []
    with services.ledger.transaction() as session:
        rows = [row for row in _rows(session, dataflow) if row.status == CheckpointStatus.PENDING.value]
    for row in rows:
        with suppress(WeirError):
            folder = folder_at(services, row.folder, open_store)
            if is_made(folder, row):
                _completed(services, row, folder)
            elif row.triggered_at + services.retention.orphan_age <= services.now():
                _remove(services, row, folder)
                removed.append(row.number)
    return tuple(removed)


def savepoints(services: Services, dataflow: str | None = None) -> tuple[Savepoint, ...]:
    """All savepoints that the ledger knows and nobody has dropped, by dataflow and number."""
    with services.ledger.transaction() as session:
        return tuple(_told(row) for row in _rows(session, dataflow) if row.deleted_at is None)


def _rows(session: Session, dataflow: str | None) -> list[CheckpointRow]:
    query = select(CheckpointRow).where(CheckpointRow.kind != SnapshotKind.CHECKPOINT.value)
    if dataflow is not None:
        query = query.where(CheckpointRow.dataflow == dataflow)
    return list(session.scalars(query.order_by(CheckpointRow.dataflow, CheckpointRow.number)))


def show(services: Services, dataflow: str, name: str, open_store: OpenStore) -> Source:
    """The savepoint of that number, name or folder. Raises Misconfigured where there is none, or it is no savepoint."""
    source = find_source(services, dataflow, name, open_store)
    if not source.is_savepoint:
        raise Misconfigured(
            f"{name} is a checkpoint of {dataflow}: `weir savepoint create {dataflow} --checkpoint {name}`"
        )
    return source


def drop(services: Services, dataflow: str, name: str, open_store: OpenStore) -> Savepoint:
    """Delete a savepoint, also one that was never finished. Raises Misconfigured where there is none."""
    with services.ledger.transaction() as session:
        rows = [row for row in _rows(session, dataflow) if row.deleted_at is None]
    wanted = [row for row in rows if name in (str(row.number), row.folder, row.folder.rpartition("/")[2])]
    if len(wanted) != 1:
        known = ", ".join(f"{row.number} ({row.folder})" for row in rows) or "none"
        raise Misconfigured(
            f"{dataflow} has no savepoint {name}; the ledger knows {known}. One that was moved is yours"
        )
    row = wanted[0]
    if row.status == CheckpointStatus.COMPLETED.value:
        _keep_number(services, dataflow, row.number, row.folder)
    drop_files(folder_at(services, row.folder, open_store), row)
    services.store_id()  # or nothing is seen there because the disk is not mounted
    with services.ledger.transaction(dataflow) as session:
        present = checkpoint_row(session, dataflow, row.number)
        if present is None:
            raise Conflict(f"savepoint {row.number} of {dataflow} is not in the ledger any more")
        if present.status == CheckpointStatus.PENDING.value:
            abandon(present)
        present.deleted_at = services.now()
        return _told(present)


def _told(row: CheckpointRow) -> Savepoint:
    status = {CheckpointStatus.PENDING.value: "unfinished", CheckpointStatus.FAILED.value: "given up"}.get(
        row.status, "complete"
    )
    return Savepoint(
        dataflow=row.dataflow,
        number=row.number,
        epoch=row.epoch,
        status=status,
        url=row.folder,
        bytes=row.full_bytes,
        files=row.new_files,
        triggered_at=row.triggered_at,
        completed_at=row.completed_at,
    )


CLAIM = "making.txt"
"""In the folder of a savepoint that is being made: whose it is."""


def require_free(folder: Folder) -> None:
    """Make sure that nothing is there. Raises Misconfigured."""
    with suppress(NotFound):
        if folder.store.entries(folder.path):
            raise _taken(folder)


def _taken(folder: Folder) -> Misconfigured:
    return Misconfigured(f"there is something at {folder.url} already: give the savepoint another --name, or drop it")


def claim(folder: Folder, attempt: str) -> None:
    """Say whose it will be. Raises Misconfigured if it is taken."""
    try:
        folder.store.create(folder.at(CLAIM), attempt.encode())
    except AlreadyExists as error:
        raise _taken(folder) from error


def is_own(folder: Folder, row: CheckpointRow) -> bool:
    """Whether what is in a folder was written for this savepoint."""
    try:
        return folder.store.read(folder.at(CLAIM)) == row.attempt.encode()
    except NotFound:
        return is_made(folder, row)


def remove(folder: Folder) -> None:
    """The manifest goes first, without which the files are nobody's, and the claim last, without which they stay."""
    folder.store.delete(folder.at(SAVEPOINT))
    for name, size in folder.store.entries(folder.path):
        if size is None:
            folder.store.delete_folder(folder.at(name))
    folder.store.delete_folder(folder.path)


def is_made(folder: Folder, row: CheckpointRow) -> bool:
    """Whether the savepoint that the ledger knows is there, complete."""
    try:
        found = read_savepoint(folder).checkpoint
    except Misconfigured:
        return False
    return (found.number, found.attempt) == (row.number, row.attempt)


def drop_files(folder: Folder, row: CheckpointRow) -> None:
    """Remove a savepoint, also one of which another drop has removed a part. Raises Misconfigured."""
    try:
        if not folder.store.entries(folder.path):
            return
    except NotFound:
        return
    if row.status == CheckpointStatus.COMPLETED.value and _is_unmade(folder):
        remove(folder)  # an earlier drop has removed its manifest, and was killed
    elif is_own(folder, row):
        remove(folder)
    elif row.status == CheckpointStatus.COMPLETED.value:
        raise Misconfigured(f"what is at {folder.url} is not savepoint {row.number}: nothing was deleted")


def _is_unmade(folder: Folder) -> bool:
    """Whether a folder has files of a savepoint, but neither a manifest nor a claim."""
    names = {name for name, _ in folder.store.entries(folder.path)}
    return not names & {SAVEPOINT, CLAIM} and names <= {FILES, RESULTS}


AT_ONCE = 4
"""How many files are held in memory at once: each is one that a subtask has written."""


class NotThere(Misconfigured):
    """A file that was to be copied is gone, or is another one than it should be."""


def copy_files(source: Store, target: Store, copies: Sequence[FileCopy]) -> int:
    """Copy files; answers how many bytes. Raises NotThere if one is gone or damaged, Retryable, or AlreadyExists.

    Whatever it raises, nothing is being written any more: what is there can be removed.
    """
    if min(AT_ONCE, target.workers) == 1:
        return sum(_copy(source, target, each) for each in copies)
    with ThreadPoolExecutor(min(AT_ONCE, target.workers), thread_name_prefix="weir-copies") as hands:
        return sum(hands.map(lambda each: _copy(source, target, each), copies))


def _copy(source: Store, target: Store, copy: FileCopy) -> int:
    try:
        data = source.read(copy.source)
    except NotFound as error:
        raise NotThere(f"{source.url}/{copy.source} is gone: it cannot be copied") from error
    found = hashlib.sha256(data).hexdigest()
    if found != copy.sha256:
        raise NotThere(f"{source.url}/{copy.source} is damaged: expected SHA-256 {copy.sha256}, found {found}")
    try:
        target.create(copy.target, data)
    except AlreadyExists as error:
        raise Misconfigured(f"{target.url}/{copy.target} is there already: name another place") from error
    return len(data)

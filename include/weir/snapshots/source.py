"""The checkpoint or savepoint that a person names: where it is, and whether it is all there.

Invariant: what is answered is as it was written (its manifest has its own SHA-256), and its paths lead to its files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import checkpoint_from_json
from weir.formats.paths import checkpoint_path
from weir.formats.savepoint import SAVEPOINT
from weir.ledger.checkpoints import is_retained
from weir.ledger.database.tables import CheckpointRow
from weir.store.errors import NotFound
from weir.store.probe import size_differs
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

PENDING, COMPLETED, FAILED = "pending", "completed", "failed"
_SHOWN = 10

OpenStore = Callable[[str], Store]
"""Opens the store at a URL, with the options that its kind of store needs."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a store."""

    store: Store
    path: str

    @property
    def url(self) -> str:
        """Where it is, whatever store is the usual one."""
        return f"{self.store.url}/{self.path}".rstrip("/")

    def at(self, path: str) -> str:
        """The path, from the root of the store, of something in the folder."""
        return f"{self.path}/{path}" if self.path else path


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint or savepoint, the folder that its paths are relative to, and its manifest as it is named."""

    checkpoint: Checkpoint
    folder: Folder
    name: str

    @property
    def is_savepoint(self) -> bool:
        """Whether its files are its own, wherever they are."""
        return self.checkpoint.kind.is_savepoint

    def __str__(self) -> str:
        what = "savepoint" if self.is_savepoint else "checkpoint"
        return f"{what} {self.checkpoint.number} of {self.checkpoint.dataflow} (epoch {self.checkpoint.epoch})"


def folder_at(services: Services, url: str, open_store: OpenStore) -> Folder:
    """The folder at a URL or an absolute path: of the usual store, or of one that begins above it."""
    spelt = url.rstrip("/")
    spelt = f"file://{spelt}" if spelt.startswith("/") else spelt
    own = f"{services.store.url}/"
    if spelt.startswith(own):
        return Folder(services.store, spelt.removeprefix(own))
    above, _, name = spelt.rpartition("/")
    if not name or above.endswith(":/") or not above:
        raise Misconfigured(
            f"{url} is no folder in a store: write /folder/name, file:///folder/name or s3://bucket/name"
        )
    return Folder(open_store(above), name)


def find_source(services: Services, dataflow: str, name: str, open_store: OpenStore) -> Source:
    """The checkpoint or savepoint that a person means by its number, a savepoint's name, or its folder.

    Raises Misconfigured where there is none, with what there is.
    """
    if "/" in name:
        return read_savepoint(folder_at(services, name, open_store))
    with services.ledger.transaction() as session:
        rows = snapshots_of(session, dataflow)
    wanted = [row for row in rows if name in (str(row.number), row.folder.rpartition("/")[2])]
    usable = [row for row in wanted if _is_usable(row)]
    if len(usable) != 1:
        gone = " any more, it was subsumed" if any(row.subsumed_at for row in wanted) else ""
        raise Misconfigured(f"{dataflow} has no checkpoint or savepoint {name}{gone}: {_known(rows)}")
    row = usable[0]
    if row.is_savepoint:
        return read_savepoint(folder_at(services, row.folder, open_store))
    return read_checkpoint(services, dataflow, row.number)


def snapshots_of(session: Session, dataflow: str) -> list[CheckpointRow]:
    """All checkpoints and savepoints of a dataflow that the ledger knows, oldest first."""
    query = select(CheckpointRow).where(CheckpointRow.dataflow == dataflow).order_by(CheckpointRow.number)
    return list(session.scalars(query))


def _is_usable(row: CheckpointRow) -> bool:
    is_kept = row.subsumed_at is None or row.is_savepoint  # a savepoint's files are its own
    return is_kept and row.deleted_at is None and row.status not in (PENDING, FAILED)


def _known(rows: list[CheckpointRow]) -> str:
    told = [f"{row.number} ({row.kind}, epoch {row.epoch})" for row in rows if _is_usable(row)]
    return (
        f"there are {', '.join(told[-_SHOWN:])}"
        if told
        else "it has none at all. A moved savepoint is named by its folder"
    )


def read_checkpoint(services: Services, dataflow: str, number: int) -> Source:
    """A checkpoint of the usual store. Raises Misconfigured where it is not there."""
    path = checkpoint_path(dataflow, number)
    try:
        checkpoint = checkpoint_from_json(services.store.read(path))
    except NotFound as error:
        raise Misconfigured(
            f"checkpoint {number} of {dataflow} was subsumed, or its manifest {path} is gone: `weir checkpoints "
            f"{dataflow}` lists those that are kept"
        ) from error
    return Source(checkpoint, Folder(services.store, ""), path)


def read_savepoint(folder: Folder) -> Source:
    """The savepoint in a folder. Raises Misconfigured where there is none, or it is not as it was written."""
    try:
        data = folder.store.read(folder.at(SAVEPOINT))
    except NotFound as error:
        raise Misconfigured(f"there is no savepoint at {folder.url}: expected {SAVEPOINT} there") from error
    checkpoint = checkpoint_from_json(data)
    if not checkpoint.kind.is_savepoint:
        raise Misconfigured(f"{folder.url}/{SAVEPOINT} describes a checkpoint, which has files elsewhere")
    return Source(checkpoint, folder, folder.url)


def require_whole(source: Source) -> None:
    """Make sure that all files of a checkpoint or savepoint are there, with their sizes. Raises Misconfigured."""
    store = source.folder.store
    wanted = [(source.folder.at(path), each.file) for path, each in source.checkpoint.files.items()]
    for result in source.checkpoint.results:
        wanted += [(source.folder.at(f"{result.folder}/{each.name}"), each) for each in result.files]
    found = in_parallel(lambda each: size_differs(store, *each), wanted, store.workers)
    missing = [each.detail for each in found if each is not None]
    if missing:
        more = f" (and {len(missing) - _SHOWN} more)" if len(missing) > _SHOWN else ""
        raise Misconfigured(
            f"{source} cannot be restored, nothing was changed: {'; '.join(missing[:_SHOWN])}{more}. "
            f"`weir checkpoints {source.checkpoint.dataflow}` and `weir savepoint list` tell of others"
        )


def require_retained(session: Session, source: Source) -> None:
    """Make sure, until the transaction ends, that nobody lets a checkpoint's files go. Raises Misconfigured.

    Whoever deletes files has subsumed their checkpoint before asking who uses them, and waits for this transaction to
    do so: then what was restored is there to be seen. A savepoint's files are its own.
    """
    if source.is_savepoint:
        return
    made = source.checkpoint
    query = select(CheckpointRow.id).where(
        CheckpointRow.dataflow == made.dataflow, CheckpointRow.number == made.number, is_retained()
    )
    if session.scalar(query.with_for_update(read=True)) is None:
        raise Misconfigured(
            f"{source} was subsumed while it was being restored, and its files are deleted; nothing was changed. "
            f"`weir checkpoints {made.dataflow}` lists those that are kept: restore one of them, or a savepoint"
        )


def named(checkpoint: Checkpoint, dataflow: str) -> Checkpoint:
    """The same as a checkpoint of another dataflow."""
    return replace(checkpoint, dataflow=dataflow, pinned={**checkpoint.pinned, "name": dataflow})

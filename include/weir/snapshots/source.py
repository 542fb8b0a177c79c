"""Find the checkpoint or savepoint that a user names, and require that it is complete.

Invariant: what is returned is as it was written (its manifest has its own SHA-256), and its paths lead to its files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path, name_of
from weir.formats.savepoint import SAVEPOINT
from weir.ledger.checkpoints import checkpoints_of, is_restorable, is_retained, savepoint_url
from weir.ledger.database.tables import CheckpointRow
from weir.ledger.names import require_dataflow
from weir.store.errors import NotFound
from weir.store.probe import size_differs
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

_SHOWN = 10


class NotThere(Misconfigured):
    """A file that is to be read is missing, or differs from its SHA-256."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a store."""

    store: Store
    path: str

    @property
    def url(self) -> str:
        """Its full URL."""
        return f"{self.store.url}/{self.path}".rstrip("/")

    def at(self, path: str) -> str:
        """Return the path, from the root of the store, of a path in the folder."""
        return f"{self.path}/{path}" if self.path else path


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint or savepoint, the folder that its paths are relative to, and the name of its manifest."""

    checkpoint: Checkpoint
    folder: Folder
    name: str

    @property
    def is_savepoint(self) -> bool:
        """Report whether it has copies of its own of all files."""
        return self.checkpoint.kind.is_savepoint

    def __str__(self) -> str:
        kind = "savepoint" if self.is_savepoint else "checkpoint"
        return f"{kind} {self.checkpoint.number} of {self.checkpoint.dataflow} (epoch {self.checkpoint.epoch})"


def folder_at(services: Services, url: str) -> Folder:
    """Return the folder at a URL or an absolute path: of the configured store, or of one whose root is its parent."""
    full = url.rstrip("/")
    full = f"file://{full}" if full.startswith("/") else full
    path = services.store.path_of(full)
    if path is not None:
        return Folder(services.store, path)
    parent, _, name = full.rpartition("/")
    if not name or parent.endswith(":/") or not parent:
        raise Misconfigured.of("snapshots.not_a_folder", url=url)
    return Folder(services.open_store(parent), name)


def folder_of_savepoint(services: Services, row: CheckpointRow) -> Folder:
    """Return the folder of a savepoint in the ledger."""
    return folder_at(services, savepoint_url(row, services.store.url))


def find_source(services: Services, dataflow: str, name: str) -> Source:
    """Find a checkpoint or savepoint by its number, the name of a savepoint, or its folder.

    Raises Misconfigured where there is none, and lists what there is.
    """
    if "/" in name:
        return read_savepoint(folder_at(services, name))
    with services.ledger.transaction() as session:
        try:
            require_dataflow(session, dataflow)
        except Misconfigured as unknown:
            raise Misconfigured.of("snapshots.source_unknown", unknown=unknown) from None
        rows = checkpoints_of(session, dataflow)
    wanted = [row for row in rows if name in (str(row.number), name_of(row.folder))]
    usable = [row for row in wanted if is_restorable(row)]
    if len(usable) != 1:
        gone = " any more, it was subsumed" if any(row.subsumed_at for row in wanted) else ""
        raise Misconfigured.of("snapshots.number_unknown", dataflow=dataflow, name=name, gone=gone, known=_known(rows))
    row = usable[0]
    if row.is_savepoint:
        return read_savepoint(folder_of_savepoint(services, row))
    return read_checkpoint(services, dataflow, row.number)


def _known(rows: list[CheckpointRow]) -> str:
    usable = [f"{row.number} ({row.kind}, epoch {row.epoch})" for row in rows if is_restorable(row)]
    return (
        f"there are {', '.join(usable[-_SHOWN:])}"
        if usable
        else "it has none at all. A moved savepoint is named by its folder"
    )


def read_checkpoint(services: Services, dataflow: str, number: int) -> Source:
    """Read a checkpoint of the configured store. Raises NotThere where there is none."""
    path = checkpoint_path(dataflow, number)
    try:
        checkpoint = from_json(Checkpoint, services.store.read(path))
    except NotFound as error:
        raise NotThere.of("snapshots.checkpoint_subsumed", number=number, dataflow=dataflow, path=path) from error
    return Source(checkpoint, Folder(services.store, ""), path)


def read_savepoint(folder: Folder) -> Source:
    """Read the savepoint in a folder. Raises Misconfigured where there is none, or it is not as it was written."""
    try:
        data = folder.store.read(folder.at(SAVEPOINT))
    except NotFound as error:
        raise Misconfigured.of("integrity.no_savepoint", folder_url=folder.url, savepoint=SAVEPOINT) from error
    checkpoint = from_json(Checkpoint, data)
    if not checkpoint.kind.is_savepoint:
        raise Misconfigured.of("snapshots.files_elsewhere", folder_url=folder.url, savepoint=SAVEPOINT)
    return Source(checkpoint, folder, folder.url)


def require_whole(source: Source) -> None:
    """Require that all files of a checkpoint or savepoint exist, with their sizes. Raises Misconfigured."""
    store = source.folder.store
    wanted = [(source.folder.at(path), each.file) for path, each in source.checkpoint.files.items()]
    for result in source.checkpoint.results:
        wanted += [(source.folder.at(f"{result.folder}/{each.name}"), each) for each in result.files]
    found = in_parallel(lambda each: size_differs(store, *each), wanted, store.workers)
    missing = [each.detail for each in found if each is not None]
    if missing:
        more = f" (and {len(missing) - _SHOWN} more)" if len(missing) > _SHOWN else ""
        raise Misconfigured.of(
            "snapshots.not_whole",
            source=source,
            missing=missing[:_SHOWN],
            more=more,
            dataflow=source.checkpoint.dataflow,
        )


def require_retained(session: Session, source: Source) -> None:
    """Require that a checkpoint is retained, and lock it until the transaction ends. Raises Misconfigured.

    A process that deletes files marks their checkpoint subsumed before it reads which files are in use, and waits for
    this transaction to do so: then it sees what was restored. A savepoint has files of its own.
    """
    if not source.is_savepoint and session.scalar(_retained(source).with_for_update(read=True)) is None:
        raise Misconfigured.of("snapshots.not_retained", source=source, dataflow=source.checkpoint.dataflow)


def is_retained_now(session: Session, source: Source) -> bool:
    """Report whether a checkpoint is retained; nothing keeps it. The files of a savepoint belong to the user."""
    return source.is_savepoint or session.scalar(_retained(source)) is not None


def _retained(source: Source) -> Select[int]:
    made = source.checkpoint
    return select(CheckpointRow.id).where(
        CheckpointRow.dataflow == made.dataflow, CheckpointRow.number == made.number, is_retained()
    )


def renamed(checkpoint: Checkpoint, dataflow: str) -> Checkpoint:
    """Return the same checkpoint as one of another dataflow."""
    return replace(checkpoint, dataflow=dataflow, pinned={**checkpoint.pinned, "name": dataflow})

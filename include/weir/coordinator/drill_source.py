"""What a drill restores. Invariant: one that is kept and cannot be read is a finding, not a mistake of who asks."""

from __future__ import annotations

from dataclasses import dataclass

from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import (
    OpenStore,
    Source,
    folder_at,
    read_checkpoint,
    read_savepoint,
    require_retained,
    snapshots_of,
)
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus, is_retained
from weir.ledger.models import DataflowRow
from weir.ledger.runs import runs_of, topology_of
from weir.ledger.state_models import CheckpointRow
from weir.results.checkpoint import checkpoint_path
from weir.results.savepoint import SAVEPOINT
from weir.store.errors import NotFound

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class DrillSource:
    """A checkpoint or savepoint; `source` is why it cannot be read where it is a text.

    `name` is how a restore is told of it, `told` how a person is.
    """

    source: Source | str
    name: str
    told: str
    epoch: str


def drill_source(services: Services, dataflow: str, which: str | None, open_store: OpenStore) -> DrillSource:
    """The checkpoint or savepoint that is meant; `which` is None for the newest checkpoint. Raises Misconfigured."""
    if which is not None and "/" in which:
        return _in_folder(services, which, open_store)
    with services.ledger.transaction() as session:
        if session.get(DataflowRow, dataflow) is None:
            raise Misconfigured(f"the ledger knows no dataflow {dataflow}")
        rows = [row for row in snapshots_of(session, dataflow) if _is_kept(row)]
    if which is None:
        wanted = [row for row in rows if not row.folder][-1:]
    else:
        wanted = [row for row in rows if which in (str(row.number), row.folder.rpartition("/")[2])]
    if len(wanted) != 1:
        known = ", ".join(f"{row.number} ({row.kind}, epoch {row.epoch})" for row in rows[-_SHOWN:]) or "none"
        raise Misconfigured(f"{dataflow} keeps no checkpoint or savepoint {which or 'at all'}; there are {known}")
    return _known(services, wanted[0], open_store)


def _is_kept(row: CheckpointRow) -> bool:
    is_there = row.subsumed_at is None or bool(row.folder)
    return is_there and row.deleted_at is None and row.status == CheckpointStatus.COMPLETED.value


def _known(services: Services, row: CheckpointRow, open_store: OpenStore) -> DrillSource:
    name = row.folder or str(row.number)
    told = f"{row.kind} {row.number} of {row.dataflow} (epoch {row.epoch})"
    found: Source | str
    try:
        if row.folder:
            found = read_savepoint(folder_at(services, row.folder, open_store))
        else:
            found = read_checkpoint(services, row.dataflow, row.number)
    except Misconfigured as error:
        where = row.folder or checkpoint_path(row.dataflow, row.number)
        found = f"its manifest in {where} cannot be used: {error}"
    return DrillSource(found, name, told, row.epoch)


def _in_folder(services: Services, url: str, open_store: OpenStore) -> DrillSource:
    folder = folder_at(services, url, open_store)
    try:
        folder.store.size(folder.at(SAVEPOINT))
    except NotFound as error:
        raise Misconfigured(f"there is no savepoint at {folder.url}: expected {SAVEPOINT} there") from error
    try:
        source = read_savepoint(folder)
    except Misconfigured as error:
        return DrillSource(str(error), folder.url, f"the savepoint in {folder.url}", "")
    return DrillSource(source, folder.url, str(source), source.checkpoint.epoch)


def is_still_kept(services: Services, found: DrillSource) -> bool:
    """Whether nobody has let its files go meanwhile. A savepoint's are its owner's to delete."""
    if isinstance(found.source, str):
        return True
    with services.ledger.transaction() as session:
        try:
            require_retained(session, found.source)
        except Misconfigured:
            return False
    return True


def dataflows_with_checkpoints(services: Services, name: str | None) -> tuple[str, ...]:
    """The dataflows that a drill without further words is about: all that keep state, or the one of that name.

    Raises Misconfigured for one that the ledger does not know, or that keeps no state.
    """
    with services.ledger.transaction() as session:
        kept = {row.dataflow for row in session.query(CheckpointRow).where(is_retained()) if not row.folder}
        if name is None:
            return tuple(sorted(kept))
        if session.get(DataflowRow, name) is None:
            raise Misconfigured(f"the ledger knows no dataflow {name}; a drill is about a dataflow, not about a run")
        pinned = [row.pinned for row in runs_of(session, name) if row.pinned is not None]
        keeps_state = any(topology_of(each).dataflow.keeps_state for each in pinned[-1:])
    if name not in kept:
        why = "no checkpoint of it is complete yet" if keeps_state else "it keeps no state, and has no checkpoints"
        raise Misconfigured(f"{name} cannot be restored: {why}")
    return (name,)

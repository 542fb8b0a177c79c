"""Whether retained checkpoints are there: manifests as they were written, and all files that they name.

Invariant: it changes nothing. The bytes of these files are compared with the results that name them, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_content import fingerprint
from weir.coordinator.services import Services
from weir.coordinator.verify_records import Misfit, asked
from weir.errors import Misconfigured
from weir.ledger.checkpoints import is_retained
from weir.ledger.state_models import CheckpointRow
from weir.results.checkpoint import Checkpoint, checkpoint_path
from weir.results.codec import checkpoint_from_json
from weir.results.manifest import DataFile
from weir.state.retention import SnapshotKind
from weir.store.errors import NotFound
from weir.store.probe import size_differs
from weir.store.store import Store

_ANEW = "Upkeep gives it up, and checkpoints its run once more under a new number"
_REPAIR = "`weir verify --repair` has the state made again that is lost; then its run is checkpointed once more"
_REBUILD = "Nothing was changed: `weir ledger rebuild` goes by what the store says"


def checkpoint_misfits(services: Services, runs: Collection[str]) -> tuple[Misfit, ...]:
    """What is wrong with the retained checkpoints of some runs. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = retained_of_runs(session, runs)
    of_manifests = asked(services, rows, partial(_of_manifest, services.store))
    bad = {each.path for each in of_manifests}
    whole = [row for row in rows if checkpoint_path(row.dataflow, row.number) not in bad]
    files = [each for row in whole for each in _files(services.store, row)]
    return (*of_manifests, *asked(services, files, partial(_of_file, services.store)))


def retained_of_runs(session: Session, runs: Collection[str]) -> list[CheckpointRow]:
    """The checkpoints of some runs that are retained, by number."""
    query = select(CheckpointRow).where(
        CheckpointRow.run.in_(runs), CheckpointRow.kind == SnapshotKind.CHECKPOINT.value, is_retained()
    )
    return list(session.scalars(query.order_by(CheckpointRow.dataflow, CheckpointRow.number)))


def _of_manifest(store: Store, row: CheckpointRow) -> Misfit | None:
    path = checkpoint_path(row.dataflow, row.number)
    try:
        found = checkpoint_from_json(store.read(path))
    except NotFound:
        return Misfit(row.run, path, f"the manifest of checkpoint {row.number}, found no such file", _ANEW)
    except Misconfigured as error:
        return Misfit(row.run, path, f"the manifest of checkpoint {row.number}: {error}", _ANEW)
    if (found.number, found.run, fingerprint(found)) == (row.number, row.run, row.content):
        return None
    detail = f"ledger and manifest say different things of checkpoint {row.number}"
    return Misfit(row.run, path, detail, _REBUILD)


def _files(store: Store, row: CheckpointRow) -> Iterator[tuple[CheckpointRow, str, DataFile]]:
    checkpoint: Checkpoint = checkpoint_from_json(store.read(checkpoint_path(row.dataflow, row.number)))
    for path, file in checkpoint.files.items():
        yield row, path, file.file
    for result in checkpoint.results:
        for each in result.files:
            yield row, f"{result.folder}/{each.name}", each


def _of_file(store: Store, named: tuple[CheckpointRow, str, DataFile]) -> Misfit | None:
    row, path, file = named
    found = size_differs(store, path, file)
    return (
        None if found is None else Misfit(row.run, path, f"checkpoint {row.number} names it: {found.detail}", _REPAIR)
    )

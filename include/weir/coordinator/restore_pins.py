"""What dataflows need that they were restored from, and for how long.

Invariant 4: what was restored stays until a checkpoint behind it is complete; what a fork began with, of files of its
origin, until that checkpoint names files of its own only. From then on nothing of the fork needs a file of the origin.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.services import Services
from weir.coordinator.state_job import needs_others
from weir.ledger.models import ResultRow
from weir.ledger.moves import move
from weir.ledger.restores import end_pin, pins_of, pins_on
from weir.ledger.runs import run_key
from weir.ledger.state_models import RestoreRow
from weir.results.checkpoint import Checkpoint
from weir.results.codec import manifest_from_json
from weir.results.manifest import StateFile
from weir.results.partition_state import PartitionState
from weir.results.run_folder import MANIFEST
from weir.store.catalogue import restored
from weir.store.errors import NotFound

_REASON = "the dataflow has a checkpoint of files that are all its own"


def pinned_files(services: Services, session: Session, origin: str) -> set[str]:
    """The files of a dataflow that forks of it still need, by path. Raises Retryable."""
    found: set[str] = set()
    for pin in pins_on(session, origin):
        query = select(ResultRow).where(ResultRow.run == run_key(pin.dataflow, pin.epoch))
        rows = list(session.scalars(query))
        folders = [row.folder for row in rows if row.state != PartitionState.RELEASED.value]
        if not rows:  # the ledger was lost, and the fork has not been built again yet
            unreleased = (each for each in restored(services.store, pin.dataflow, pin.epoch) if each.released is None)
            folders = [each.folder for each in unreleased]
        found |= {file.path for folder in folders for file in _named(services, folder)}
    return {path for path in found if path.startswith(f"{origin}/")}


def _named(services: Services, folder: str) -> tuple[StateFile, ...]:
    """The files of keyed state that the result in a folder consists of."""
    try:
        manifest = manifest_from_json(services.store.read(f"{folder}/{MANIFEST}"))
    except NotFound:
        return ()
    return () if manifest.state is None else manifest.state.files


def unpin(services: Services, session: Session, checkpoint: Checkpoint) -> bool:
    """Let go of what was restored, if a checkpoint that is complete now can do without; answers whether it does.

    What a fork began with is released, so that nobody takes it for lost when the origin has deleted it.
    """
    pins = [pin for pin in pins_of(session, checkpoint.dataflow) if pin.epoch < checkpoint.epoch]
    if not pins or needs_others(checkpoint.dataflow, checkpoint.files.values()):
        return False
    for pin in pins:
        end_pin(pin, services.now())
        _release_others(services, session, pin)
    return True


def _release_others(services: Services, session: Session, pin: RestoreRow) -> None:
    finished = select(ResultRow).where(
        ResultRow.run == run_key(pin.dataflow, pin.epoch), ResultRow.state == PartitionState.FINISHED.value
    )
    for row in session.scalars(finished):
        if needs_others(pin.dataflow, _named(services, row.folder)):
            move(session, row, PartitionState.RELEASED, _REASON, services.now())

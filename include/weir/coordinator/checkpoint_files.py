"""Reading checkpoints from the store. Invariant: one that is not as it was written is as good as gone."""

from __future__ import annotations

from weir.coordinator.checkpoint_content import files_named
from weir.coordinator.services import Services
from weir.errors import Misconfigured
from weir.ledger.checkpoints import retained_checkpoints
from weir.results.checkpoint import Checkpoint, checkpoint_path
from weir.results.codec import checkpoint_from_json
from weir.store.errors import NotFound
from weir.store.store import Store


def read_checkpoint(store: Store, dataflow: str, number: int) -> Checkpoint | None:
    """A checkpoint, by its number; None where its manifest is gone or cannot be read. Raises Retryable."""
    try:
        return checkpoint_from_json(store.read(checkpoint_path(dataflow, number)))
    except (NotFound, Misconfigured):
        return None


def files_retained(services: Services, dataflow: str) -> dict[str, int]:
    """The data files that retained checkpoints name, with their sizes; savepoints have files of their own."""
    with services.ledger.transaction() as session:
        numbers = [row.number for row in retained_checkpoints(session, dataflow) if not row.folder]
    found = (read_checkpoint(services.store, dataflow, number) for number in numbers)
    return {path: size for each in found if each is not None for path, size in files_named(each).items()}

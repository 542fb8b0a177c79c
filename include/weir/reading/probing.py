"""Whether what was chosen is there. Invariant: a reader is given manifests only of results all files of which are."""

from __future__ import annotations

from weir.coordinator.services import Services
from weir.errors import Loss
from weir.ledger.models import ResultRow
from weir.reading.availability import Chosen, Unreadable, advice
from weir.results.manifest import Manifest
from weir.store.probe import PartitionRef, probe


def manifests_of(services: Services, chosen: Chosen) -> list[Manifest]:
    """Look whether all is there, with its sizes, indexes and footers. Raises Unreadable."""
    references = [_reference(row) for row in chosen.rows]
    answers = probe(services.store, services.store_id(), references)
    losses = [found for found in answers.values() if isinstance(found, Loss)]
    if losses:
        raise Unreadable(losses, advice(chosen.run, chosen.rows))
    return [found for ref in references if isinstance(found := answers[ref], Manifest)]


def _reference(row: ResultRow) -> PartitionRef:
    return PartitionRef(row.run, row.stage, row.subtask, row.layout, row.attempt, row.folder, row.manifest_sha256)

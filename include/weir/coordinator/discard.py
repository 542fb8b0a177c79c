"""Removing what an attempt has half written, so that a disk that is full does not stay so.

Invariant 6: manifests go before the files that they name, and no other attempt ever uses these names. Whoever calls has
booked the attempt's failure: the ledger does not let it commit any more. A copy that was completed stays: the next try
resumes from it, and writes that much less.
"""

from __future__ import annotations

from weir.coordinator.services import Services, attempt_folder
from weir.errors import WeirError
from weir.ledger.models import AttemptRow
from weir.ledger.runs import Run
from weir.results.run_folder import MANIFEST
from weir.results.stage_copy import COPY, COPY_NAME
from weir.store.errors import NotFound


def discard(services: Services, run: Run, row: AttemptRow) -> str:
    """Remove the output folders of an attempt that has failed; says what came of it."""
    try:
        for folder in _folders(run, row):
            services.store.delete(f"{folder}/{MANIFEST}")
            services.store.delete_folder(folder)
        for folder in _copies(run, row):
            if not _is_complete(services, folder):
                services.store.delete_folder(folder)
    except WeirError as error:
        return f"what {row.id} has half written is still there: {error}"
    return f"what {row.id} had half written is removed"


def _folders(run: Run, row: AttemptRow) -> list[str]:
    topology = run.topology
    return [
        attempt_folder(run, stage.name, layout.id, row.subtask, row.id)
        for stage in topology.stages_of(row.region)
        for layout in topology.layouts_of(stage.name)
    ]


def _copies(run: Run, row: AttemptRow) -> list[str]:
    return [attempt_folder(run, stage, COPY, row.subtask, row.id) for stage in run.topology.copies_of(row.region)]


def _is_complete(services: Services, folder: str) -> bool:
    try:
        services.store.size(f"{folder}/{COPY_NAME}")
    except NotFound:
        return False
    return True

"""Sweeping what keyed state has beside the folders of its own results: shared files, and checkpoints.

Invariant 4: a file that anybody uses stays, whatever became of the attempt that wrote it. The store is listed before it
is asked who uses what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.coordinator.services import Services
from weir.coordinator.state_files import live_state_files
from weir.coordinator.sweep_report import Garbage, Kept, SweepReport
from weir.ledger.checkpoints import CheckpointStatus, checkpoints_of
from weir.ledger.state_models import CheckpointRow
from weir.results.checkpoint import checkpoint_number, checkpoint_path, checkpoints_folder
from weir.results.layout import PLAIN
from weir.results.orphans import Fate, Judgement
from weir.results.run_folder import TEMPORARY, Place
from weir.store.errors import NotFound

if TYPE_CHECKING:
    from weir.coordinator.sweep_run import RunSweep


def without_state_in_use(services: Services, dataflow: str, judged: Iterable[Judgement]) -> tuple[Judgement, ...]:
    """What was judged, but for folders that hold files of keyed state that are in use: these stay. Raises Retryable."""
    all_judged = tuple(judged)
    if not any(_may_hold_state(each) for each in all_judged):
        return all_judged
    in_use = live_state_files(services, dataflow)
    return tuple(_kept(each) if _may_hold_state(each) and _holds(each, in_use) else each for each in all_judged)


def _may_hold_state(judged: Judgement) -> bool:
    folder = judged.folder
    return judged.fate is not Fate.KEPT and folder.place is Place.RESULT and folder.layout != PLAIN.id


def _holds(judged: Judgement, in_use: frozenset[str]) -> bool:
    return any(f"{judged.folder.path}/{name}" in in_use for name in judged.folder.names)


def _kept(judged: Judgement) -> Judgement:
    return replace(judged, fate=Fate.KEPT, reason="keyed state that is in use", is_aged=False)


def sweep_checkpoints(services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport) -> None:
    """Look at the manifests of checkpoints: those of subsumed and failed ones go. Raises Retryable."""
    folder = checkpoints_folder(dataflow)
    try:
        found = {f"{folder}/{name}": size for name, size in services.store.list(folder)}
    except NotFound:
        found = {}
    with services.ledger.transaction() as session:
        known = {
            checkpoint_path(dataflow, row.number): row for row in checkpoints_of(session, dataflow) if not row.folder
        }
    for path, size in found.items():
        if TEMPORARY.fullmatch(path.rpartition("/")[2]):
            of_runs.remove_temporary([(path, size)])
        elif path in known and _is_gone(known[path]):
            of_runs.remove_file(path, size, "its checkpoint is not retained", Garbage.CHECKPOINT, is_aged=False)
        elif path in known:
            report.kept.append(Kept(path, size, "a checkpoint"))
        elif checkpoint_number(path) is None:
            report.unknown.append(Kept(path, size, "not a file of Weir's"))
        else:
            why = f"the ledger does not know this checkpoint: `weir ledger rebuild {dataflow}` takes it in"
            report.unknown.append(Kept(path, size, why))
    for path, row in known.items():
        if path not in found and _is_retained(row):
            report.missing.append(Kept(path, 0, f"the manifest of checkpoint {row.number} is not there"))


def _is_gone(row: CheckpointRow) -> bool:
    return row.status == CheckpointStatus.FAILED.value or row.subsumed_at is not None


def _is_retained(row: CheckpointRow) -> bool:
    return row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is None and row.deleted_at is None

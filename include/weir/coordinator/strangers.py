"""Folders of the store that the ledger does not know.

Invariant: whatever has a run's record, a manifest or a pointer is told and never deleted: perhaps it is the ledger that
was lost. Only what nobody could read any more goes, once it is old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from weir.coordinator.drill_place import DRILLS, dead_places
from weir.coordinator.services import Services
from weir.coordinator.sweep_pages import tell_unknown_pages
from weir.coordinator.sweep_report import Kept, SweepReport
from weir.coordinator.sweep_run import SINKS, RunSweep
from weir.coordinator.sweep_state import sweep_checkpoints
from weir.ledger.models import DataflowRow, RunRow
from weir.quality.page import PAGES
from weir.results.run_folder import MANIFEST, RUN_RECORD, TEMPORARY
from weir.results.stage_copy import COPY_NAME
from weir.store.errors import NotFound
from weir.store.store import MARKER
from weir.store.walk import FoundFile, files_below, folders_in

_READABLE: Final = frozenset({MANIFEST, RUN_RECORD, COPY_NAME})
_DOCTOR: Final = re.compile(r"\.weir-doctor-[0-9a-f]{32}")


def sweep_strangers(services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport) -> None:
    """Look at the epochs of a dataflow that no run of the ledger has. Raises Retryable."""
    store = services.store
    epochs = [each for each in folders_in(services.store, dataflow) if not each.startswith("_")]  # those are not epochs
    sinks = folders_in(services.store, f"{SINKS}/{dataflow}")
    published = {sink: folders_in(services.store, f"{SINKS}/{dataflow}/{sink}") for sink in sinks}
    loose = [each for each in _files(services, dataflow) if each[0].count("/") == 1]
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(RunRow.epoch).where(RunRow.dataflow == dataflow)))
    rebuild = f"the ledger knows no run of this epoch: `weir ledger rebuild {dataflow}` takes in what is whole"
    for epoch in epochs:
        if epoch not in known:
            _sweep_epoch(of_runs, report, f"{dataflow}/{epoch}", files_below(store, [f"{dataflow}/{epoch}"]), rebuild)
    for sink, found in published.items():
        for epoch in (each for each in found if each not in known):
            path = f"{SINKS}/{dataflow}/{sink}/{epoch}"
            report.unknown.append(Kept(path, _bytes(files_below(store, [path])), rebuild))
    sweep_checkpoints(services, dataflow, of_runs, report)
    of_runs.remove_temporary((path, size) for path, size in loose if _is_temporary(path))
    report.unknown += [Kept(path, size, "not a file of Weir's") for path, size in loose if not _is_temporary(path)]


def _sweep_epoch(of_runs: RunSweep, report: SweepReport, path: str, files: tuple[FoundFile, ...], reason: str) -> None:
    if any(each.path.rpartition("/")[2] in _READABLE for each in files):
        report.unknown.append(Kept(path, _bytes(files), reason))
        return
    for each in files:
        of_runs.remove_file(each.path, each.bytes, "it is of a run that nobody knows, and no result")


def tell_unknown_dataflows(services: Services, report: SweepReport, floor: timedelta) -> None:
    """Tell which folders of the store are of no dataflow of the ledger. Raises Retryable."""
    found = folders_in(services.store, "")
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(DataflowRow.name)))
    for name in found:
        if name in known or name == "lost+found":
            continue
        files = files_below(services.store, [name])
        if _DOCTOR.fullmatch(name):
            _remove(services, report, floor, files, "left by a `weir doctor` that was killed")
        elif name == DRILLS:
            left = files_below(services.store, dead_places(services))
            _remove(services, report, floor, left, "left by a drill that was killed")
        elif name == SINKS:
            _tell_unknown_sinks(services, report, known)
        elif name == PAGES:
            tell_unknown_pages(services, report, known)
        else:
            why = f"the ledger knows no dataflow {name}: `weir ledger rebuild {name}` takes in what is whole"
            report.unknown.append(Kept(name, _bytes(files), why))
    report.unknown += [
        Kept(path, size, "not a file of Weir's") for path, size in _files(services, "") if path != MARKER
    ]


def _tell_unknown_sinks(services: Services, report: SweepReport, known: Iterable[str]) -> None:
    for name in sorted(set(folders_in(services.store, SINKS)) - set(known)):
        path = f"{SINKS}/{name}"
        why = f"published by a dataflow that the ledger does not know: `weir ledger rebuild {name}`"
        report.unknown.append(Kept(path, _bytes(files_below(services.store, [path])), why))


def _remove(
    services: Services, report: SweepReport, floor: timedelta, files: tuple[FoundFile, ...], reason: str
) -> None:
    of_nobody = RunSweep(services, services.life, report, floor)
    for each in files:
        of_nobody.remove_file(each.path, each.bytes, reason)


def _files(services: Services, path: str) -> list[tuple[str, int]]:
    prefix = f"{path}/" if path else ""
    try:
        return [(f"{prefix}{name}", size) for name, size in services.store.entries(path) if size is not None]
    except NotFound:
        return []


def _is_temporary(path: str) -> bool:
    return TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def _bytes(files: Iterable[FoundFile]) -> int:
    return sum(each.bytes for each in files)

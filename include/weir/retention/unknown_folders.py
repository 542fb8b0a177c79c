"""Sweep folders that the ledger does not know.

Invariant: a folder with a run's record, a manifest or a pointer is reported and never deleted: the ledger may have been
lost. Only files where an attempt writes, and that cannot be read as a result, are deleted, once they are old; what lies
anywhere else is not Weir's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from weir.coordination.services import Services
from weir.formats.manifest import COPY_NAME
from weir.formats.paths import (
    MANIFEST,
    RUN_RECORD,
    SINKS,
    epoch_folder,
    name_of,
    parse_attempt_path,
    pointer_folder,
    positions_folder,
    sinks_folder,
)
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.sources import position_files
from weir.retention.archives import sweep_archives
from weir.retention.folder_rules import TEMPORARY
from weir.retention.sweep_report import Garbage, Kept, SweepReport
from weir.retention.sweep_run import RunSweep, sweep_checkpoints
from weir.snapshots.scratch import RESTORE_TESTS, abandoned_places
from weir.store.errors import NotFound
from weir.store.store import MARKER
from weir.store.walk import FoundFile, files_below, folders_in

_READABLE: Final = frozenset({MANIFEST, RUN_RECORD, COPY_NAME})
_EPOCH: Final = re.compile(r"\d{8}T\d{6}Z")
_DOCTOR: Final = re.compile(r"\.weir-doctor-[0-9a-f]{32}")


def sweep_unknown_folders(services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport) -> None:
    """Sweep the epochs of a dataflow without a run in the ledger, its checkpoints and archives. Raises Retryable."""
    store = services.store
    epochs = [each for each in folders_in(services.store, dataflow) if not each.startswith("_")]  # those are not epochs
    sinks = folders_in(services.store, sinks_folder(dataflow))
    published = {sink: folders_in(services.store, f"{sinks_folder(dataflow)}/{sink}") for sink in sinks}
    loose = [each for each in _files(services, dataflow) if each[0].count("/") == 1]
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(RunRow.epoch).where(RunRow.dataflow == dataflow)))
    foreign = [each for each in epochs if not _EPOCH.fullmatch(each)]
    report.unknown += [_foreign(services, f"{dataflow}/{each}") for each in foreign]
    rebuild = f"the ledger knows no run of this epoch: `weir ledger rebuild {dataflow}` takes in what is whole"
    for epoch in epochs:
        if epoch not in known and epoch not in foreign:
            path = epoch_folder(dataflow, epoch)
            _sweep_epoch(of_runs, report, path, files_below(store, [path]), rebuild)
    for sink, found in published.items():
        for epoch in (each for each in found if each not in known):
            path = pointer_folder(dataflow, sink, epoch)
            report.unknown.append(Kept(path, _bytes(files_below(store, [path])), rebuild))
    sweep_checkpoints(services, dataflow, of_runs, report)
    sweep_archives(services, dataflow, of_runs, report, knows_all_runs=known.issuperset(epochs))
    _sweep_positions(services, dataflow, of_runs, report, knows_all_runs=known.issuperset(epochs))
    of_runs.remove_temporary((path, size) for path, size in loose if _is_temporary(path))
    report.unknown += [Kept(path, size, "not a file of Weir's") for path, size in loose if not _is_temporary(path)]


def _sweep_positions(
    services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport, *, knows_all_runs: bool
) -> None:
    """Delete the positions of sources that no run needs any more, once they are old. Raises Retryable."""
    found = files_below(services.store, [positions_folder(dataflow)])
    with services.ledger.transaction() as session:
        needed = position_files(session, dataflow)
    for each in found:
        if _is_temporary(each.path):
            of_runs.remove_temporary([(each.path, each.bytes)])
        elif each.path in needed:
            report.kept.append(Kept(each.path, each.bytes, "where a source of runs goes on"))
        elif not knows_all_runs:
            report.unknown.append(Kept(each.path, each.bytes, f"`weir ledger rebuild {dataflow}` takes it in"))
        else:
            of_runs.remove_file(each.path, each.bytes, "no run goes on from it any more", Garbage.POSITION)


def _foreign(services: Services, path: str) -> Kept:
    return Kept(path, _bytes(files_below(services.store, [path])), "not a folder of Weir's")


def _sweep_epoch(of_runs: RunSweep, report: SweepReport, path: str, files: tuple[FoundFile, ...], reason: str) -> None:
    if any(name_of(each.path) in _READABLE for each in files):
        report.unknown.append(Kept(path, _bytes(files), reason))
        return
    for each in files:
        if parse_attempt_path(each.path) is not None or _is_temporary(each.path):
            of_runs.remove_file(each.path, each.bytes, "it is of an unknown run, and no result")
        else:
            report.unknown.append(Kept(each.path, each.bytes, "not a file of Weir's"))


def report_unknown_dataflows(services: Services, report: SweepReport, age_limit: timedelta) -> None:
    """Report the folders of the store that belong to no dataflow of the ledger. Raises Retryable."""
    found = folders_in(services.store, "")
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(DataflowRow.name)))
    for name in found:
        if name in known or name == "lost+found":
            continue
        files = files_below(services.store, [name])
        if _DOCTOR.fullmatch(name):
            _remove(services, report, age_limit, files, "left by a `weir doctor` that was killed")
        elif name == RESTORE_TESTS:
            left = files_below(services.store, abandoned_places(services))
            _remove(services, report, age_limit, left, "left by a restore test that was killed")
        elif name == SINKS:
            _report_unknown_sinks(services, report, known)
        elif name.startswith("_"):
            report.unknown.append(_foreign(services, name))
        else:
            why = f"the ledger knows no dataflow {name}: `weir ledger rebuild {name}` takes in what is whole"
            report.unknown.append(Kept(name, _bytes(files), why))
    report.unknown += [
        Kept(path, size, "not a file of Weir's") for path, size in _files(services, "") if path != MARKER
    ]


def _report_unknown_sinks(services: Services, report: SweepReport, known: Iterable[str]) -> None:
    for name in sorted(set(folders_in(services.store, SINKS)) - set(known)):
        path = sinks_folder(name)
        why = f"published by a dataflow that the ledger does not know: `weir ledger rebuild {name}`"
        report.unknown.append(Kept(path, _bytes(files_below(services.store, [path])), why))


def _remove(
    services: Services, report: SweepReport, age_limit: timedelta, files: tuple[FoundFile, ...], reason: str
) -> None:
    unknown = RunSweep(services, services.retention, report, age_limit)
    for each in files:
        unknown.remove_file(each.path, each.bytes, reason)


def _files(services: Services, path: str) -> list[tuple[str, int]]:
    prefix = f"{path}/" if path else ""
    try:
        return [(f"{prefix}{name}", size) for name, size in services.store.entries(path) if size is not None]
    except NotFound:
        return []


def _is_temporary(path: str) -> bool:
    return TEMPORARY.fullmatch(name_of(path)) is not None


def _bytes(files: Iterable[FoundFile]) -> int:
    return sum(each.bytes for each in files)

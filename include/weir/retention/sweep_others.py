"""Sweep what lies in the store beside the folders of known runs: checkpoints, archives of code, positions, the unknown.

Invariant: a folder with a run's record, a manifest or a pointer is reported and never deleted: the ledger may have been
lost. Only files where an attempt writes, and that cannot be read as a result, are deleted, once they are old; what lies
anywhere else is not Weir's. A file of code or of a position that no row names may be about to be named by a begin: it
goes only once it is old, and only where the ledger knows all runs in the store.

Of an archive the ledger notes first that it may be deleted; a begin that needs it from then on stores another file.
Then its file is deleted, and then its row, unless that names another file by now. Where a process is killed in between,
the next sweep continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from weir.coordination.services import Services
from weir.formats.manifest import COPY_NAME
from weir.formats.paths import (
    MANIFEST,
    RUN_RECORD,
    SINKS,
    archive_fingerprint,
    archives_folder,
    checkpoint_number,
    checkpoint_path,
    checkpoints_folder,
    epoch_folder,
    name_of,
    parse_attempt_path,
    pointer_folder,
    positions_folder,
    sinks_folder,
)
from weir.ledger.checkpoints import checkpoints_of, pending_checkpoints, retained_checkpoints
from weir.ledger.code import archives_of, forget_archive, unused_archives
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.sources import position_files
from weir.retention.deletion_rules import Age
from weir.retention.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.retention.sweep_run import Fate, RunSweep
from weir.snapshots.scratch import RESTORE_TESTS, abandoned_places
from weir.store.errors import NotFound
from weir.store.store import MARKER
from weir.store.walk import FoundFile, files_below, folders_in

_READABLE: Final = frozenset({MANIFEST, RUN_RECORD, COPY_NAME})
_EPOCH: Final = re.compile(r"\d{8}T\d{6}Z")
_DOCTOR: Final = re.compile(r"\.weir-doctor-[0-9a-f]{32}")
_FOREIGN: Final = "not a file of Weir's"


def delete_unused_archives(services: Services, dataflow: str, before: datetime, report: SweepReport) -> None:
    """Delete the archives of a dataflow that were stored before a time and that no run needs. Raises Retryable."""
    with services.ledger.transaction() as session:
        going = unused_archives(session, dataflow, before)
    if going and not report.is_dry:
        with services.ledger.transaction(dataflow) as session:
            going = unused_archives(session, dataflow, before)
            for row in going:
                row.deleting_at = row.deleting_at or services.now()
        for row in going:
            services.store.delete(row.path)
        services.store_id()  # on an unmounted disk all files seem deleted
        with services.ledger.transaction(dataflow) as session:
            for row in going:
                forget_archive(session, dataflow, row.fingerprint, row.path)
    why = "no run that is not expired needs it"
    report.deleted += [Swept(Garbage.ARCHIVE, row.path, row.bytes, why) for row in going]


def sweep_others(sweep: RunSweep, dataflow: str) -> None:
    """Sweep the epochs of a dataflow without a run in the ledger, its checkpoints, archives and positions.

    Raises Retryable.
    """
    services, report = sweep.services, sweep.report
    epochs = [each for each in folders_in(services.store, dataflow) if not each.startswith("_")]  # those are not epochs
    sinks = folders_in(services.store, sinks_folder(dataflow))
    published = {sink: folders_in(services.store, f"{sinks_folder(dataflow)}/{sink}") for sink in sinks}
    loose = [each for each in _files(services, dataflow) if each[0].count("/") == 1]
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(RunRow.epoch).where(RunRow.dataflow == dataflow)))
    rebuild = f"the ledger knows no run of this epoch: `weir ledger rebuild {dataflow}` takes in what is whole"
    foreign = [each for each in epochs if not _EPOCH.fullmatch(each)]
    report.unknown += [_foreign(services, f"{dataflow}/{each}") for each in foreign]
    for epoch in epochs:
        if epoch not in known and epoch not in foreign:
            _sweep_epoch(sweep, epoch_folder(dataflow, epoch), rebuild)
    for sink, found in published.items():
        paths = (pointer_folder(dataflow, sink, epoch) for epoch in found if epoch not in known)
        report.unknown += [_unknown(services, path, rebuild) for path in paths]
    _sweep_checkpoints(sweep, dataflow)
    _sweep_archives(sweep, dataflow, knows_all_runs=known.issuperset(epochs))
    _sweep_positions(sweep, dataflow, knows_all_runs=known.issuperset(epochs))
    sweep.sweep_files(loose, lambda _: (report.unknown, _FOREIGN))


def _sweep_epoch(sweep: RunSweep, path: str, rebuild: str) -> None:
    files = files_below(sweep.services.store, [path])
    if any(name_of(each.path) in _READABLE for each in files):
        sweep.report.unknown.append(Kept(path, _bytes(files), rebuild))
        return

    def fate(path: str) -> Fate:
        is_of_attempt = parse_attempt_path(path) is not None
        return (Garbage.STRAY, "it is of an unknown run, and no result") if is_of_attempt else (unknown, _FOREIGN)

    unknown = sweep.report.unknown
    sweep.sweep_files(((each.path, each.bytes) for each in files), fate, age=Age.ORPHANED)


def _sweep_checkpoints(sweep: RunSweep, dataflow: str) -> None:
    """Delete the manifests of subsumed and failed checkpoints; report missing ones. Raises Retryable."""
    found = dict(_files(sweep.services, checkpoints_folder(dataflow)))
    with sweep.services.ledger.transaction() as session:
        rows = [row for row in checkpoints_of(session, dataflow) if not row.is_savepoint]
        known = {checkpoint_path(dataflow, row.number): row.number for row in rows}
        retained = {row.number for row in retained_checkpoints(session, dataflow)}
        needed = retained | {row.number for row in pending_checkpoints(session, dataflow)}
    report, rebuild = sweep.report, f"`weir ledger rebuild {dataflow}` takes it in"

    def fate(path: str) -> Fate:
        if path in known:
            is_kept = known[path] in needed
            return (report.kept, "a checkpoint") if is_kept else (Garbage.CHECKPOINT, "its checkpoint is not retained")
        is_ours = checkpoint_number(path) is not None
        return report.unknown, f"the ledger does not know this checkpoint: {rebuild}" if is_ours else _FOREIGN

    sweep.sweep_files(found.items(), fate)
    for path, number in known.items():
        if path not in found and number in retained:
            report.missing.append(Kept(path, 0, f"the manifest of checkpoint {number} is not there"))


def _sweep_archives(sweep: RunSweep, dataflow: str, *, knows_all_runs: bool) -> None:
    """Delete the files of archives that no row names, once they are old. Raises Retryable."""
    found = _files(sweep.services, archives_folder(dataflow))
    with sweep.services.ledger.transaction() as session:
        named = {row.path for row in archives_of(session, dataflow)}
    report, rebuild = sweep.report, f"code that `weir ledger rebuild {dataflow}` takes in"
    gone = {each.path for each in report.deleted}

    def fate(path: str) -> Fate:
        if path in named - gone:
            return report.kept, "the code of runs"
        if archive_fingerprint(path) is None or not knows_all_runs:
            return report.unknown, _FOREIGN if archive_fingerprint(path) is None else rebuild
        return None if path in gone else (Garbage.ARCHIVE, "code that the ledger does not name")

    sweep.sweep_files(found, fate, age=Age.ORPHANED)


def _sweep_positions(sweep: RunSweep, dataflow: str, *, knows_all_runs: bool) -> None:
    """Delete the positions of sources that no run needs any more, once they are old. Raises Retryable."""
    found = files_below(sweep.services.store, [positions_folder(dataflow)])
    with sweep.services.ledger.transaction() as session:
        needed = position_files(session, dataflow)
    report = sweep.report

    def fate(path: str) -> Fate:
        if path in needed:
            return report.kept, "where a source of runs goes on"
        if not knows_all_runs:
            return report.unknown, f"`weir ledger rebuild {dataflow}` takes it in"
        return Garbage.POSITION, "no run goes on from it any more"

    sweep.sweep_files(((each.path, each.bytes) for each in found), fate, age=Age.ORPHANED)


def report_unknown_dataflows(services: Services, report: SweepReport, age_limit: timedelta) -> None:
    """Report the folders of the store that belong to no dataflow of the ledger. Raises Retryable."""
    found = folders_in(services.store, "")
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(DataflowRow.name)))
    sweep = RunSweep(services, services.retention, report, age_limit)
    for name in found:
        if name in known or name == "lost+found":
            continue
        if _DOCTOR.fullmatch(name):
            _remove(sweep, [name], "left by a `weir doctor` that was killed")
        elif name == RESTORE_TESTS:
            _remove(sweep, abandoned_places(services), "left by a restore test that was killed")
        elif name == SINKS:
            _report_unknown_sinks(services, report, known)
        elif name.startswith("_"):
            report.unknown.append(_foreign(services, name))
        else:
            why = f"the ledger knows no dataflow {name}: `weir ledger rebuild {name}` takes in what is whole"
            report.unknown.append(_unknown(services, name, why))
    report.unknown += [Kept(path, size, _FOREIGN) for path, size in _files(services, "") if path != MARKER]


def _report_unknown_sinks(services: Services, report: SweepReport, known: Iterable[str]) -> None:
    for name in sorted(set(folders_in(services.store, SINKS)) - set(known)):
        why = f"published by a dataflow that the ledger does not know: `weir ledger rebuild {name}`"
        report.unknown.append(_unknown(services, sinks_folder(name), why))


def _remove(sweep: RunSweep, folders: Iterable[str], reason: str) -> None:
    for each in files_below(sweep.services.store, folders):
        sweep.remove_file(each.path, each.bytes, reason)


def _unknown(services: Services, path: str, reason: str) -> Kept:
    return Kept(path, _bytes(files_below(services.store, [path])), reason)


def _foreign(services: Services, path: str) -> Kept:
    return _unknown(services, path, "not a folder of Weir's")


def _files(services: Services, path: str) -> list[tuple[str, int]]:
    prefix = f"{path}/" if path else ""
    try:
        return [(f"{prefix}{name}", size) for name, size in services.store.entries(path) if size is not None]
    except NotFound:
        return []


def _bytes(files: Iterable[FoundFile]) -> int:
    return sum(each.bytes for each in files)

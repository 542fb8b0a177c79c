"""Pages about checks leave the store with the records of their run.

Invariant: the ledger has forgotten the checks first; what it never knew is told, and never deleted.
"""

from __future__ import annotations

from collections.abc import Collection

from weir.coordinator.quality_pages import list_pages
from weir.coordinator.services import Services
from weir.coordinator.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.coordinator.sweep_run import RunSweep
from weir.ledger.models import RunRow
from weir.ledger.runs import dataflow_of, epoch_of_run, run_key
from weir.ledger.sweeping import is_expired
from weir.quality.page import PAGES, run_pages
from weir.results.run_folder import TEMPORARY
from weir.store.walk import FoundFile, files_below, folders_in


def remove_pages(services: Services, run: str, report: SweepReport) -> None:
    """Remove the pages about a run that is expired. Raises Retryable."""
    folder = run_pages(dataflow_of(run), epoch_of_run(run))
    found = files_below(services.store, [folder])
    if not found:
        return
    if not report.is_dry:
        services.store.delete_folder(folder)
        list_pages(services, dataflow_of(run))
    report.deleted.append(Swept(Garbage.PAGE, folder, _bytes(found), "its run is expired"))


def sweep_pages(services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport) -> None:
    """Look at all pages of a dataflow: a process may have died between ledger and store. Raises Retryable."""
    for epoch in folders_in(services.store, f"{PAGES}/{dataflow}"):
        run, folder = run_key(dataflow, epoch), run_pages(dataflow, epoch)
        with services.ledger.transaction() as session:
            row = session.get(RunRow, run)
            is_gone = row is not None and is_expired(session, row)
        found = files_below(services.store, [folder])
        if is_gone:
            remove_pages(services, run, report)
        elif row is None:
            report.unknown.append(Kept(folder, _bytes(found), "pages about a run that the ledger does not know"))
        else:
            report.kept.append(Kept(folder, _bytes(found), "pages about checks of a run"))
            of_runs.remove_temporary((each.path, each.bytes) for each in found if _is_temporary(each))


def tell_unknown_pages(services: Services, report: SweepReport, known: Collection[str]) -> None:
    """Tell of pages of dataflows that the ledger does not know. Raises Retryable."""
    for name in sorted(set(folders_in(services.store, PAGES)) - set(known)):
        found = files_below(services.store, [f"{PAGES}/{name}"])
        why = "pages about checks of a dataflow that the ledger does not know"
        report.unknown.append(Kept(f"{PAGES}/{name}", _bytes(found), why))


def _is_temporary(found: FoundFile) -> bool:
    return TEMPORARY.fullmatch(found.path.rpartition("/")[2]) is not None


def _bytes(files: Collection[FoundFile]) -> int:
    return sum(each.bytes for each in files)

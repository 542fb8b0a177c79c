"""Delete archives of code that no run needs, and files of begins that were killed before their transaction.

Invariant: the ledger notes first that an archive may be deleted; a begin that needs it from then on stores another
file. Then its file is deleted, and then its row, unless that names another file by now. Where a process is killed in
between, the next sweep continues. A file that no row names may be about to be named by a begin: it goes only once it is
old, and only where the ledger knows all runs in the store.
"""

from __future__ import annotations

from datetime import datetime

from weir.coordination.services import Services
from weir.formats.paths import archive_fingerprint, archives_folder, name_of
from weir.ledger.code import archives_of, forget_archive, unused_archives
from weir.ledger.database.tables import ArchiveRow
from weir.retention.folder_rules import TEMPORARY
from weir.retention.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.retention.sweep_run import RunSweep
from weir.store.errors import NotFound

_UNUSED = "no run that is not expired needs it"


def delete_unused_archives(services: Services, dataflow: str, before: datetime, report: SweepReport) -> None:
    """Delete the archives of a dataflow that were stored before a time and that no run needs. Raises Retryable."""
    with services.ledger.transaction() as session:
        going = unused_archives(session, dataflow, before)
    if going and not report.is_dry:
        with services.ledger.transaction(dataflow) as session:
            going = unused_archives(session, dataflow, before)
            for row in going:
                row.deleting_at = row.deleting_at or services.now()
        _delete(services, dataflow, going)
    report.deleted += [Swept(Garbage.ARCHIVE, row.path, row.bytes, _UNUSED) for row in going]


def _delete(services: Services, dataflow: str, going: list[ArchiveRow]) -> None:
    for row in going:
        services.store.delete(row.path)
    services.store_id()  # on an unmounted disk all files seem deleted
    with services.ledger.transaction(dataflow) as session:
        for row in going:
            forget_archive(session, dataflow, row.fingerprint, row.path)


def sweep_archives(
    services: Services, dataflow: str, of_runs: RunSweep, report: SweepReport, *, knows_all_runs: bool
) -> None:
    """Delete the files of archives that no row names, once they are old. Raises Retryable."""
    folder = archives_folder(dataflow)
    try:
        found = [(f"{folder}/{name}", size) for name, size in services.store.list(folder)]
    except NotFound:
        return
    with services.ledger.transaction() as session:
        named = {row.path for row in archives_of(session, dataflow)}
    gone = {each.path for each in report.deleted}
    for path, size in found:
        if TEMPORARY.fullmatch(name_of(path)):
            of_runs.remove_temporary([(path, size)])
        elif path in named - gone:
            report.kept.append(Kept(path, size, "the code of runs"))
        elif archive_fingerprint(path) is None:
            report.unknown.append(Kept(path, size, "not a file of Weir's"))
        elif not knows_all_runs:
            report.unknown.append(Kept(path, size, f"code that `weir ledger rebuild {dataflow}` takes in"))
        elif path not in gone:
            of_runs.remove_file(path, size, "code that the ledger does not name", Garbage.ARCHIVE)

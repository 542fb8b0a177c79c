"""Sweep: compare the store with the ledger, and delete what is not needed (`weir gc`, and upkeep).

Invariant 4: the ledger decides first what is released or expired, and only then are files listed. What the ledger does
not know is reported, and never deleted: the ledger may be the one that is wrong. Every deletion is reported.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import require_closes_known, require_not_behind
from weir.coordination.services import Services
from weir.ledger.database.tables import DataflowRow
from weir.ledger.housekeeping import note_reached, reached
from weir.ledger.names import require_dataflow
from weir.ledger.runs import epoch_of_run, newest_dataflow_settings
from weir.retention.checkpoints import forget_compactions, maintain_checkpoints
from weir.retention.deletion_queries import runs_to_sweep
from weir.retention.expired_runs import expire_runs, note_deleted_runs
from weir.retention.release import delete_released, release
from weir.retention.sweep_others import delete_unused_archives, report_unknown_dataflows, sweep_others
from weir.retention.sweep_report import Garbage, SweepReport, Swept
from weir.retention.sweep_run import RunSweep
from weir.retention.versions import expire_versions
from weir.topology.ids import Epoch

RECENT = timedelta(days=2)
"""A sweep that is not full covers runs with an event since the age limit plus this time."""

DAILY = "full sweep"
"""The job of upkeep that sweeps all folders; when it was done is recorded by who has it done."""


def sweep(
    services: Services,
    dataflow: str | None = None,
    *,
    is_full: bool = False,
    is_dry: bool = False,
    is_reclaiming: bool = False,
    older_than: timedelta | None = None,
    clearer: Clearer | None = None,
    is_daily: bool = False,
) -> SweepReport:
    """Release and delete results that are not needed, and files of dead attempts, of one dataflow or of all.

    A full sweep covers every folder, else only runs of the last days. With `is_reclaiming`, space is needed: retention
    policies keep nothing. `older_than` is the age limit for files without a row in the ledger. With a `clearer`, runs
    that were deleted in Airflow are recorded. A daily sweep is full, and goes on with the run after the last one that a
    daily sweep had done before it was stopped. A dry sweep changes nothing. Raises Retryable, LedgerBehind before
    anything is deleted that the store shows to be newer than the ledger, and Misconfigured for an unknown dataflow.
    """
    services.store_id()  # on an unmounted disk everything seems missing
    report = SweepReport(is_dry=is_dry, is_full=is_full or is_daily)
    names = _known(services)
    if dataflow is not None and dataflow not in names:
        with services.ledger.transaction() as session:
            require_dataflow(session, dataflow)
    for name in names if dataflow is None else [dataflow]:
        _sweep_dataflow(
            services, name, report, older_than, clearer, is_reclaiming=is_reclaiming, is_daily=is_daily and not is_dry
        )
    if report.is_full and dataflow is None:
        report_unknown_dataflows(services, report, older_than or services.retention.orphan_age)
    return report


def _known(services: Services) -> list[str]:
    with services.ledger.transaction() as session:
        return list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))


def _sweep_dataflow(
    services: Services,
    dataflow: str,
    report: SweepReport,
    older_than: timedelta | None,
    clearer: Clearer | None,
    *,
    is_reclaiming: bool,
    is_daily: bool,
) -> None:
    require_not_behind(services, dataflow)
    if clearer is not None and not report.is_dry:
        require_closes_known(services, dataflow, clearer)
    with services.ledger.transaction() as session:
        settings = newest_dataflow_settings(session, dataflow, services.retention)
    age_limit = settings.orphan_age if older_than is None else older_than
    since = None if report.is_full else services.now() - age_limit - RECENT
    if clearer is not None and not report.is_dry:
        report.notes += note_deleted_runs(services, clearer, dataflow, since)
    report.deleted += expire_versions(services, dataflow, is_dry=report.is_dry)
    if not report.is_dry:
        _keep_checkpoints(services, dataflow, report)
    if report.is_full and not report.is_dry:
        forget_compactions(services, dataflow)
    _release(services, dataflow, report, is_reclaiming=is_reclaiming)
    expire_runs(services, dataflow, settings, report)
    of_runs = RunSweep(services, settings, report, age_limit, is_reclaiming=is_reclaiming)
    for run in _runs(services, dataflow, since, report, is_daily=is_daily):
        of_runs.sweep(run)
        if is_daily:
            _note_reached(services, dataflow, epoch_of_run(run))
    if report.is_full:
        delete_unused_archives(services, dataflow, services.now() - age_limit, report)
        sweep_others(of_runs, dataflow)


def _keep_checkpoints(services: Services, dataflow: str, report: SweepReport) -> None:
    for path in maintain_checkpoints(services, dataflow, is_thorough=report.is_full).deleted:
        report.deleted.append(Swept(Garbage.CHECKPOINT, path, 0, "no retained checkpoint names it"))


def _release(services: Services, dataflow: str, report: SweepReport, *, is_reclaiming: bool) -> None:
    found = release(services, dataflow, is_reclaiming=is_reclaiming, is_dry=report.is_dry)
    if report.is_dry:
        report.to_release += [each for each in found if each.is_released]
        return
    for each in delete_released(services, dataflow):
        report.deleted.append(Swept(Garbage.RELEASED, each.folder, each.bytes, each.reason))


def _runs(
    services: Services, dataflow: str, since: datetime | None, report: SweepReport, *, is_daily: bool
) -> list[str]:
    with services.ledger.transaction() as session:
        runs = runs_to_sweep(session, dataflow, since)
        done = reached(session, DAILY, dataflow) if is_daily else None
    if done is None:
        return runs
    report.notes.append(f"went on after epoch {done}: a sweep was stopped there")
    return [run for run in runs if epoch_of_run(run) > done]


def _note_reached(services: Services, dataflow: str, epoch: Epoch) -> None:
    with services.ledger.transaction(dataflow) as session:
        note_reached(session, DAILY, dataflow, epoch)

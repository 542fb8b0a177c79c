"""Expiring runs: manifests, records and history of old runs go, and of those that were deleted in Airflow.

Invariant: what is published stays, with all that it is made of; the run itself and its current results stay in the
ledger, released. Who clears such a run in Airflow has all of it made again. Invariant 7: the ledger says first that the
run is expired; its folder is swept behind that, as often as it takes.
"""

from __future__ import annotations

from weir.coordinator.release import delete_released, release
from weir.coordinator.services import Services
from weir.coordinator.sweep_pages import remove_pages
from weir.coordinator.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.ledger.expiring import expire, runs_to_expire, why_not_yet
from weir.ledger.models import RunRow
from weir.ledger.sweeping import attempts_at_work, is_expired
from weir.results.life_settings import LifeSettings


def expire_runs(services: Services, dataflow: str, settings: LifeSettings, report: SweepReport) -> None:
    """Expire the runs of a dataflow that are old enough, or not in Airflow any more. Raises Retryable."""
    with services.ledger.transaction() as session:
        due = runs_to_expire(session, dataflow, settings, services.now())
    for run, reason in due:
        if report.is_dry:
            report.expired.append(Kept(run, 0, reason))
            continue
        release(services, dataflow, [run], is_pressed=True)
        for each in delete_released(services, dataflow, [run]):
            report.deleted.append(Swept(Garbage.RELEASED, each.folder, each.bytes, each.reason))
        expired = _expire(services, dataflow, run, settings, reason)
        report.expired += expired
        if expired:
            remove_pages(services, run, report)


def _expire(services: Services, dataflow: str, run: str, settings: LifeSettings, reason: str) -> list[Kept]:
    now = services.now()
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(RunRow, run)
        is_due = any(run == each for each, _ in runs_to_expire(session, dataflow, settings, now))
        if not is_due or is_expired(session, row) or attempts_at_work(session, row, settings, now):
            return []
        if why_not_yet(session, run, now) is not None:
            return []
        expire(session, run, reason, now)
    return [Kept(run, 0, reason)]

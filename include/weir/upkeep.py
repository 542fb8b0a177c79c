"""The jobs of upkeep, every few minutes and every hour, for all dataflows of the ledger.

Invariant: a failure for one run or dataflow does not stop the others, and is raised when all others are done.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from weir.coordination.airflow import AirflowStates, Clearer
from weir.coordination.services import Services
from weir.coordination.settled import Due, Settled
from weir.errors import Internal
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.housekeeping import ALL, UPKEEP, is_due, note_done
from weir.notifications.delivery import AirflowContext
from weir.recovery.late_files import look_for_late_files
from weir.retention.sizes import dataflows
from weir.retention.sweep import DAILY, sweep
from weir.retention.sweep_others import report_unknown_dataflows
from weir.retention.sweep_report import SweepReport
from weir.settling import Settling, up_to_date
from weir.sinks.delivery import shuffled
from weir.snapshots.automatic import maintain_savepoints
from weir.snapshots.seal import seal_tolerated
from weir.units import format_size

FULL_SWEEP = timedelta(days=1)
"""How often every folder of the store is swept, and not only those of recent runs."""

_STORE = "the store"

CLEARS: Final = Due(clears=True, is_thorough=True)
RESULTS: Final = Due(runs=None, readers=True, is_thorough=True)
RECEIVERS: Final = Due(receivers=True, is_thorough=True)
TARGETS: Final = Due(early=None, tables=True, targets=True, is_thorough=True)


def release_and_deliver(services: Services, context: AirflowContext) -> Settled:
    """Release results, tell receivers, then commit versions into targets: what may have to wait for others comes last.

    Receivers come first of those two: each has a time limit, while a target's own code may hang. They are told of what
    it makes known by the next upkeep. That upkeep was there is recorded, whatever has failed.
    """
    settled = settle_everywhere(services, RESULTS, RECEIVERS, TARGETS, context=context)
    with settled.trying(UPKEEP), services.ledger.transaction(ALL) as session:
        note_done(session, UPKEEP, ALL, services.now())
    return settled


def settle_everywhere(services: Services, *parts: Due, context: AirflowContext = dict) -> Settled:
    """Settle these parts, one after the other, of all dataflows. `context` is Airflow's of this task, for notifiers."""
    settling, settled = Settling(services, _no_airflow, context), Settled()
    for part in parts:
        names = _dataflows(services)
        # Not always in one order: no dataflow is always the one for which no patience is left.
        for dataflow in shuffled(services, names, str) if part.targets else names:
            settled.add(settling.settle(dataflow, part))
    return settled


def _no_airflow() -> Clearer:
    raise Internal.of("upkeep.no_airflow")


def sweep_everywhere(services: Services, clearer: Clearer) -> Settled:
    """Remove what dead attempts, deleted DagRuns and expired runs left: of recent runs, and once a day of all."""
    kept = Settled()
    is_daily = False
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            began = services.now()
            is_full = _is_full_due(services, dataflow)
            job = partial(sweep, services, dataflow, is_daily=is_full, clearer=clearer)
            kept.done[dataflow] = up_to_date(services, dataflow, job)
            if is_full:
                is_daily = True
                up_to_date(services, dataflow, partial(_note_full, services, dataflow, began))
    if is_daily:
        with kept.trying(_STORE):
            kept.done[_STORE] = _of_nobody(services)
    return kept


def _note_full(services: Services, dataflow: str, began: datetime) -> None:
    with services.ledger.transaction(dataflow) as session:
        note_done(session, DAILY, dataflow, began)


def _of_nobody(services: Services) -> str:
    """Report folders in the store that belong to no dataflow of the ledger: upkeep never deletes them."""
    report = SweepReport(is_full=True)
    report_unknown_dataflows(services, report, services.retention.orphan_age)
    return (
        "; ".join(f"{each.path}, {format_size(each.bytes)}: {each.reason}" for each in report.unknown) or "all is known"
    )


def _is_full_due(services: Services, dataflow: str) -> bool:
    with services.ledger.transaction() as session:
        return is_due(session, DAILY, dataflow, FULL_SWEEP, services.now())


def scrub_everywhere(services: Services, clearer: Clearer) -> Settled:
    """Verify a share of all stored bytes of all dataflows; have damaged results that are needed recomputed."""
    return _each(services, partial(scrub_dataflow, services, clearer))


def maintain_savepoints_everywhere(services: Services) -> Settled:
    """Create the automatic savepoints that are due, and drop the old ones, of all dataflows that declare some."""
    return _each(services, partial(maintain_savepoints, services))


def seal_tolerated_everywhere(services: Services, airflow: AirflowStates) -> Settled:
    """Seal epochs that have failed for good, of all dataflows that tolerate some."""
    kept = _each(services, partial(seal_tolerated, services, airflow))
    kept.done = {dataflow: said for dataflow, said in kept.done.items() if said}
    return kept


def look_for_late_files_everywhere(services: Services) -> Settled:
    """List again what sources of all dataflows have read, where they ask for it; report late files, or correct epochs.

    The clears of a correction are delivered as all others are.
    """
    return _each(services, partial(look_for_late_files, services))


def _each(services: Services, job: Callable[[str], object]) -> Settled:
    """Do a job for each dataflow."""
    kept = Settled()
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            kept.done[dataflow] = up_to_date(services, dataflow, partial(job, dataflow))
    return kept


def _dataflows(services: Services) -> list[str]:
    with services.ledger.transaction() as session:
        return dataflows(session)

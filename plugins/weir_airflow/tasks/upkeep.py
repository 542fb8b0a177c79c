"""The tasks of Weir's housekeeping DAGs. Invariant: a step that fails is reported, and keeps no other from running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

from weir.attempts.notes import annotate_healed_runs, annotate_open_runs
from weir.coordination.settled import Settled
from weir.settling import Settling
from weir.telemetry.gauges import gauges_everywhere
from weir.upkeep import (
    CLEARS,
    look_for_late_files_everywhere,
    maintain_savepoints_everywhere,
    release_and_deliver,
    scrub_everywhere,
    seal_tolerated_everywhere,
    sweep_everywhere,
)
from weir_airflow.metrics import export, is_exporting
from weir_airflow.tasks.context import TaskContext

if TYPE_CHECKING:
    from weir.attempts.ports import Log
    from weir.coordination.services import Services


def deliver_pending_clears(log: Log) -> dict[str, Any]:
    """Deliver the pending clears of every dataflow in the ledger, and leave the notes that are missing in Airflow.

    Before that, epochs are sealed that have failed for good, where a dataflow tolerates it.
    """
    with TaskContext.open() as task_context:
        settled = seal_tolerated_everywhere(task_context.services, task_context.airflow)
        settled.add(Settling(task_context.services, lambda: task_context.airflow).settle(None, CLEARS))
        _report(settled, log)
        log(f"{settled.pending} clear(s) remain pending" if settled.pending else "No clear is pending")
        for annotate in (annotate_open_runs, annotate_healed_runs):
            for line in annotate(task_context.services, task_context.airflow):
                log(line)
    return {"pending": settled.pending}


def release_results(log: Log) -> dict[str, Any]:
    """Release and delete the results that no run needs any more, of every dataflow in the ledger.

    After that, receivers are told what no closing task has told them, and published versions are committed into the
    targets of their sinks, where no closing task does. Then the gauges are exported, where Airflow exports metrics.
    """
    with TaskContext.open() as task_context:
        done = release_and_deliver(task_context.services, get_current_context)
        if is_exporting():
            _export_gauges(task_context.services, log)
        return _report(done, log)


def _export_gauges(services: Services, log: Log) -> None:
    """Export how each dataflow stands; where that cannot be told, the log says so, and nothing fails."""
    found, kept = gauges_everywhere(services)
    export(found)
    for line in kept.lines():
        log(line)


def sweep_store(log: Log) -> dict[str, Any]:
    """Remove what dead attempts, deleted DagRuns and expired runs have left in the store."""
    with TaskContext.open() as task_context:
        return _report(sweep_everywhere(task_context.services, task_context.airflow), log)


def scrub_results(log: Log) -> dict[str, Any]:
    """Read a share of all stored results again, and have those recomputed that are damaged and needed."""
    with TaskContext.open() as task_context:
        return _report(scrub_everywhere(task_context.services, task_context.airflow), log)


def create_savepoints(log: Log) -> dict[str, Any]:
    """Create the automatic savepoints that are due, and drop the old ones."""
    with TaskContext.open() as task_context:
        return _report(maintain_savepoints_everywhere(task_context.services), log)


def look_for_late_files(log: Log) -> dict[str, Any]:
    """List again what sources have read that ask for it, and report late files or have epochs corrected."""
    with TaskContext.open() as task_context:
        return _report(look_for_late_files_everywhere(task_context.services), log)


def _report(kept: Settled, log: Log) -> dict[str, Any]:
    """Log what was done, then raise what has failed."""
    for line in kept.lines():
        log(line)
    kept.require_whole()
    return dict(kept.done)

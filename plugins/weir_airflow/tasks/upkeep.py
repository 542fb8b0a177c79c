"""The tasks of Weir's housekeeping DAGs. Invariant: a step that fails is reported, and keeps no other from running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import get_current_context

from weir.attempts.notes import annotate_open_runs
from weir.attempts.steps import deliver_clears
from weir.quality.page_program import render_pages
from weir.quality.pages import make_pages_everywhere
from weir.upkeep import (
    Upkept,
    deliver_everywhere,
    notify_everywhere,
    release_everywhere,
    scrub_everywhere,
    sweep_everywhere,
)
from weir_airflow.tasks.context import TaskContext

if TYPE_CHECKING:
    from weir.attempts.ports import Log

_PAGES: Final = "pages"


def deliver_pending_clears(log: Log) -> dict[str, Any]:
    """Deliver the pending clears of every dataflow in the ledger, and leave the notes that are missing in Airflow."""
    with TaskContext.open() as task_context:
        remaining = deliver_clears(task_context.coordinator, task_context.airflow, None, log)
        log(f"{remaining} clear(s) remain pending" if remaining else "No clear is pending")
        for line in annotate_open_runs(task_context.services, task_context.airflow):
            log(line)
    return {"owed": remaining}


def release_results(log: Log) -> dict[str, Any]:
    """Release and delete the results that no run needs any more, of every dataflow in the ledger.

    After that, published versions are committed into the targets of their sinks, where no closing task does, and
    receivers are told what no closing task has told them: what may have to wait for others comes last.
    """
    with TaskContext.open() as task_context:
        kept = [release_everywhere(task_context.services), deliver_everywhere(task_context.services)]
        kept.append(notify_everywhere(task_context.services, get_current_context))
    done = {where: said for each in kept for where, said in each.done.items()}
    failed = {where: error for each in kept for where, error in each.failed.items()}
    return _report(Upkept(done, failed), log)


def make_pages(log: Log) -> dict[str, Any]:
    """Make the next batch of pages about checks that have none yet, of every dataflow in the ledger."""
    kept = Upkept()
    with TaskContext.open() as task_context, kept.trying(_PAGES):
        kept.done[_PAGES] = make_pages_everywhere(task_context.services, render_pages)
    return _report(kept, log)


def sweep_store(log: Log) -> dict[str, Any]:
    """Remove what dead attempts, deleted DagRuns and expired runs have left in the store."""
    with TaskContext.open() as task_context:
        return _report(sweep_everywhere(task_context.services, task_context.airflow), log)


def scrub_results(log: Log) -> dict[str, Any]:
    """Read a share of all stored results again, and have those recomputed that are damaged and needed."""
    with TaskContext.open() as task_context:
        return _report(scrub_everywhere(task_context.services, task_context.airflow), log)


def _report(kept: Upkept, log: Log) -> dict[str, Any]:
    """Log what was done, then raise what has failed."""
    for line in kept.lines():
        log(line)
    kept.require_whole()
    return dict(kept.done)

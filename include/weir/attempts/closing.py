"""The driver of the close of a run.

Invariant: what is announced is published; no failure after the publication undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weir.attempts.notes import try_to_note_close, try_to_note_wait, try_to_withdraw_note
from weir.attempts.ports import TaskPorts
from weir.attempts.steps import end_without_result, ready_outcome, settle
from weir.coordination.settled import CLEARS, Due
from weir.coordination.values import Awaiting, BeginRequest, CloseOutcome, Published
from weir.dataflow.state_rules import tables_of
from weir.ledger.runs import epoch_of, run_key


def run_close(
    task: TaskPorts,
    dataflow: str,
    request: Callable[[], BeginRequest],
    announce: Callable[[BeginRequest, Mapping[str, Mapping[str, Any]]], None],
) -> dict[str, Any]:
    """Deliver pending clears, complete the run, publish its sinks, announce them, settle.

    `announce` gets the summary of each sink with a new version. Returns the summary for Airflow's UI. Raises
    ResultUnavailable for all that is missing, what `TaskPorts.wait`, `fail` and `skip` raise, and what `weir.errors`
    says.
    """
    settle(task, dataflow, CLEARS)
    described = request()

    def begin() -> CloseOutcome:
        found = task.coordinator.close(described, task.airflow)
        if isinstance(found, Awaiting):
            try_to_note_wait(task, described, found)
        return found

    outcome = ready_outcome(task, begin)
    if not isinstance(outcome, Published):
        return end_without_result(task, described.key, outcome)
    for sink in outcome.versions:
        task.log(_told(sink, outcome.summary[sink]))
    announce(described, {sink: outcome.summary[sink] for sink, new in outcome.versions.items() if new is not None})
    try_to_withdraw_note(task, dataflow, described.key, described.try_number, may_have_waited=True)
    run = run_key(dataflow, epoch_of(described.interval[0]))
    try_to_note_close(task, run, described.key, was_cleared=described.clear_number > 0)
    has_tables = bool(tables_of(described.dataflow.stages))
    settle(task, dataflow, Due(runs=None, early=(run,), tables=has_tables, readers=True, receivers=True))
    return dict(outcome.summary)


def _told(sink: str, found: Mapping[str, Any]) -> str:
    """Say what is published of a sink, with its version, rows and targets."""
    targets = "".join(f"; {target}: {outcome}" for target, outcome in found.get("targets", {}).items())
    return f"Sink {sink}: version {found['version']}, {found['rows']} rows, published: {found['published']}{targets}"

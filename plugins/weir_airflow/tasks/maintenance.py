"""Savepoints, restores and verifications that a task carries out, by the functions of the commands.

Invariant: what a task returns is small, and the whole report is in its log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from weir.coordination.settled import CLEARS
from weir.errors import Message, Misconfigured
from weir.integrity.repair import repair_runs
from weir.integrity.verification import verify_runs
from weir.ledger.runs import dataflow_of
from weir.settling import Settling
from weir.snapshots.restore import restore
from weir.snapshots.savepoint import SavepointRequest, create, displaced
from weir_airflow.tasks.context import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weir.attempts.ports import Log
    from weir.snapshots.restore import RestoreRequest

_SHOWN: Final = 40
"""How many bad results the error names; the log has all."""


def key_of(ti: Any, *asked: object) -> str:
    """Return the key of what a task instance asks for: the same at each of its tries."""
    return json.dumps([ti.dag_id, ti.run_id, ti.task_id, ti.map_index, *(str(each or "") for each in asked)])


def create_savepoint(
    dataflow: str, checkpoint: int | str | None, to: str | None, name: str | None, key: str, log: Log
) -> dict[str, Any]:
    """Create a savepoint, unless one was made for the same key. Raises Misconfigured or Retryable."""
    number = str(checkpoint or "")
    if number and not number.isdecimal():
        raise Misconfigured.of("tasks.checkpoint_malformed", checkpoint=checkpoint)
    wanted = SavepointRequest(dataflow, int(number) if number else None, to or None, name or None, key)
    with TaskContext.open() as task_context:
        made = create(task_context.services, wanted)
        log(f"{made}\n{displaced(task_context.services, dataflow)}.")
    return {name: getattr(made, name) for name in ("dataflow", "number", "epoch", "folder", "files", "bytes")}


def restore_state(wanted: RestoreRequest, log: Log) -> dict[str, Any]:
    """Restore a checkpoint or savepoint, and deliver the clears that follow. Raises as `restore` does."""
    with TaskContext.open() as task_context:
        done = restore(task_context.services, wanted)
        for line in done.lines(is_dry=wanted.is_dry, is_fork=wanted.fork is not None):
            log(line)
        if done.pending_clears:
            _deliver(task_context, [done.dataflow], log)
    return {
        **{name: getattr(done, name) for name in ("dataflow", "source", "epoch", "lineage", "is_in_effect")},
        "restored": sum(each.is_restored for each in done.partitions),
        "stale": len(done.stale),
        "pending_clears": done.pending_clears,
    }


def verify(name: str | None, log: Log, *, repairs: bool) -> dict[str, Any]:
    """Verify the results of a dataflow, of a run, or of all (None). Raises AirflowFailException if anything is bad."""
    with TaskContext.open() as task_context:
        report = verify_runs(task_context.services, name, "a task")
        log(str(report))
        wrong = [*(f"{each.outcome.value}: {each}" for each in report.bad), *map(str, report.misfits)]
        for line in wrong:
            log(line)
        done = repair_runs(task_context.services, report.bad, report.misfits) if repairs else ()
        for repair in done:
            log(str(repair))
        if any(repair.owed for repair in done):
            _deliver(task_context, sorted({dataflow_of(repair.run) for repair in done}), log)
    if not report.is_right:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise AirflowFailException(
            Message("tasks.verification_failed", wrong=wrong[:_SHOWN], more=more, repairs=list(map(str, done)))
        )
    return {"runs": len(report.runs), "results": {outcome: count for outcome, (count, _) in report.counts().items()}}


def _deliver(task_context: TaskContext, dataflows: Iterable[str], log: Log) -> None:
    """Deliver the clears of some dataflows; those that Airflow has not taken remain for upkeep."""
    settling = Settling(task_context.services, lambda: task_context.airflow)
    for dataflow in dataflows:
        settled = settling.settle(dataflow, CLEARS)
        for line in settled.lines():
            log(line)
        if settled.failed:
            log("The clears are pending; the DAG weir_upkeep delivers them (is it unpaused?)")

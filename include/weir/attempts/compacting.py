"""The driver of the compaction of a region's state.

Invariant: no run depends on it, and it never fails: Airflow would count its failure to the DagRun. What could not be
compacted is logged, noted at the task instance, and left to the next epoch's compaction. No failure is booked, and
Weir's retry policy is not asked.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from weir.attempts.notes import annotate_or_log, try_to_annotate
from weir.attempts.ports import Airflow, Log, TaskEngine, TaskPorts
from weir.attempts.steps import read_report, write_job
from weir.coordination.values import TaskKey
from weir.execution.failure_words import SAYS
from weir.formats.region_job import CompactionJob, RegionReport
from weir.restarts.delays import MOST_KILLS
from weir.secrecy import without_secrets
from weir.state.compaction import CompactionRequest


def run_compaction(
    task: TaskPorts, engine: TaskEngine, request: CompactionRequest, key: TaskKey, kills: int
) -> dict[str, Any]:
    """Plan, merge, record the merged files; return the summary for Airflow's UI.

    `kills` are the tries since the last clear that have ended without an answer.
    """
    if kills > MOST_KILLS:
        return left_to_next_epoch(lambda: task.airflow, key, f"its process was killed {kills} times", task.log)
    try:
        lines = _compact(task, engine, request)
    except Exception as error:  # noqa: BLE001  any error: it must not decide about the run
        task.log(traceback.format_exc())
        return left_to_next_epoch(lambda: task.airflow, key, f"{type(error).__name__}: {error}", task.log)
    try_to_annotate(task, key, "")  # nothing of an earlier try is left to be said
    return {"merged": lines}


def left_to_next_epoch(airflow: Callable[[], Airflow], key: TaskKey, reason: str, log: Log) -> dict[str, Any]:
    """Log and note why a state was not compacted; return the summary for Airflow's UI."""
    what = f"not compacted: {without_secrets(reason)}"
    note = f"{SAYS}{what}. The next epoch's compaction does the work; this run does not depend on it"
    log(note)
    annotate_or_log(airflow, key, note, log)
    return {"merged": [], "note": note}


def _compact(task: TaskPorts, engine: TaskEngine, request: CompactionRequest) -> list[str]:
    planned = task.coordinator.plan_compaction(request)
    if planned is None:
        task.log("Nothing to merge")
        return []
    report = None if planned.job is None else _merge(task, engine, planned.job, planned.session_id)
    lines = task.coordinator.enter_compacted(planned, report)
    for line in lines:
        task.log(line)
    return lines


def _merge(task: TaskPorts, engine: TaskEngine, job: CompactionJob, session_id: str) -> RegionReport:
    engine.connect()
    store = task.coordinator.services.store
    write_job(store, job)
    engine.run(job, session_id, task.log)
    return read_report(store, job)

"""The driver of the compaction of a region's state.

Invariant: no run depends on it, and its errors are the task's own: Airflow retries a few times, then the next epoch's
compaction does the work. No failure is booked, and Weir's retry policy is not asked.
"""

from __future__ import annotations

from typing import Any

from weir.attempts.ports import TaskEngine, TaskPorts
from weir.attempts.steps import read_report, write_job
from weir.formats.region_job import CompactionJob, RegionReport
from weir.state.compaction import CompactionRequest


def run_compaction(task: TaskPorts, engine: TaskEngine, request: CompactionRequest) -> dict[str, Any]:
    """Plan, merge, record the merged files; return the summary for Airflow's UI. Raises as the engine does."""
    planned = task.coordinator.plan_compaction(request)
    if planned is None:
        task.log("Nothing to merge")
        return {"merged": []}
    report = None if planned.job is None else _merge(task, engine, planned.job, planned.session_id)
    lines = task.coordinator.enter_compacted(planned, report)
    for line in lines:
        task.log(line)
    return {"merged": lines}


def _merge(task: TaskPorts, engine: TaskEngine, job: CompactionJob, session_id: str) -> RegionReport:
    engine.connect()
    store = task.coordinator.services.store
    write_job(store, job)
    engine.run(job, session_id, task.log)
    return read_report(store, job)

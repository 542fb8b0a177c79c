"""The compaction of the state that a region keeps, as its task does it.

Invariant: no run depends on it, and an error is the task's own: Airflow tries a few times, then the next epoch's
compaction does the work. Neither the coordinator nor a retry policy of Weir's is asked.
"""

from __future__ import annotations

from typing import Any

from weir.attempts.ports import TaskEngine, TaskPorts
from weir.attempts.steps import read_report, write_job
from weir.formats.region_job import CompactionJob, RegionReport
from weir.state.compaction import CompactionRequest


def run_compaction(task: TaskPorts, engine: TaskEngine, request: CompactionRequest) -> dict[str, Any]:
    """Plan, merge, enter what was merged; answer the summary for Airflow's UI. Raises as the engine does."""
    planned = task.coordinator.plan_compaction(request)
    if planned is None:
        task.log("Nothing is to be merged")
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

"""A task that compacts state, as the fake Airflow runs it. Invariant: it never fails, but when its process dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.coordinator.compaction import CompactionRequest
from weir.errors import WeirError
from weir.ledger.runs import epoch_of
from weir.topology.compaction_tasks import region_compacted

if TYPE_CHECKING:
    from weir.testing.airflow import FakeAirflow
    from weir.testing.dag import FakeTask


def compacts(airflow: FakeAirflow, task: FakeTask) -> bool:
    """Do the work of a task that compacts, and leave notes of it; false if the task is another one."""
    region = region_compacted(task.key.task_id)
    if region is None:
        return False
    epoch = epoch_of(airflow.request(task).interval[0])
    try:
        begun = airflow.coordinator.plan_compaction(
            CompactionRequest(airflow.flow.name, epoch, task.key.run_id, region)
        )
        if begun is not None:
            report = airflow.engine.run(begun.job, lambda: airflow.during(task.key)) if begun.job.merges else None
            task.notes += airflow.coordinator.enter_compacted(begun, report)
    except (WeirError, OSError) as error:
        task.notes.append(f"not compacted: {error}")
    if task.state == "running":
        task.state = "success"
    return True

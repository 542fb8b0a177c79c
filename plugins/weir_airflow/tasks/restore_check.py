"""The restore test as a task: a checkpoint is restored to a scratch folder, and the restored state is checked.

Invariant: a task that succeeds has restored the checkpoint that it names; where a check fails, its error is the whole
report.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from weir.attempts.steps import read_report, write_job
from weir.errors import Misconfigured
from weir.integrity.restore_test import dataflows_with_checkpoints, run_restore_test
from weir_airflow.engines.engines import engine_for
from weir_airflow.tasks.context import TaskContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir.attempts.ports import Log
    from weir.formats.region_job import CheckJob, RegionReport


def dataflows_to_check(params: Mapping[str, Any], log: Log) -> list[str]:
    """Return the dataflows that have checkpoints, or only the one that the run's configuration names."""
    name = params.get("dataflow") or None
    if params.get("checkpoint") and name is None:
        raise Misconfigured.of("tasks.dataflow_not_named", params=params["checkpoint"])
    with TaskContext.open() as task_context:
        found = list(dataflows_with_checkpoints(task_context.services, name))
    log(
        f"To restore: checkpoints of {', '.join(found)}"
        if found
        else "No dataflow has a checkpoint: nothing to restore"
    )
    return found


def check_restore(dataflow: str, params: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """Restore a dataflow's newest checkpoint, or the one that the run's configuration names, and check its state.

    Raises AirflowFailException with the report if a check fails: another try would find the same.
    """
    wanted = params.get("checkpoint") or None
    with TaskContext.open() as task_context:
        spark = task_context.spark(params.get("spark_conn_id") or None)
        engine = engine_for(spark, task_context.store, task_context.store_options)
        name = None if wanted is None else str(wanted)

        def check(job: CheckJob) -> RegionReport:
            write_job(task_context.store, job)
            try:
                engine.run(job, str(uuid.uuid4()), log)
            except BaseException:
                engine.stop()  # the task was killed, perhaps
                raise
            return read_report(task_context.store, job)

        tested = run_restore_test(task_context.services, dataflow, name, check)
    for line in tested.lines():
        log(line)
    if not tested.is_right:
        raise AirflowFailException("\n".join(tested.lines()))
    return {"restored": tested.source, "checks": len(tested.checks), "copied_bytes": tested.copied_bytes}

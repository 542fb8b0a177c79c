"""The restore test: the newest checkpoint of each dataflow with state is restored to a scratch folder, and checked.

A task fails with the report where a checkpoint cannot be restored, or the restored state differs from what was
checkpointed. That reads all state and needs Spark, so the DAG is paused until you have chosen its hour. In a run that
you trigger, `dataflow` and `checkpoint` (a number, a savepoint's name or its folder) choose what is restored, and
`spark_conn_id` chooses another Spark to check it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

log = logging.getLogger(__name__).info
TEXT_OR_NOTHING = ["null", "string"]

with DAG(
    "weir_restore_check",
    schedule="@weekly",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    dagrun_timeout=timedelta(hours=24),
    params={name: Param(None, type=TEXT_OR_NOTHING) for name in ("dataflow", "checkpoint", "spark_conn_id")},
    tags=["weir"],
    doc_md=__doc__,
) as dag:

    @task(task_id="which", retries=0)  # type: ignore[untyped-decorator]
    def dataflows_with_checkpoints(params: dict[str, Any]) -> list[str]:
        """Return the dataflows that have checkpoints."""
        from weir_airflow.tasks.restore_check import dataflows_to_check  # noqa: PLC0415  imports the ledger

        return dataflows_to_check(params, log)

    @task(retries=1, max_active_tis_per_dagrun=1, map_index_template="{{ dataflow }}")  # type: ignore[untyped-decorator]
    def restore(dataflow: str, params: dict[str, Any]) -> dict[str, Any]:
        """Restore a checkpoint. A Spark that does not answer is tried once more, a check that fails is not."""
        from weir_airflow.tasks.restore_check import check_restore  # noqa: PLC0415  imports the ledger

        return check_restore(dataflow, params, log)

    restore.expand(dataflow=dataflows_with_checkpoints())

"""Weir's housekeeping: every three minutes clears and releases, every hour sweep, scrub, savepoints and late files.

The tasks of a DAG are independent of each other: where one fails, the others still run, and the DagRun fails. Beside it
is the DAG whose runs are requests from Weir's pages.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from weir.requests.request import REQUESTS

log = logging.getLogger(__name__).info
ALIKE: dict[str, Any] = {
    "start_date": datetime(2024, 1, 1, tzinfo=UTC),
    "catchup": False,
    "is_paused_upon_creation": False,
    "tags": ["weir"],
}

with DAG(
    "weir_upkeep",
    schedule="*/3 * * * *",
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=30),
    doc_md=__doc__,
    **ALIKE,
) as dag:
    # Before the regions of a long catch-up, which wait for what is cleared.
    @task(task_id="settle_pending_clears", retries=0, priority_weight=1_000_000, weight_rule="absolute")  # type: ignore[untyped-decorator]
    def deliver_pending_clears() -> dict[str, Any]:
        """Deliver pending clears; the next run tries those that remain."""
        from weir_airflow.tasks.upkeep import deliver_pending_clears as deliver  # noqa: PLC0415  imports the ledger

        return deliver(log)

    @task(retries=0)  # type: ignore[untyped-decorator]
    def release_results() -> dict[str, Any]:
        """Release and delete results; the next run tries what could not be deleted."""
        from weir_airflow.tasks.upkeep import release_results as release  # noqa: PLC0415  imports the ledger

        return release(log)

    deliver_pending_clears()
    release_results()


with DAG(
    "weir_upkeep_hourly",
    schedule="@hourly",
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=12),
    doc_md=__doc__,
    **ALIKE,
) as hourly_dag:

    @task(retries=0)  # type: ignore[untyped-decorator]
    def sweep_store() -> dict[str, Any]:
        """Remove leftovers from the store; the next run tries what could not be removed."""
        from weir_airflow.tasks.upkeep import sweep_store as sweep  # noqa: PLC0415  imports the ledger

        return sweep(log)

    @task(retries=0)  # type: ignore[untyped-decorator]
    def scrub_results() -> dict[str, Any]:
        """Read a share of the stored bytes again; the next run tries what could not be read."""
        from weir_airflow.tasks.upkeep import scrub_results as scrub  # noqa: PLC0415  imports the ledger

        return scrub(log)

    @task(retries=0)  # type: ignore[untyped-decorator]
    def create_savepoints() -> dict[str, Any]:
        """Create automatic savepoints; the next run creates what could not be created."""
        from weir_airflow.tasks.upkeep import create_savepoints as create  # noqa: PLC0415  imports the ledger

        return create(log)

    @task(retries=0)  # type: ignore[untyped-decorator]
    def look_for_late_files() -> dict[str, Any]:
        """List again what sources have read that ask for it; the next run lists what could not be listed."""
        from weir_airflow.tasks.upkeep import look_for_late_files as look  # noqa: PLC0415  imports the ledger

        return look(log)

    sweep_store()
    scrub_results()
    create_savepoints()
    look_for_late_files()


_REQUESTS = """Requests from Weir's pages: each run is one, with who asks, and its note says what was done.

A run is made by a button of a page. What it does is planned again, and done only if it is what was shown there and the
user still may.
"""

with DAG(
    REQUESTS,
    schedule=None,
    allowed_run_types=["manual"],
    dagrun_timeout=timedelta(hours=12),
    doc_md=_REQUESTS,
    **ALIKE,
) as requests_dag:
    # A person waits for it, and what it clears waits for nothing.
    @task(retries=0, priority_weight=1_000_000, weight_rule="absolute")  # type: ignore[untyped-decorator]
    def carry_out() -> str:
        """Carry out the request, once."""
        from weir_airflow.tasks.requests import carry_out_request  # noqa: PLC0415  imports the ledger

        return carry_out_request(get_current_context(), log)

    carry_out()

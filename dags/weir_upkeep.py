"""Weir's housekeeping: every three minutes what others left undone, every hour what keeps the store in order.

The tasks of a DAG are independent of each other: where one fails, the others are done, and the run fails.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

tell = logging.getLogger(__name__).info

with DAG(
    "weir_upkeep",
    schedule="*/3 * * * *",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(minutes=30),
    tags=["weir"],
    doc_md=__doc__,
) as dag:

    @task(retries=0)
    def settle_owed_clears() -> dict[str, Any]:
        """Whatever stays owed is tried again by the next run."""
        from weir_airflow.tasks.upkeep import settle_owed_clears as settle  # noqa: PLC0415  imports the ledger

        return settle(tell)

    @task(retries=0)
    def release_results() -> dict[str, Any]:
        """What could not be deleted is tried again by the next run."""
        from weir_airflow.tasks.upkeep import release_results as release  # noqa: PLC0415  imports the ledger

        return release(tell)

    @task(retries=0)
    def make_pages() -> dict[str, Any]:
        """What could not be made is tried again by the next run."""
        from weir_airflow.tasks.upkeep import make_pages as make  # noqa: PLC0415  imports the ledger

        return make(tell)

    settle_owed_clears()
    release_results()
    make_pages()


with DAG(
    "weir_upkeep_hourly",
    schedule="@hourly",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(hours=12),
    tags=["weir"],
    doc_md=__doc__,
) as hourly_dag:

    @task(retries=0)
    def sweep_store() -> dict[str, Any]:
        """What could not be removed is tried again in an hour."""
        from weir_airflow.tasks.upkeep import sweep_store as sweep  # noqa: PLC0415  imports the ledger

        return sweep(tell)

    @task(retries=0)
    def scrub_results() -> dict[str, Any]:
        """What could not be read is tried again in an hour."""
        from weir_airflow.tasks.upkeep import scrub_results as scrub  # noqa: PLC0415  imports the ledger

        return scrub(tell)

    sweep_store()
    scrub_results()

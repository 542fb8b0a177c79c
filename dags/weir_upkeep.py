"""Weir's housekeeping: every three minutes, the clears that are still owed are carried out."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

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
        from weir_airflow.upkeep import settle_owed_clears as settle  # noqa: PLC0415  imports the ledger

        return settle(logging.getLogger(__name__).info)

    settle_owed_clears()

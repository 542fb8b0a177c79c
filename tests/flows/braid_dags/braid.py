"""The DAG of `braid`: four strands that read each other index by index, and sums over all of them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow.dag import dataflow_dag

START = datetime(2024, 1, 1, tzinfo=UTC)


braid = Dataflow(
    "braid",
    [
        source("numbers", "braid:numbers", parallelism=4),
        Stage("doubled", "braid:doubled", [blocking("numbers", pointwise=True)], parallelism=4),
        Stage("totals", "braid:totals", [blocking("doubled")]),
        sink("totals", "sums"),
    ],
    parameters={"control": os.environ["WEIR_LADDER"]},
)

dag = dataflow_dag(
    braid,
    schedule="@daily",
    start_date=START,
    end_date=START,
    catchup=True,
    retries=1000,
    retry_delay=timedelta(seconds=5),
)

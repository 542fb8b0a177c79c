"""The same query three times: by regions, with full restarts, and as plain tasks of Airflow with retries."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import DAG, task

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.restarts.delays import AIRFLOW_RETRY_DELAY
from weir_airflow.dag import dataflow_dag

FOLDER = os.environ["WEIR_BENCHMARK_FOLDER"]
"""Where the plain tasks keep their data."""

PARALLELISM = 2
SECONDS = 1.0
"""How long a stage takes unless a run says something else."""

COMMON = {"schedule": None, "start_date": datetime(2026, 1, 1, tzinfo=UTC)}
RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 999,
    "restart-strategy.fixed-delay.delay": "0 s",  # Airflow's delay after a kill is that of all three
}


def query(name, failover):
    """The query as a dataflow."""
    orders = source("orders", "flip1_work:orders", parallelism=PARALLELISM)
    items = source("items", "flip1_work:items", parallelism=PARALLELISM)
    inputs = {"orders": blocking(orders, by="order"), "items": blocking(items, by="order")}
    joined = Stage("joined", "flip1_work:joined", inputs, parallelism=PARALLELISM)
    revenue = Stage("revenue", "flip1_work:revenue", {"joined": blocking(joined, by="customer")})
    stages = [orders, items, joined, revenue, sink(revenue, "sums")]
    return Dataflow(name, stages, parameters={"seconds": SECONDS}, failover=failover)


region = dataflow_dag(query("region", "region"), restart=RESTARTS, **COMMON)
full = dataflow_dag(query("full", "full"), restart=RESTARTS, **COMMON)


@task
def step(stage, subtask, parallelism, params, run_id):
    """Run one subtask in a session of its own on the Connect server."""
    from flip1_work import Step, run
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(SparkConnectHook("spark_connect_weir").get_connection_url()).create()
    try:
        run(stage, Step(spark, f"{FOLDER}/{run_id}", subtask, parallelism, params), PARALLELISM)
    finally:
        spark.stop()


RETRIES = {"retries": 999, "retry_delay": AIRFLOW_RETRY_DELAY}

with DAG("plain", params={"seconds": SECONDS}, default_args=RETRIES, **COMMON) as plain:
    stages = {
        stage: step.override(task_id=stage).partial(stage=stage, parallelism=count).expand(subtask=list(range(count)))
        for stage, count in {"orders": PARALLELISM, "items": PARALLELISM, "joined": PARALLELISM, "revenue": 1}.items()
    }
    [stages["orders"], stages["items"]] >> stages["joined"] >> stages["revenue"]

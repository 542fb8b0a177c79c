"""The flights without Weir: five tasks by spark-submit or over Spark Connect, or one Spark application for all."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, task

SCRIPT = str(Path(__file__).parents[1] / "flights_by_hand.py")
FOLDER = os.environ["WEIR_BENCHMARK_FOLDER"]
"""Where these DAGs keep their data."""

COMMON = {
    "schedule": None,
    "start_date": datetime(2013, 1, 1, tzinfo=UTC),
    "params": {"copies": 1},
    "default_args": {"retries": 2},
}


def submitted(step, folder):
    """A task that runs a step by spark-submit. Not durable: after a clear, that would compute nothing."""
    options = {"day": "{{ ds }}", "copies": "{{ params.copies }}", "folder": f"{FOLDER}/{folder}"}
    return SparkSubmitOperator(
        task_id=step,
        conn_id="benchmark_submit",
        application=SCRIPT,
        application_args=[step, *(word for name, value in options.items() for word in (f"--{name}", value))],
        name=f"flights {step}",
        durable=False,
    )


@task
def over_connect(step, folder, params, ds):
    """Run a step in a session of its own on the Connect server."""
    from flights_by_hand import run
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(SparkConnectHook("spark_connect_weir").get_connection_url()).create()
    try:
        run(step, spark, ds, params["copies"], f"{FOLDER}/{folder}")
    finally:
        spark.stop()


def chained(clean, lookups, join, sums, report):
    """Set the order of the five steps."""
    [clean, lookups] >> join >> sums >> report


STEPS = ("clean", "lookups", "join", "sums", "report")

with DAG("by_hand_submit", **COMMON) as by_hand_submit:
    chained(*(submitted(step, "submit") for step in STEPS))

with DAG("by_hand_connect", **COMMON) as by_hand_connect:
    chained(*(over_connect.override(task_id=step)(step, "connect") for step in STEPS))

with DAG("one_application", **COMMON) as one_application:
    submitted("everything", "one")

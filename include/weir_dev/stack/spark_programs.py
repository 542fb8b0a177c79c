"""The programs of Spark in a local stack: a Connect server alone, or with a standalone cluster.

Invariant: whoever comes first leaves cores for the others; without that, one waits for the other for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir_dev.stack.airflow_environment import SPARK, SPARK_UI, spark_conf_folder
from weir_dev.stack.spark_cluster import (
    MASTER,
    WORKER,
    SparkCluster,
    executor_settings,
    secret_settings,
    write_defaults,
)
from weir_dev.stack.spark_server import SparkServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from weir_dev.stack.credentials import Credentials
    from weir_dev.stack.processes import Program
    from weir_dev.stack.state import StackRequest


def spark_programs(
    request: StackRequest,
    logs: Path,
    ports: Mapping[str, int],
    environment: Mapping[str, str],
    credentials: Credentials,
) -> tuple[Program, ...]:
    """All of Spark in the order in which it is started; `environment` must hold JAVA_HOME.

    Writes what jobs that a task submits start with.
    """
    cores = request.spark_cores
    on_cluster = executor_settings(cores) if request.spark_workers else {}
    secret = dict(secret_settings(credentials.spark_secret)) if request.spark_workers else {}
    write_defaults(spark_conf_folder(request.folder), cores, {**on_cluster, **secret})
    cluster = SparkCluster(
        folder=request.folder / "spark-cluster",
        logs=logs,
        ports=ports,
        workers=request.spark_workers,
        cores=cores,
        secret=credentials.spark_secret,
        environment=environment,
    )
    cluster.clear()
    server = SparkServer(
        folder=request.folder / "spark",
        log=logs / f"{SPARK}.log",
        port=ports[SPARK],
        ui_port=ports[SPARK_UI],
        cores=cores,
        token=credentials.spark_token,
        environment=environment,
        properties=cluster.properties if request.spark_workers else None,
        master=cluster.url if request.spark_workers else None,
        settings=on_cluster,
    )
    return (*(cluster.programs() if request.spark_workers else ()), server.program())


def is_of_spark(name: str) -> bool:
    """Report whether a program of this name is a part of Spark."""
    return name in {SPARK, MASTER} or name.startswith(f"{WORKER}-")

"""A standalone Spark cluster for tests: that of the local stack, on free ports. Invariant: nothing of it is left.

Its parts may be killed one by one; nobody starts them again.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from tests.servers.spark import await_ready

from weir.java import find_java
from weir_dev.ports import choose_ports
from weir_dev.stack.processes import ProcessRecord, record, stop
from weir_dev.stack.spark_cluster import (
    MASTER,
    SparkCluster,
    executor_settings,
    port_names,
    secret_settings,
    worker_name,
    write_defaults,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TestCluster:
    """A cluster that runs: its URL for `--master`, what an application should ask for, and its processes.

    Only an application with SPARK_CONF_DIR=`conf`, which has the cluster's secret, is accepted.
    """

    __test__ = False

    url: str
    settings: Mapping[str, str]
    conf: Path
    processes: Mapping[str, ProcessRecord]

    @property
    def master(self) -> ProcessRecord:
        """The master's process."""
        return self.processes[MASTER]

    def worker(self, number: int) -> ProcessRecord:
        """A worker's process; they count from 1."""
        return self.processes[worker_name(number)]

    def executors(self, number: int) -> list[ProcessRecord]:
        """The executors that a worker runs now; raises psutil.NoSuchProcess if the worker is gone."""
        children = psutil.Process(self.worker(number).pid).children(recursive=True)
        return [record("executor", child.pid) for child in children if _is_executor(child)]


@contextmanager
def running_cluster(folder: Path, workers: int = 2, cores: int = 2) -> Iterator[TestCluster]:
    """Start a cluster that writes below `folder` only, and stop it and all that it started.

    Raises AssertionError with the end of a log if it does not start.
    """
    environment = {**os.environ, **find_java(folder / "java", os.environ).environment(os.environ)}
    ports, secret = choose_ports(port_names(workers), {}), secrets.token_hex(16)
    cluster = SparkCluster(
        folder=folder / "cluster",
        logs=folder / "logs",
        ports=ports,
        workers=workers,
        cores=cores,
        secret=secret,
        environment=environment,
    )
    cluster.clear()
    write_defaults(folder / "conf", cores, dict(secret_settings(secret)))
    started: dict[str, ProcessRecord] = {}
    try:
        for program in cluster.programs():
            started[program.name] = program.start()
            await_ready(program, started[program.name])
        yield TestCluster(cluster.url, executor_settings(cores), folder / "conf", started)
    finally:
        left = stop(list(started.values()), _GRACE_SECONDS)
    if left:
        raise AssertionError(f"processes of the Spark cluster are left: {left}")


def _is_executor(process: psutil.Process) -> bool:
    try:
        return _EXECUTOR in process.cmdline()
    except psutil.Error:
        return False

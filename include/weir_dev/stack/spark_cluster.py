"""A standalone Spark cluster on the loopback interface: a master, workers, and what applications run there with.

Invariants: everything it writes is under its folder, and each of its programs is one process with one port for life.
Its processes and applications share a secret, which stands on no command line; without it nobody submits anything.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir_dev.files import make_private, write_atomically
from weir_dev.ports import LOOPBACK
from weir_dev.stack.processes import Program
from weir_dev.stack.spark_server import PROTECTION, spark_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


MASTER: Final = "spark-master"
MASTER_UI: Final = "spark-master-ui"
WORKER: Final = "spark-worker"
EXECUTOR_MEMORY: Final = "1g"

_WORKER_CORES: Final = 8
"""More than such a machine has: Spark gives cores to applications for as long as they last, and here the Connect
server and some submitted jobs run at once."""

_WORKER_MEMORY: Final = "12g"
"""Counted against the executors' heaps, which are never full at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """How to start it. `ports` has those of `port_names`; `cores` is what one application is given.

    `environment` must hold JAVA_HOME.
    """

    folder: Path
    logs: Path
    ports: Mapping[str, int]
    workers: int
    cores: int
    secret: str
    environment: Mapping[str, str]

    @property
    def properties(self) -> Path:
        """The file with the secret, for `--properties-file`."""
        return self.folder / "secret.properties"

    @property
    def url(self) -> str:
        """The master's URL for applications."""
        return master_url(self.ports)

    def clear(self) -> None:
        """Forget what an earlier cluster has left. A master that is started again finds its applications there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        make_private(self.folder)
        write_atomically(self.properties, "".join(f"{key} {value}\n" for key, value in secret_settings(self.secret)))

    def programs(self) -> tuple[Program, ...]:
        """The master, which the others have to find, then the workers."""
        return (self._master(), *(self._worker(number) for number in range(1, self.workers + 1)))

    def _master(self) -> Program:
        options = {
            "spark.deploy.defaultCores": str(self.cores),
            # Workers and applications outlive their master, and are known to the next one.
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self.folder / "recovery"),
            "spark.master.rest.enabled": "false",
            "spark.master.ui.decommission.allow.mode": "DENY",
        }
        port, ui_port = self.ports[MASTER], self.ports[MASTER_UI]
        return self._program(
            MASTER,
            "org.apache.spark.deploy.master.Master",
            ("--host", LOOPBACK, "--port", str(port), "--webui-port", str(ui_port)),
            {**options, **PROTECTION},
            is_ready=lambda: bool(_answer(ui_port)),
        )

    def _worker(self, number: int) -> Program:
        name = worker_name(number)
        port, ui_port = self.ports[name], self.ports[MASTER_UI]
        return self._program(
            name,
            "org.apache.spark.deploy.worker.Worker",
            (
                *("--host", LOOPBACK, "--port", str(port), "--webui-port", "0"),
                *("--cores", str(_WORKER_CORES), "--memory", _WORKER_MEMORY),
                *("--work-dir", str(self.folder / name / "work")),
                self.url,
            ),
            {"spark.worker.cleanup.enabled": "true", "spark.worker.cleanup.appDataTtl": "3600", **PROTECTION},
            is_ready=lambda: port in alive_workers(ui_port),
        )

    def _program(
        self,
        name: str,
        main_class: str,
        arguments: Iterable[str],
        options: Mapping[str, str],
        is_ready: Callable[[], bool],
    ) -> Program:
        folder = self.folder / name
        # Spark splits this as a shell would.
        words = [f'"-D{key}={value}"' for key, value in {**options, "java.io.tmpdir": str(folder / "tmp")}.items()]
        return Program(
            name=name,
            # It becomes the JVM, with the same pid. Spark's sbin scripts would start a daemon.
            command=(
                *(str(spark_home() / "bin" / "spark-class"), main_class),
                *("--properties-file", str(self.properties), *arguments),
            ),
            environment={
                **self.environment,
                "SPARK_HOME": str(spark_home()),
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_LOCAL_DIRS": str(folder / "tmp"),
                "SPARK_DAEMON_MEMORY": "512m",
                "SPARK_DAEMON_JAVA_OPTS": " ".join(words),
                "PYSPARK_PYTHON": sys.executable,
            },
            folder=folder,
            log=self.logs / f"{name}.log",
            grace_seconds=5.0,
            is_ready=is_ready,
            prepare=lambda: (folder / "tmp").mkdir(parents=True, exist_ok=True),
        )


def port_names(workers: int) -> tuple[str, ...]:
    """The ports that a cluster of so many workers needs; none for none."""
    return (MASTER, MASTER_UI, *map(worker_name, range(1, workers + 1))) if workers else ()


def worker_name(number: int) -> str:
    """The name of a worker's program; they count from 1."""
    return f"{WORKER}-{number}"


def master_url(ports: Mapping[str, int]) -> str:
    """The master's URL for applications."""
    return f"spark://{LOOPBACK}:{ports[MASTER]}"


def secret_settings(secret: str) -> tuple[tuple[str, str], ...]:
    """Return the settings of an application's driver that the cluster accepts; for files of their owner alone."""
    return (("spark.authenticate", "true"), ("spark.authenticate.secret", secret))


def executor_settings(cores: int) -> dict[str, str]:
    """Return the limits of an application: so many cores, one for each executor of a gigabyte."""
    return {
        "spark.cores.max": str(cores),
        "spark.executor.cores": "1",
        "spark.executor.memory": EXECUTOR_MEMORY,
        # Below the worker's folder, where an executor starts.
        "spark.executor.extraJavaOptions": "-Djava.io.tmpdir=.",
    }


def write_defaults(folder: Path, cores: int, more: Mapping[str, str]) -> None:
    """Write `spark-defaults.conf` for jobs that are submitted with SPARK_CONF_DIR=`folder`; their drivers use loopback.

    `more` may have secrets: the folder is its owner's alone. The files of their drivers go below it, too; what drivers
    that were killed have left there is deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    temporary = folder / "tmp"
    make_private(folder)
    temporary.mkdir()
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={temporary}"',
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        **PROTECTION,
        **more,
    }
    write_atomically(folder / "spark-defaults.conf", "".join(f"{key} {value}\n" for key, value in settings.items()))


def alive_workers(master_ui_port: int) -> frozenset[int]:
    """The ports of the workers that the master counts on; none if it does not answer."""
    workers = _answer(master_ui_port).get("workers", [])
    return frozenset(int(one["port"]) for one in workers if one["state"] == "ALIVE")


def _answer(master_ui_port: int) -> dict[str, Any]:
    """Return the master's state; empty if it does not answer or does not lead yet."""
    # Without a handler for proxies, which the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{LOOPBACK}:{master_ui_port}/json/", timeout=5) as answer:
            found = json.load(answer)
    except (OSError, ValueError):
        return {}
    return dict(found) if found.get("status") == "ALIVE" else {}

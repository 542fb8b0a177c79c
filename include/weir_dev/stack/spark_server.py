"""A Spark Connect server as a process of its own, on the loopback interface.

Invariants: everything it writes is under its folder, and a server that is started again has the port of the one before.
It answers only clients with its token, which stands on no command line and in no file of its own.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from weir_dev.ports import LOCALHOST, LOOPBACK, accepts_connections
from weir_dev.stack.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping


NAME = "spark"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  its name
"""Spark's own: the server refuses clients without this token."""

PROTECTION = {
    # Without a cluster, Spark makes the secret itself.
    "spark.authenticate": "true",
    # Whoever opens Spark's pages may not end anything there.
    "spark.ui.killEnabled": "false",
}
"""Of each process of Spark: every user of this machine can connect to its ports."""

_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkServer:
    """How to start the server. `environment` must hold JAVA_HOME.

    `master` is where its executors are, with `settings` for them; without one they are threads of the server. Settings
    that no other user of this machine may read are in the file `properties`.
    """

    folder: Path
    log: Path
    port: int
    ui_port: int
    cores: int
    token: str
    environment: Mapping[str, str]
    properties: Path | None = None
    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def program(self) -> Program:
        """The server for the keeper to start, watch and start again."""
        return Program(
            name=NAME,
            command=self.command(),
            environment=self._environment(),
            folder=self.folder,
            log=self.log,
            grace_seconds=8.0,
            prepare=self._prepare,
            is_ready=lambda: accepts_grpc(self.port),
        )

    def command(self) -> tuple[str, ...]:
        """`spark-submit` with every setting; it becomes the server's JVM, with the same pid."""
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.port": str(self.ui_port),
            "spark.local.dir": str(self.folder / "tmp"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.shuffle.partitions": str(2 * self.cores),
            "spark.log.level": "WARN",
            # What a write to a full disk has left open holds its room, deleted or not, until the JVM collects it.
            "spark.cleaner.periodicGC.interval": "1min",
            **PROTECTION,
            **self.settings,
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        temporary = f'"-Djava.io.tmpdir={self.folder / "tmp"}"'  # Spark splits this as a shell would
        return (
            str(spark_home() / "bin" / "spark-submit"),
            *("--class", _MAIN_CLASS),
            *("--master", self.master or f"local[{self.cores}]"),
            *("--name", "weir"),
            *("--driver-memory", "2g"),
            *("--driver-java-options", temporary),
            *(("--properties-file", str(self.properties)) if self.properties else ()),
            *options,
            "spark-internal",
        )

    def _environment(self) -> dict[str, str]:
        return {
            **self.environment,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": LOOPBACK,
            TOKEN_VARIABLE: self.token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def _prepare(self) -> None:
        """Delete the files that a killed server has left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        (self.folder / "warehouse").mkdir()


def connect_url(port: int, token: str) -> str:
    """Return the URL for clients of a server on this port."""
    return f"sc://{LOCALHOST}:{port}/;token={token}"


def spark_home() -> Path:
    """The folder of pyspark, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pyspark is not installed")
    return Path(found.origin).parent


def accepts_grpc(port: int, timeout_seconds: float = 1.0) -> bool:
    """Report whether a gRPC server answers on this port."""
    if not accepts_connections(port):
        return False
    import grpc  # noqa: PLC0415  takes half a second, and `weir status` never needs it

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{LOOPBACK}:{port}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=timeout_seconds)
        except grpc.FutureTimeoutError:
            return False
    return True

"""A Spark Connect server as a process of its own, on the loopback interface.

Invariants: everything it writes is under its folder, and a server that is started again has the port of the one before.
It answers only clients with its token, which stands on no command line and in no file of its own.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir_dev.ports import LOCALHOST, LOOPBACK, accepts_connections
from weir_dev.stack.processes import Program

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

_ANSWER_SECONDS = 60.0
"""How long a question may take; on a busy machine a server has not loaded all of its classes before."""

_EXTENDED = bytes([2 << 3, 2])
"""The field `explain_mode`, with which a query is planned down to what would run."""

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
            is_ready=SparkAnswers(self.port, self.token),
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


class SparkAnswers:
    """Asks a server to plan a query: one whose port accepts connections may need many seconds for its first session.

    Spark Connect's messages are written by hand, since its client would import pandas into the keeper.
    """

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._channel: Any = None
        self._answer: Any = None

    def __call__(self) -> bool:
        """Report whether it has answered; the next call asks again."""
        if self._answer is None and accepts_connections(self._port):
            self._ask()
        if self._answer is None or not self._answer.done():
            return False
        is_answered = self._answer.exception() is None
        self._channel.close()
        self._answer = None
        return is_answered

    def _ask(self) -> None:
        import grpc  # noqa: PLC0415  takes half a second, and `weir status` never needs it

        self._channel = grpc.insecure_channel(f"{LOOPBACK}:{self._port}", options=[("grpc.enable_http_proxy", 0)])
        method = self._channel.unary_unary("/spark.connect.SparkConnectService/AnalyzePlan")
        metadata = [("authorization", f"Bearer {self._token}")]
        self._answer = method.future(question(str(uuid.uuid4())), timeout=_ANSWER_SECONDS, metadata=metadata)


def question(session: str) -> bytes:
    """Return an AnalyzePlanRequest for a session of its own: how would `SELECT 1` run?"""
    sql = _field(10, _field(1, b"SELECT 1"))
    explain = _field(1, _field(1, sql)) + _EXTENDED
    return _field(1, session.encode()) + _field(2, _field(1, b"weir")) + _field(5, explain)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message that is shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content

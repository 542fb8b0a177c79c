"""A broker of Kafka for tests: one process that is its own controller, on the loopback interface alone.

Invariant: it writes below one folder, and what it had acknowledged is there after it was killed and started again.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic
from tests.servers.java import SMALL_JAVA, JavaServer, installed_jars

from weir.connections import Connection
from weir.java import find_java
from weir_dev.files import tail
from weir_dev.ports import LOOPBACK, accepts_connections, choose_ports

_START_SECONDS: Final = 60.0
_CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qg"
_MAIN: Final = "kafka.Kafka"
_FORMAT: Final = "kafka.tools.StorageTool"
_LOGGING: Final = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.dedupe.buffer.size": 4_194_304,
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
    "num.network.threads": 2,
    "num.io.threads": 2,
}


class Kafka:
    """A broker whose address stays the same over restarts."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._ports = choose_ports(["broker", "controller"], {})
        java = find_java(folder / "java", os.environ)
        self._environment = {**os.environ, **java.environment(os.environ)}
        self._java = str(java.home / "bin" / "java")
        self._path = os.pathsep.join((str(folder / "conf"), f"{installed_jars('kafka')}/*"))
        self._write_settings(settings)
        self.server = JavaServer(
            [*self._command(256), _MAIN, str(self._properties)], folder / "broker.log", self._environment
        )

    @property
    def address(self) -> str:
        """What clients call "bootstrap.servers"."""
        return f"{LOOPBACK}:{self._ports['broker']}"

    def connection(self, conn_id: str, **extra: object) -> Connection:
        """Return the Airflow connection to it."""
        return Connection(id=conn_id, kind="kafka", extra={"bootstrap.servers": self.address, **extra})

    def create_topic(self, name: str) -> str:
        """Make a topic of one partition under a name that begins so, and return the name."""
        made = f"{name}.{uuid.uuid4().hex}"
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.create_topics([NewTopic(made, 1, 1)])[made].result(_START_SECONDS)
        return made

    def format(self) -> None:
        """Make the files of an empty broker."""
        command = [*self._command(64), _FORMAT, "format", "-t", _CLUSTER, "-c", str(self._properties), "--standalone"]
        run = subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False, timeout=60)
        if run.returncode != 0:
            raise AssertionError(f"{run.stdout[-1000:]}{run.stderr[-3000:]}")

    def start(self) -> None:
        """Start it, and return when it answers."""
        self.server.start()
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.server.is_alive():
            if accepts_connections(self._ports["broker"]):
                return
            time.sleep(0.05)
        raise AssertionError(f"the broker did not start:\n{tail(self.server.log)}")

    def kill(self) -> None:
        """End it as a crash would."""
        self.server.kill()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def _command(self, megabytes: int) -> list[str]:
        return [self._java, f"-Xmx{megabytes}m", *SMALL_JAVA, "-cp", self._path]

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _write_settings(self, settings: Mapping[str, object]) -> None:
        controller = f"{LOOPBACK}:{self._ports['controller']}"
        given = {
            **_SETTINGS,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": self.folder / "data",
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "log4j2.properties").write_text(_LOGGING)


@contextmanager
def running_kafka(folder: Path, **settings: object) -> Iterator[Kafka]:
    """Start an empty broker that writes below `folder`, and end it; settings have _ for a dot. Raises JarsMissing."""
    broker = Kafka(folder, {name.replace("_", "."): value for name, value in settings.items()})
    broker.format()
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()

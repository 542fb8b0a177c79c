"""A Spark Connect server for tests: that of the local stack, on free ports. Invariant: nothing of it is left over."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.java import find_java
from weir_dev.ports import LOCALHOST, LOOPBACK, choose_ports
from weir_dev.stack.processes import ProcessRecord, send, stop
from weir_dev.stack.spark_server import SparkServer, connect_url

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from weir_dev.stack.processes import Program


_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class TestServer:
    """A server that runs: its port, the token of its clients, the URL of Spark's own pages, its log and its process."""

    __test__ = False

    port: int
    token: str
    ui_url: str
    log: Path
    leader: ProcessRecord

    @property
    def address(self) -> str:
        """The server's address, as the ledger records it."""
        return f"sc://{LOCALHOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for clients; more parameters may follow it."""
        return connect_url(self.port, self.token)

    @property
    def connection(self) -> dict[str, Any]:
        """The fields of an Airflow connection to it."""
        return {"conn_type": "spark_connect", "host": LOCALHOST, "port": self.port, "password": self.token}

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server's process."""
        send(self.leader, number)


@contextmanager
def running_server(
    folder: Path,
    cores: int = 2,
    *,
    collects_every: str = "10s",
    more_settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    master: str | None = None,
    properties: Path | None = None,
) -> Iterator[TestServer]:
    """Start a server that writes below `folder` only, and stop it and all that it started.

    So often as `collects_every` says it collects all garbage, and with it the checkpoints that nobody reads any more.
    `variables` are those of its environment besides this process's; `master` is where its executors are, and
    `properties` are Spark's settings for them. Raises AssertionError with the end of its log if it does not start.
    """
    ports = choose_ports(["connect", "ui"], {})
    environment = {
        **os.environ,
        **find_java(folder / "java", os.environ).environment(os.environ),
        **(variables or {}),
    }
    settings = {"spark.cleaner.periodicGC.interval": collects_every, **(more_settings or {})}
    token = secrets.token_hex(16)
    server = SparkServer(
        folder=folder / "spark",
        log=folder / "spark.log",
        port=ports["connect"],
        ui_port=ports["ui"],
        cores=cores,
        token=token,
        environment=environment,
        properties=properties,
        master=master,
        settings=settings,
    )
    program = server.program()
    leader = program.start()
    try:
        await_ready(program, leader)
        yield TestServer(server.port, token, f"http://{LOOPBACK}:{server.ui_port}", server.log, leader)
    finally:
        left = stop([leader], program.grace_seconds)
    if left:
        raise AssertionError(f"processes of the Spark server are left: {left}")


def await_ready(program: Program, leader: ProcessRecord) -> None:
    """Return when a program that was just started is ready; raises AssertionError with the end of its log."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and leader.is_alive():
        if program.is_ready():
            return
        time.sleep(0.1)
    raise AssertionError(f"{program.name} did not start:\n{program.log.read_text()[-3000:]}")

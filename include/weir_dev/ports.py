"""Free ports on the loopback interface. Invariant: the ports of one choice differ from each other."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


LOOPBACK = "127.0.0.1"

LOCALHOST = "localhost"
"""The name by which clients reach a Spark Connect server: pyspark sends a token without TLS to this name alone."""


def choose_ports(names: Iterable[str], preferred: Mapping[str, int]) -> dict[str, int]:
    """Return a free port for each name: the preferred one if it is free, else any."""
    with ExitStack() as held:
        # All are held until the last is chosen.
        return {name: _bind(held, preferred.get(name, 0)) for name in names}


def accepts_connections(port: int) -> bool:
    """Report whether a process listens on this port."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((LOOPBACK, port)) == 0


def _bind(held: ExitStack, port: int) -> int:
    # A listener on all interfaces does not keep everybody from binding to the loopback address.
    for wanted in (0,) if port and accepts_connections(port) else (port, 0):
        server = held.enter_context(socket.socket())
        # Or a port would count as taken for a minute after its server has gone.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((LOOPBACK, wanted))
            server.listen()  # only now has nobody else this port
        except OSError:
            continue
        return int(server.getsockname()[1])
    raise OSError("no port is free on the loopback interface")

"""A balancer of TCP connections over servers on the loopback interface; it stands for HAProxy before api-servers.

Invariant: a connection stays with one server, and ends when that server is found not to answer.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from weir_dev.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


CONNECT_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
"""How long a server may take to answer a check; one that is frozen still takes connections."""

PAUSE_SECONDS: Final = 0.5
FALL: Final = 2
"""So many checks fail one after the other before a server counts as down."""

_CHECK: Final = b"GET /api/v2/version HTTP/1.0\r\n\r\n"
_BYTES: Final = 65536


@dataclass(slots=True)
class _Server:
    port: int
    failures: int = 0
    connections: set[asyncio.StreamWriter] = field(default_factory=set)


class Balancer:
    """Passes each connection on to the next server that is not down; if all are, to any that takes it."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._servers = [_Server(port) for port in ports]
        self._turn = count()

    async def serve(self, port: int) -> None:
        """Listen on `port` until this task is cancelled."""
        checks = [asyncio.create_task(self._watch(server)) for server in self._servers]
        try:
            async with await asyncio.start_server(self._pass_on, LOOPBACK, port) as listener:
                await listener.serve_forever()
        finally:
            for check in checks:
                check.cancel()

    async def _watch(self, server: _Server) -> None:
        while True:
            server.failures = 0 if await _answers(server.port) else server.failures + 1
            if server.failures == FALL:
                for writer in server.connections:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for server in self._candidates():
            with suppress(OSError, TimeoutError):
                there = await _connected(server.port)
                break
        else:
            writer.transport.abort()
            return
        writers = {writer, there[1]}
        server.connections |= writers
        try:
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            server.connections -= writers
            for each in writers:
                each.close()

    def _candidates(self) -> Iterator[_Server]:
        first = next(self._turn) % len(self._servers)
        in_turn = self._servers[first:] + self._servers[:first]
        yield from sorted(in_turn, key=lambda server: server.failures >= FALL)


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection(LOOPBACK, port), CONNECT_SECONDS)


async def _answers(port: int) -> bool:
    try:
        reader, writer = await _connected(port)
        try:
            writer.write(_CHECK)
            return b" 200 " in await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
        finally:
            writer.close()
    except (OSError, TimeoutError):
        return False


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()


if __name__ == "__main__":
    listening, *behind = (int(word) for word in sys.argv[1:])
    with suppress(KeyboardInterrupt):
        asyncio.run(Balancer(behind).serve(listening))

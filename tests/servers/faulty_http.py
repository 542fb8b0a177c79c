"""A real HTTP proxy that breaks chosen requests, between a client and a server that know nothing of it.

Invariant: a request that no fault matches is passed on and answered unchanged. What was seen is in `requests`.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

SLOW_DOWN = (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
INTERNAL_ERROR = (500, b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>")

CONFLICT = (409, b"<Error><Code>ConditionalRequestConflict</Code><Message>A conflicting operation.</Message></Error>")
"""Answers of S3, as status and body."""

_COPIED = "x-amz-copy-source"
_GATHER_SECONDS = 30.0
_DROPPED = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request that reached the proxy; `path` has the query, `copied` is what an S3 is asked to copy there."""

    method: str
    path: str
    copied: str = ""


@dataclass(slots=True, kw_only=True)
class _Fault:
    method: str
    pattern: str
    act: Callable[[_Exchange], None]
    skip: int
    times: int | None
    is_due: Callable[[], bool] = lambda: True
    injected: int = 0


class FaultyHttp:
    """A proxy before `target`; faults match a method and a shell pattern over path and query, and are tried in order.

    `skip` lets the first matching requests pass, `times` (None: all) says how many then fail.
    """

    def __init__(self, target: str) -> None:
        self.requests: list[Request] = []
        self._target = urlsplit(target)
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """The proxy's own address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def injected(self) -> int:
        """How many requests were broken since the last `heal`."""
        with self._lock:
            return sum(fault.injected for fault in self._faults)

    @contextmanager
    def running(self) -> Iterator[FaultyHttp]:
        """Serve until the end of the block; requests that hang are let go."""
        self._thread.start()
        try:
            yield self
        finally:
            self._released.set()
            self._server.shutdown()
            self._server.server_close()

    def answer(
        self, answer: tuple[int, bytes], method: str = "*", path: str = "*", *, skip: int = 0, times: int | None = 1
    ) -> None:
        """Answer at once, with status and body; the server does not see the request."""
        self._add(method, path, lambda exchange: exchange.answer(*answer), skip, times)

    def reset(self, method: str = "*", path: str = "*", *, skip: int = 0, times: int | None = 1) -> None:
        """Reset the connection; the server does not see the request."""
        self._add(method, path, lambda exchange: exchange.reset(), skip, times)

    def lose_answer(
        self,
        method: str = "*",
        path: str = "*",
        *,
        skip: int = 0,
        times: int | None = 1,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the server carry the request out, and reset the connection instead of passing its answer on.

        `then` is called before the client notices.
        """
        self._add(method, path, lambda exchange: exchange.lose_answer(then), skip, times)

    def hold_back(self, meanwhile: Callable[[], None], method: str = "*", path: str = "*", *, skip: int = 0) -> None:
        """Pass one request on after `meanwhile` was called."""

        def wait(exchange: _Exchange) -> None:
            meanwhile()
            exchange.pass_on()

        self._add(method, path, wait, skip, 1)

    def cut_answer(
        self, after: int, method: str = "*", path: str = "*", *, skip: int = 0, times: int | None = 1
    ) -> None:
        """Pass on the head and the first `after` bytes of the body, then reset the connection."""
        self._add(method, path, lambda exchange: exchange.cut_answer(after), skip, times)

    def hang(self, method: str = "*", path: str = "*", *, skip: int = 0, times: int | None = 1) -> None:
        """Take the request and never answer."""
        self._add(method, path, lambda _exchange: self._hang(), skip, times)

    def drop_header(
        self, name: str, method: str = "*", path: str = "*", *, skip: int = 0, times: int | None = 1
    ) -> None:
        """Pass the request on without a header, as to a server that does not know it."""
        self._add(method, path, lambda exchange: exchange.pass_on(without=name), skip, times)

    def gather(self, parties: int, method: str = "*", path: str = "*", *, skip: int = 0) -> None:
        """Hold requests back until `parties` of them have come, then pass them on."""
        together = threading.Barrier(parties)

        def wait(exchange: _Exchange) -> None:
            together.wait(_GATHER_SECONDS)
            exchange.pass_on()

        self._add(method, path, wait, skip, parties)

    def sometimes(self, seed: int, probability: float) -> None:
        """Break a part of all requests: refuse them for load, reset them, or lose their answers."""
        chance = random.Random(seed)  # faults need no secrecy

        def act(exchange: _Exchange) -> None:
            kinds = (partial(exchange.answer, *SLOW_DOWN), exchange.reset, exchange.lose_answer)
            chance.choice(kinds)()

        self._faults.append(
            _Fault(method="*", pattern="*", act=act, skip=0, times=None, is_due=lambda: chance.random() < probability)
        )

    def heal(self) -> None:
        """Forget all faults and all requests."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def count(self, method: str = "*", path: str = "*") -> int:
        """How many requests have come."""
        with self._lock:
            return sum(fnmatchcase(one.method, method) and fnmatchcase(one.path, path) for one in self.requests)

    def forward(self, exchange: _Exchange) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server: status, headers and body."""
        connection = http.client.HTTPConnection(str(self._target.hostname), self._target.port, timeout=60)
        try:
            connection.request(exchange.method, exchange.path, exchange.body, exchange.headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def handle(self, exchange: _Exchange) -> None:
        """Pass a request on, or inject a fault."""
        fault = self._fault_for(exchange)
        if fault is None:
            exchange.pass_on()
        else:
            fault.act(exchange)

    def _add(self, method: str, path: str, act: Callable[[_Exchange], None], skip: int, times: int | None) -> None:
        with self._lock:
            self._faults.append(_Fault(method=method, pattern=path, act=act, skip=skip, times=times))

    def _fault_for(self, exchange: _Exchange) -> _Fault | None:
        with self._lock:
            self.requests.append(Request(exchange.method, exchange.path, exchange.handler.headers.get(_COPIED, "")))
            for fault in self._faults:
                if not fnmatchcase(exchange.method, fault.method) or not fnmatchcase(exchange.path, fault.pattern):
                    continue
                if fault.skip:
                    fault.skip -= 1
                elif (fault.times is None or fault.injected < fault.times) and fault.is_due():
                    fault.injected += 1
                    return fault
            return None

    def _hang(self) -> None:
        self._released.wait()


class _Server(ThreadingHTTPServer):
    proxy: FaultyHttp
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that close connections are expected."""


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request, and the ways to answer it."""

    proxy: FaultyHttp
    handler: _Handler
    body: bytes
    method: str = field(init=False)
    path: str = field(init=False)
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.method = str(self.handler.command)
        self.path = self.handler.path
        self.headers = {name: value for name, value in self.handler.headers.items() if name.lower() != "expect"}

    def pass_on(self, without: str = "") -> None:
        self.headers = {name: value for name, value in self.headers.items() if name.lower() != without.lower()}
        self._send(*self.proxy.forward(self))

    def answer(self, status: int, body: bytes) -> None:
        self._send(status, [("Content-Type", "application/xml")], b"" if self.method == "HEAD" else body)

    def lose_answer(self, then: Callable[[], None] = lambda: None) -> None:
        self.proxy.forward(self)
        then()
        self.reset()

    def cut_answer(self, after: int) -> None:
        status, headers, body = self.proxy.forward(self)
        self._send(status, headers, body, after)
        self.reset()

    def reset(self) -> None:
        self.handler.wfile.flush()
        linger = struct.pack("ii", 1, 0)  # a reset, not an orderly end
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.handler.connection.close()
        self.handler.close_connection = True

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int | None = None) -> None:
        self.handler.send_response_only(status)
        given = dict(headers)
        length = next((value for name, value in given.items() if name.lower() == "content-length"), str(len(body)))
        for name, value in headers:
            if name.lower() not in _DROPPED:
                self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", length if self.method == "HEAD" else str(len(body)))
        self.handler.end_headers()
        self.handler.wfile.write(body[:cut])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        """Read one request of any method, and pass it to the proxy."""
        with suppress(ConnectionError, TimeoutError):
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.server.proxy.handle(_Exchange(proxy=self.server.proxy, handler=self, body=body))
            with suppress(ValueError):  # closed by a reset
                self.wfile.flush()
            return
        self.close_connection = True

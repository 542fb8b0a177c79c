"""The balancer before two servers of which one is down, or takes connections and answers nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.servers import balancer as balancing
from tests.servers.balancer import FALL, Balancer

from weir_dev.ports import accepts_connections, choose_ports


class Handler(BaseHTTPRequestHandler):
    """Answers with the name of the server; /frozen is never answered, as nothing is by a server that is frozen."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append(self.path)
        self.server.goes_on.wait()
        data = self.server.name.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):  # of a check that was given up
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, name):
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.seen, self.goes_on = name, [], threading.Event()
        self.goes_on.set()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def end(self):
        self.goes_on.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def servers():
    with ExitStack() as ends:
        started = [Server(name) for name in ("one", "two")]
        for server in started:
            ends.callback(server.end)
        yield started


@pytest.fixture
def balancer(servers):
    """The port of a balancer before the servers."""
    port = choose_ports(["api"], {})["api"]
    command = [sys.executable, "-P", balancing.__file__, *(str(p) for p in (port, *map(port_of, servers)))]
    with subprocess.Popen(command) as process:
        wait_for(lambda: accepts_connections(port))
        yield port
        process.terminate()


def port_of(server):
    return server.server_port


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(port, path="/x"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


def test_connections_are_spread_over_the_servers(balancer):
    assert sorted(ask(balancer) for _ in range(4)) == ["one", "one", "two", "two"]


def test_a_server_that_is_down_gets_none(balancer, servers):
    servers[0].end()
    assert {ask(balancer) for _ in range(4)} == {"two"}


def test_a_connection_ends_when_its_server_does_not_answer_and_the_next_goes_to_the_other(balancer, servers):
    for server in servers:
        server.goes_on.clear()
    client = socket.create_connection(("127.0.0.1", balancer), timeout=60)
    client.sendall(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n")
    wait_for(lambda: any("/held" in server.seen for server in servers))
    frozen, other = sorted(servers, key=lambda server: "/held" not in server.seen)
    other.goes_on.set()
    assert client.recv(1) == b""
    client.close()
    assert {ask(balancer) for _ in range(4)} == {other.name}
    frozen.goes_on.set()
    wait_for(lambda: ask(balancer) == frozen.name)


def test_if_all_are_down_any_that_takes_it_gets_the_connection():
    tried = Balancer([1, 2])
    for server in tried._servers:
        server.failures = FALL
    assert sorted(server.port for server in tried._candidates()) == [1, 2]

"""A target that accepts a connection and never answers is away after a while; one that is slow is waited for."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg2
import pytest
from tests.messages.kinds import of_kind
from tests.weir.sinks.test_postgres_target import Sink, database  # noqa: F401  a fixture

from weir import connections
from weir.connections import Connection
from weir.dataflow import files
from weir.sinks import Outcome, TargetAway, folders
from weir.sinks.targets import postgres, postgres_watch
from weir.sinks.targets.files_on_s3 import S3FilesTarget
from weir.testing.sink_contract import LocalReach, Versions


@contextmanager
def silent():
    """A socket that accepts and never answers; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def full_pooler():
    """A pooler whose connections to the server are all taken: it logs clients in, and queries wait; gives its port."""

    def serve():
        with suppress(OSError):
            client, _ = server.accept()
            client.recv(1024)
            told = [f"{name}\0{value}\0".encode() for name, value in _TOLD.items()]
            messages = [(b"R", bytes(4)), *((b"S", each) for each in told), (b"Z", b"I")]
            client.sendall(b"".join(kind + (len(body) + 4).to_bytes(4, "big") + body for kind, body in messages))
            while client.recv(1024):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


_TOLD = {"client_encoding": "UTF8", "DateStyle": "ISO", "server_version": "16.0", "standard_conforming_strings": "on"}


class Relay:
    """Hands bytes on to a server and back, until it is told to fall silent; then it accepts, and keeps all."""

    def __init__(self, port):
        self.upstream, self.is_silent = port, threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = [self._server]
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                here, _ = self._server.accept()
                there = socket.create_connection(("127.0.0.1", self.upstream))
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                if self.is_silent.is_set():
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def relay(database):  # noqa: F811
    made = Relay(database.port)
    yield made
    made.close()


@pytest.fixture
def sink(request, tmp_path, database):  # noqa: F811
    made = Sink(tmp_path, database, f"silent_{abs(hash(request.node.nodeid)) % 10**8}")
    yield made
    made.query(f"drop table if exists {made.table}")


@pytest.fixture
def quick(monkeypatch):
    """Short times, as in a server that is asked for minutes."""
    monkeypatch.setattr(postgres_watch, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(postgres_watch, "ANSWER_SECONDS", 0.3)
    monkeypatch.setitem(connections.LIBPQ, "connect_timeout", 2)  # libpq takes no less


def test_a_database_that_accepts_and_never_answers_is_away(sink, quick):
    with silent() as port, pytest.raises(TargetAway, check=of_kind("sinks.postgres_away")):
        sink.target(replace(sink.connection, port=port)).prepare(sink.version(1, (1, "a")), None)


def test_a_database_that_falls_silent_in_the_middle_of_a_commit_is_away(sink, relay, quick, monkeypatch):
    target, version = sink.target(replace(sink.connection, port=relay.port)), sink.version(1, (1, "a"))
    token, load = target.prepare(version, None), postgres.as_csv

    def falling_silent(*arguments):
        relay.is_silent.set()
        return load(*arguments)

    monkeypatch.setattr(postgres, "as_csv", falling_silent)
    with pytest.raises(TargetAway, check=of_kind("sinks.postgres_unanswered", silences="3")):
        target.commit(version, token)
    monkeypatch.setattr(postgres, "as_csv", load)
    relay.close()  # the server sees that its client is gone, and rolls back
    assert sink.publish(sink.target(), version) is Outcome.COMMITTED


def test_a_slow_commit_of_a_database_that_answers_others_is_waited_for(sink, quick, monkeypatch):
    target, version = sink.target(), sink.version(1, (1, "a"))
    token, asked, ask = target.prepare(version, None), threading.Semaphore(0), postgres_watch.answers
    monkeypatch.setattr(postgres_watch, "answers", lambda found: (ask(found), asked.release())[0])
    sink.query(
        f"create function {sink.table}_slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(1); return new; end $$"
    )
    sink.query(f"create trigger slow before insert on {sink.table} execute function {sink.table}_slow()")
    assert target.commit(version, token) is Outcome.COMMITTED
    assert all(asked.acquire(timeout=1) for _ in range(4))
    sink.query(f"drop function {sink.table}_slow cascade")


def test_a_refusal_is_an_answer(database, quick):  # noqa: F811
    parameters = replace(database, database="none").for_libpq()
    assert postgres_watch.answers(parameters)
    with silent() as port:
        assert not postgres_watch.answers({**parameters, "port": port})
    with pytest.raises(psycopg2.OperationalError, match="refused"):
        psycopg2.connect(**{**parameters, "port": port})
    assert postgres_watch.answers({**parameters, "port": port})  # its connections break by themselves


def test_a_pooler_that_has_queries_wait_for_a_connection_answers(database, quick):  # noqa: F811
    """The only connection that it has may be that of the transaction."""
    with full_pooler() as port:
        found = replace(database, port=port, extra={"sslmode": "disable", "gssencmode": "disable"})
        assert postgres_watch.answers(found.for_libpq())


def test_an_s3_that_accepts_and_never_answers_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "S3_SECONDS", 0.6)
    with silent() as port:
        extra = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        account = Connection(id="aws_id", kind="aws", login="k", password="s", extra=extra)
        options = files("s3://lake/delays", conn_id="aws_id").options
        target = S3FilesTarget(options, LocalReach(tmp_path, account))
        with pytest.raises(TargetAway, check=of_kind("sinks.folder_away")):
            target.prepare(Versions(tmp_path).version(1, [(1, "a")]), None)

"""A function, and a real HTTP server, as receivers."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.weir.notifications import receiving

from weir.connections import Connection
from weir.dataflow import callback, webhook
from weir.errors import Misconfigured, Retryable
from weir.notifications import channels
from weir.notifications.channels import send

EVENT = {"version": 1, "id": "ladder/checkpoint_completed/1", "kind": "checkpoint_completed"}
MODULE = "tests.weir.notifications.receiving"


class Server(ThreadingHTTPServer):
    """Answers each POST with `status`, and keeps what it got."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.got, self.is_silent, self.is_over = 204, [], False, threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), json.loads(body)))
        if self.server.is_silent:
            self.server.is_over.wait(20)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_given):
        pass


@pytest.fixture(autouse=True)
def nothing_received():
    receiving.reset()


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.is_over.set()
    made.shutdown()
    made.server_close()
    thread.join()


def post(server, receiver=None, **more):
    found = {"kind": "http", "host": "127.0.0.1", "port": server.server_port, **more}
    send(receiver or webhook("ops"), EVENT, lambda conn_id: Connection(id=conn_id, **found), dict)


def test_a_function_gets_the_notification_and_the_options_of_its_declaration():
    send(callback(f"{MODULE}:tell", who="ops"), EVENT, None, dict)
    assert receiving.got == [("ops", EVENT)]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no.such.module:tell", "there is no module 'no'"),
        (f"{MODULE}:nothing", "has no function 'nothing'"),
        (f"{MODULE}:not_callable", "is no function and no class"),
    ],
)
def test_a_function_that_is_not_there_is_named(address, message):
    with pytest.raises(Misconfigured, match=message):
        send(callback(address), EVENT, None, dict)


def test_a_webhook_gets_json_with_the_id_in_a_header(server):
    post(server, webhook("ops", "/weir"))
    ((path, headers, body),) = server.got
    assert (path, body) == ("/weir", EVENT)
    assert headers["Idempotency-Key"] == EVENT["id"]
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers


def test_a_password_is_a_bearer_token_and_with_a_login_basic_authentication(server):
    post(server, password="s3cret", extra={"X-Team": "ops", "timeout": 3, "headers": {"X-More": "1"}})
    post(server, login="me", password="s3cret")
    (_, bearer, _), (_, basic, _) = server.got
    assert bearer["Authorization"] == "Bearer s3cret"
    assert (bearer["X-Team"], bearer["X-More"]) == ("ops", "1")
    assert "timeout" not in bearer
    assert basic["Authorization"] == f"Basic {base64.b64encode(b'me:s3cret').decode()}"


def test_the_host_may_be_a_whole_url(server):
    post(server, webhook("ops", "/b"), host=f"http://127.0.0.1:{server.server_port}/a/", port=None)
    assert server.got[0][0] == "/a/b"


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500])
def test_any_other_answer_than_2xx_is_no_receipt(server, status):
    server.status = status
    with pytest.raises(Retryable, match=f"connection 'ops' at 127.0.0.1 answered {status}"):
        post(server)
    assert len(server.got) == 1


def test_a_server_that_does_not_answer_is_waited_for_only_so_long(server, monkeypatch):
    monkeypatch.setattr(channels, "HTTP_SECONDS", 0.1)
    server.is_silent = True
    with pytest.raises(Retryable, match="did not answer: ReadTimeout"):
        post(server)


def test_a_server_that_is_not_there_is_tried_later(server):
    server.server_close()
    with pytest.raises(Retryable, match="did not answer: ConnectError") as caught:
        post(server, webhook("ops", "/secret-path"), password="s3cret")
    assert "s3cret" not in str(caught.value)
    assert "secret-path" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"kind": "postgres"}, {"host": ""}])
def test_a_connection_that_leads_to_no_webhook_is_named(server, wrong):
    with pytest.raises(Misconfigured, match=r"connection 'ops' .* expected type http with a host"):
        post(server, **wrong)


def test_a_header_that_http_does_not_allow_is_named_without_its_value(server):
    with pytest.raises(Misconfigured, match="correct host, port and extra fields") as caught:
        post(server, extra={"X-Team": "a\nb-s3cret"})
    assert "s3cret" not in str(caught.value)

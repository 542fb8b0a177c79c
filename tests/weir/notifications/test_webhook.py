"""A real HTTP server as a receiver, and what an Airflow connection says about the call."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.messages.kinds import of_kind

from weir.connections import Connection
from weir.dataflow import webhook
from weir.errors import Misconfigured, Retryable
from weir.notifications import webhook as webhooks
from weir.notifications.delivery import send

EVENT = {"version": 1, "id": "ladder/checkpoint_completed/1", "kind": "checkpoint_completed"}


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
    with pytest.raises(Retryable, check=of_kind("notifications.answered_otherwise", status_code=status)):
        post(server)
    assert len(server.got) == 1


def test_a_server_that_does_not_answer_is_waited_for_only_so_long(server, monkeypatch):
    monkeypatch.setattr(webhooks, "HTTP_SECONDS", 0.1)
    server.is_silent = True
    with pytest.raises(Retryable, check=of_kind("notifications.silent", name="ReadTimeout")):
        post(server)


def test_a_server_that_is_not_there_is_tried_later(server):
    server.server_close()
    with pytest.raises(Retryable, check=of_kind("notifications.silent", name="ConnectError")) as caught:
        post(server, webhook("ops", "/secret-path"), password="s3cret")
    assert "s3cret" not in str(caught.value)
    assert "secret-path" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"kind": "postgres"}, {"host": ""}])
def test_a_connection_that_leads_to_no_webhook_is_named(server, wrong):
    with pytest.raises(Misconfigured, check=of_kind("notifications.not_http", connection_id="ops")):
        post(server, **wrong)


def test_a_header_that_http_does_not_allow_is_named_without_its_value(server):
    with pytest.raises(Misconfigured, check=of_kind("notifications.not_possible")) as caught:
        post(server, extra={"X-Team": "a\nb-s3cret"})
    assert "s3cret" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of this machine that its own key has signed: (certificate, key)."""
    folder = tmp_path_factory.mktemp("certificate")
    paths = [str(folder / name) for name in ("certificate.pem", "key.pem")]
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ops -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def serve_tls(server, certificate, *, knows_clients=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if knows_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])
    server.socket = context.wrap_socket(server.socket, server_side=True)


def test_the_server_s_certificate_is_verified_as_the_connection_says(server, certificate):
    serve_tls(server, certificate)
    with pytest.raises(Retryable, check=of_kind("notifications.silent")):
        post(server, kind="https")
    post(server, kind="https", extra={"verify": certificate[0]})
    post(server, kind="https", extra={"verify": False})
    assert len(server.got) == 2
    assert "verify" not in server.got[0][1]


def test_the_client_shows_the_certificate_of_the_connection(server, certificate):
    serve_tls(server, certificate, knows_clients=True)
    with pytest.raises(Retryable, check=of_kind("notifications.silent")):
        post(server, kind="https", extra={"verify": certificate[0]})
    post(server, kind="https", extra={"verify": certificate[0], "cert": certificate})
    assert len(server.got) == 1


@pytest.mark.parametrize("extra", [{"verify": "/nowhere/ca.pem"}, {"cert": "/nowhere/me.pem"}, {"cert": 7}])
def test_a_certificate_that_cannot_be_used_is_named(server, extra):
    with pytest.raises(Misconfigured, check=of_kind("notifications.certificates_unusable", connection_id="ops")):
        post(server, kind="https", extra=extra)


@pytest.mark.parametrize("named", ["proxy", "proxies", "by scheme"])
def test_the_proxy_of_the_connection_is_called(server, named):
    proxy = f"http://127.0.0.1:{server.server_port}"
    extra = {"proxies": {"http": proxy}} if named == "by scheme" else {named: proxy}
    post(server, webhook("ops", "/weir"), host="hooks.invalid", port=None, extra=extra)
    assert server.got[0][0] == "http://hooks.invalid/weir"


def test_the_timeout_of_the_connection_counts(server):
    server.is_silent = True
    with pytest.raises(Retryable, check=of_kind("notifications.silent", name="ReadTimeout")):
        post(server, extra={"timeout": 0.1})
    with pytest.raises(
        Misconfigured, check=of_kind("notifications.timeout_malformed", connection_id="ops", timeout="soon")
    ):
        post(server, extra={"timeout": "soon"})


def test_an_extra_field_that_a_webhook_cannot_obey_is_refused_by_its_name(server):
    with pytest.raises(
        Misconfigured,
        check=of_kind("notifications.extra_refused", connection_id="ops", refused=["check_response", "max_redirects"]),
    ):
        post(server, extra={"max_redirects": 3, "check_response": False})
    assert server.got == []

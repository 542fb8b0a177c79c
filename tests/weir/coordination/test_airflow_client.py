"""The client of Airflow's api-server, against an HTTP server that answers as it is asked to."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.messages.kinds import of_kind

from weir.coordination.airflow_client import AirflowClient, path_of
from weir.errors import Misconfigured, Retryable


class Handler(BaseHTTPRequestHandler):
    """Gives token-1, token-2 ... to the account `worker`, and answers `/STATUS` with that status."""

    def do_POST(self):
        account = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if account != {"username": "worker", "password": "secret"}:
            return self.answer(401, {"detail": "wrong"})
        self.server.tokens += 1
        return self.answer(201, {"access_token": f"token-{self.server.tokens}"})

    def do_PATCH(self):
        self.do_GET()

    def do_GET(self):
        self.server.seen.append(self.headers["Authorization"])
        if self.path == "/break":
            return self.connection.shutdown(socket.SHUT_RDWR)
        if self.path == "/auth/token":
            return self.answer(self.server.anonymous, {"access_token": "all-admins"})
        if self.path == "/newest" and self.headers["Authorization"] != f"Bearer token-{self.server.newest}":
            return self.answer(403, {"detail": "an old token"})
        code = int(self.path[1:4]) if self.path[1:4].isdigit() else 200
        return self.answer(code, {"path": self.path})

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.tokens, running.newest, running.anonymous, running.seen = 0, 1, 200, []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def client_of(server):
    made = []

    def make(login="worker", password="secret", **more):  # noqa: S107  the test server's own
        client = AirflowClient(f"http://127.0.0.1:{server.server_port}/", login, password, **more)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def test_one_token_serves_all_calls(client_of, server):
    client = client_of()
    assert client.ask("GET", "/one", limit=5) == {"path": "/one?limit=5"}
    assert client.ask("GET", "/two") == {"path": "/two"}
    assert (server.tokens, server.seen) == (1, ["Bearer token-1", "Bearer token-1"])


def test_a_refused_token_is_renewed_once(client_of, server):
    client = client_of()
    client.log_in()
    server.newest = 2
    assert client.ask("GET", "/newest") == {"path": "/newest"}
    server.newest = 9
    with pytest.raises(Misconfigured, check=of_kind("coordination.permission_missing", method="GET", path="/newest")):
        client.ask("GET", "/newest")
    assert server.tokens == 3


def test_a_password_without_a_login_is_the_token_and_is_not_renewed(client_of, server):
    client = client_of(None, "my-token")
    with pytest.raises(
        Misconfigured,
        check=of_kind("coordination.permission_missing", login="(token)", source="the Airflow connection weir_api"),
    ):
        client.call("GET", "/401")
    assert (server.tokens, server.seen) == (0, ["Bearer my-token"])


def test_without_an_account_airflow_is_asked_for_an_anonymous_token(client_of, server):
    assert client_of(None, None).ask("GET", "/x") == {"path": "/x"}
    assert server.seen == [None, "Bearer all-admins"]
    server.anonymous = 401
    with pytest.raises(Misconfigured, check=of_kind("coordination.token_refused", login="an anonymous caller")):
        client_of(None, None).log_in()


def test_a_wrong_password_names_the_setting_that_has_it(client_of):
    with pytest.raises(Misconfigured, check=of_kind("coordination.token_refused", source="WEIR_API")):
        client_of(password="wrong", source="WEIR_API").log_in()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, Misconfigured) for code in (401, 403, 422)),
        *((code, Retryable) for code in (408, 429, 500, 503)),
    ],
)
def test_the_kind_of_an_error_says_whether_to_try_again(client_of, code, kind):
    with pytest.raises(kind, match=str(code)):
        client_of().call("GET", f"/{code}")


@pytest.mark.parametrize("code", [404, 405, 409])
def test_the_caller_may_interpret_what_is_missing_or_in_conflict(client_of, code):
    client = client_of()
    assert client.call("GET", f"/{code}").status_code == code
    with pytest.raises(
        Misconfigured, match=f"{code}.*{code}", check=of_kind("coordination.airflow_failed", method="GET")
    ):
        client.ask("GET", f"/{code}")


def test_a_server_that_does_not_answer_is_retryable():
    client = AirflowClient("http://127.0.0.1:9", "worker", "secret")
    with pytest.raises(Retryable, check=of_kind("coordination.airflow_silent", method="POST", path="/auth/token")):
        client.log_in()
    client.close()


DOWN = "http://127.0.0.1:9"


@pytest.mark.parametrize("is_first", [True, False])
def test_of_several_servers_one_that_answers_is_asked(server, is_first):
    up = f"http://127.0.0.1:{server.server_port}"
    first, second = (up, DOWN) if is_first else (DOWN, up)
    client = AirflowClient(first, "worker", "secret", others=[second])
    assert client.ask("PATCH", "/one") == {"path": "/one"}
    assert client.base_url == up
    client.close()


def test_when_none_of_several_servers_answers_it_is_retryable():
    client = AirflowClient(DOWN, "worker", "secret", others=[DOWN])
    with pytest.raises(Retryable, check=of_kind("coordination.airflow_silent", method="POST", path="/auth/token")):
        client.log_in()
    client.close()


def test_only_what_changes_nothing_is_asked_again_after_a_server_may_have_carried_it_out(server):
    url = f"http://127.0.0.1:{server.server_port}"
    client = AirflowClient(url, None, "token", others=[url])
    for method, times in (("GET", 2), ("PATCH", 1)):
        server.seen.clear()
        with pytest.raises(Retryable, check=of_kind("coordination.airflow_silent", method=method, path="/break")):
            client.call(method, "/break")
        assert len(server.seen) == times
    client.close()


def test_the_environment_s_proxy_is_not_used_for_the_loopback(client_of, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert client_of().ask("GET", "/x") == {"path": "/x"}


def test_segments_of_a_path_are_quoted():
    assert path_of("dags", "a/b", "manual__2026-01-01T00:00:00+00:00", "~") == (
        "/dags/a%2Fb/manual__2026-01-01T00%3A00%3A00%2B00%3A00/~"
    )

"""`weir state serve`: what is answered over HTTP, and with which status what is not."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection

import pytest
import uvicorn
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

from weir.cli.state_service import StateService, read_tokens
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.ledger.database.tables import LeaseRow
from weir.reading.lookups import RowGroupCache

ROWS = "/v1/dataflows/ladder/states/history/rows"


class Served:
    """A service at a port of its own, and the clock by which it looks for a newer epoch."""

    def __init__(self, services):
        self.now = 0.0
        self._service = StateService(services, ["ladder.history"], [b"a token"], RowGroupCache(), lambda: self.now)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(uvicorn.Config(self._service.app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def close(self):
        self._server.should_exit = True
        self._thread.join()
        self._service.close()

    def ask(self, path, body=None, **more):
        return ask(self._socket.getsockname(), path, body, **more)


def ask(address, path, body=None, bearer="a token", **headers):
    connection = HTTPConnection(*address, timeout=20)
    given = {"Authorization": f"Bearer {bearer}", "Connection": "close", **headers}
    connection.request("GET" if body is None else "POST", path, body, given)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None, answer.headers


@pytest.fixture
def days(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return run_days(keeps_state(ReaderWorld(tmp_path, ladder())), history(retained_checkpoints=1), 1, 2)


@pytest.fixture
def served(days):
    with opened_services() as services:
        found = Served(services)
        yield found
        found.close()


def test_keys_and_pages_are_answered_at_the_newest_epoch(served):
    status, found, _ = served.ask(f"{ROWS}?key=N1")
    assert (status, found["rows"], found["epoch"], found["stale"]) == (200, [{"tail": "N1", "n": 10}], epoch(2), False)
    assert served.ask(f"{ROWS}?key=N3")[1]["rows"] == []
    body = json.dumps({"keys": [["N2"], [None], ["N9"]]})
    assert served.ask(f"{ROWS}:get", body)[1]["rows"] == [{"tail": "N2", "n": 2}, {"tail": None, "n": 6}, None]
    found = served.ask(f"{ROWS}?prefix=N7&limit=5")[1]
    assert (found["rows"], found["next_after"]) == ([{"tail": "N7", "n": 7}], None)


def test_what_has_not_changed_is_answered_304_until_a_newer_epoch_is_looked_for(days, served):
    _, _, headers = served.ask(f"{ROWS}?key=N3")
    tag = {"If-None-Match": headers["ETag"]}
    assert served.ask(f"{ROWS}?key=N3", **tag)[0] == 304
    days.run(3)
    assert served.ask(f"{ROWS}?key=N3", **tag)[0] == 304
    served.now += 1
    status, found, _ = served.ask(f"{ROWS}?key=N3", **tag)
    assert (status, found["epoch"], found["rows"]) == (200, epoch(3), [{"tail": "N3", "n": 30}])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{ROWS}?key=N1&key=N2", None, 400),
        (ROWS, None, 400),
        (f"{ROWS}?prefix=N1&limit=0", None, 400),
        (f"{ROWS}?prefix=N1&limit=many", None, 400),
        (f"{ROWS}:get", "{}", 400),
        (f"{ROWS}:get", '{"keys": [[5]]}', 400),
        (f"{ROWS}:get", json.dumps({"keys": [["N1"]] * 1001}), 413),
        ("/v1/dataflows/ladder/states/other/rows?key=N1", None, 404),
        ("/v1/dataflows/other/states/history/rows?key=N1", None, 404),
        (f"{ROWS}?key=N1&epoch={epoch(1)}", None, 410),
        (f"{ROWS}?key=N1&epoch={epoch(9)}", None, 404),
    ],
)
def test_what_cannot_be_answered_is_said_with_its_status(served, path, body, status):
    found, answer, _ = served.ask(path, body)
    assert (found, bool(answer["error"])) == (status, True)


def test_an_epoch_that_is_gone_is_told_with_those_that_are_kept(served):
    assert "2 of 20130102T000000Z" in served.ask(f"{ROWS}?key=N1&epoch={epoch(1)}")[1]["error"]


def test_while_a_correction_runs_the_rows_of_before_are_answered_as_stale_unless_fresh_ones_are_asked_for(days, served):
    days.airflow.engine.plan[epoch(1)] = {"N1": 100, "N2": 200}
    for subtask in (0, 1):
        days.airflow.clear_by_hand("scheduled__2013-01-01", "aircraft-known", subtask)
    for subtask in (0, 1):
        days.airflow.step(days.airflow.task("scheduled__2013-01-01", "aircraft-known", subtask))
    status, found, _ = served.ask(f"{ROWS}?key=N2")
    assert (status, found["epoch"], found["stale"], found["rows"]) == (200, epoch(2), True, [{"tail": "N2", "n": 2}])
    assert served.ask(f"{ROWS}?key=N2&fresh=true")[0] == 503
    assert served.ask(f"{ROWS}?key=N2&epoch={epoch(2)}")[0] == 503
    days.airflow.run_until_quiet()
    served.now += 1
    status, found, _ = served.ask(f"{ROWS}?key=N2&fresh=true")
    assert (status, found["stale"], found["rows"]) == (200, False, [{"tail": "N2", "n": 200}])


def test_the_command_serves_until_it_is_interrupted(days, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("a token\n")
    words = ("state", "serve", "ladder.history", "--tokens", str(tokens), "--port", "0")
    command = [sys.executable, "-m", "weir.cli.main", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = next(line for line in process.stderr if "running on" in line)
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1])
            assert ask(("127.0.0.1", port), f"{ROWS}?key=N1")[1]["rows"] == [{"tail": "N1", "n": 10}]
        finally:
            process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "Traceback" not in rest
    with days.ledger.transaction() as session:
        assert list(session.scalars(select(LeaseRow))) == []


def test_without_a_token_nothing_is_answered(served):
    assert served.ask(f"{ROWS}?key=N1", bearer="another")[0] == 401
    assert served.ask(f"{ROWS}?key=N1", bearer="")[0] == 401


def test_the_leases_of_one_epoch_are_held_and_end_with_the_service(days):
    def leases():
        with days.ledger.transaction() as session:
            return len(list(session.scalars(select(LeaseRow))))

    with opened_services() as services:
        found = Served(services)
        for _ in range(3):
            found.now += 1
            assert found.ask(f"{ROWS}?key=N1")[0] == 200
            assert leases() == 2
        found.close()
    assert leases() == 0


def test_tokens_that_others_can_read_are_refused(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("one\n\ntwo\n")
    path.chmod(0o644)
    with pytest.raises(Misconfigured, check=of_kind("cli.tokens_readable_by_others", path=path)):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == (b"one", b"two")
    path.write_text("\n")
    with pytest.raises(Misconfigured, check=of_kind("cli.tokens_missing")):
        read_tokens(path)

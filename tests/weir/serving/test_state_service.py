"""`weir state serve`: what is answered over HTTP, and with which status what is not."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection

import pyarrow as pa
import pytest
import uvicorn
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.messages.kinds import of_kind
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

import weir
from weir.cli.state_server import guarded, read_tokens, served_states
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.ledger.database.tables import LeaseRow
from weir.reading.lookups import RowGroupCache
from weir.reading.state_opening import StateReader, WantedState
from weir.rebuild.rebuild import rebuild
from weir.serving.served import ServedState
from weir.serving.state_service import PATHS, StateService

KEYS = ["N1", "N2", "N3", "N4", "N5", "N7"]
ROWS = "/v1/dataflows/ladder/states/history/rows"


class Served:
    """A service at a port of its own, and the clock by which it looks for a newer epoch."""

    def __init__(self, services, *named):
        self.now = self.passes = 0.0
        is_served = served_states(services, named)
        self._service = StateService(StateReader(services), is_served, RowGroupCache(), self._clock)
        self._socket = socket.create_server(("127.0.0.1", 0))
        app = guarded(self._service, [b"a token"])
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def _clock(self):
        self.now += self.passes
        return self.now

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
    found = answer.read()
    connection.close()
    is_json = answer.headers.get("Content-Type") == "application/json"
    return answer.status, json.loads(found, parse_constant=fail) if is_json else found, answer.headers


def fail(constant):
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture(params=[1])
def days(tmp_path, monkeypatch, request):
    """Two days; parametrized by the number of checkpoints that are retained."""
    use(monkeypatch, tmp_path)
    flow = history(retained_checkpoints=request.param)
    return run_days(keeps_state(ReaderWorld(tmp_path, ladder())), flow, 1, 2)


all_retained = pytest.mark.parametrize("days", [2], indirect=True)


@pytest.fixture
def served(days):
    with opened_services() as services:
        found = Served(services, "ladder.history")
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


def aircraft(days, day, *subtasks):
    """Run tasks of a day that keep the state, and none that comes after them."""
    for subtask in subtasks:
        days.airflow.step(days.airflow.task(f"scheduled__2013-01-{day:02d}", "aircraft-known", subtask))


def test_rows_that_may_be_rolled_back_are_answered_only_where_they_are_asked_for(days, served):
    days.airflow.dag_run(3)
    days.airflow.step(days.airflow.task("scheduled__2013-01-03", "flights"))
    aircraft(days, 3, 0, 1)
    found = {}
    for isolation in ("committed", "provisional"):
        answer = served.ask(f"{ROWS}?key=N3&isolation={isolation}")[1]
        found[isolation] = answer["epoch"], answer["rows"], answer["stale"]
    assert found == {
        "committed": (epoch(2), [], False),
        "provisional": (epoch(3), [{"tail": "N3", "n": 30}], False),
    }
    named = f"{ROWS}?key=N3&epoch={epoch(3)}"
    assert (served.ask(named)[0], served.ask(f"{named}&isolation=provisional")[0]) == (503, 200)
    days.airflow.run_until_quiet()
    assert served.ask(named)[1]["rows"] == [{"tail": "N3", "n": 30}]
    assert served.ask(f"{ROWS}?key=N3&isolation=some")[0] == 400


@all_retained
@pytest.mark.parametrize("other", [{}, {"N1": 100, "N2": 200, "N3": "deleted", "N4": 400, "N5": 500, "N7": 700}])
def test_half_of_what_a_person_clears_is_not_answered_and_an_equal_half_is(days, served, other):
    days.airflow.engine.plan[epoch(2)].update(other)
    days.airflow.clear_by_hand("scheduled__2013-01-02", "aircraft-known", 0)
    aircraft(days, 2, 0)
    found = {}
    for asked in ("", f"&epoch={epoch(2)}", "&isolation=provisional"):
        status, answer, _ = served.ask(f"{ROWS}?key=N2{asked}")
        found[asked] = (status, answer.get("epoch"), answer.get("stale"))
    assert found == {
        "": (200, epoch(1 if other else 2), bool(other)),
        f"&epoch={epoch(2)}": (503, None, None) if other else (200, epoch(2), False),
        "&isolation=provisional": (200, epoch(2), False),
    }
    days.airflow.clear_by_hand("scheduled__2013-01-02", "aircraft-known", 1)
    aircraft(days, 2, 1)  # of another clear: its other half may be to come
    days.airflow.clear_by_hand("scheduled__2013-01-02", "weir_close")
    days.airflow.run_until_quiet()
    served.now += 1
    answer = served.ask(f"{ROWS}?key=N2")[1]
    assert (answer["epoch"], answer["stale"], answer["rows"][0]["n"]) == (epoch(2), False, 200 if other else 2)


def rebuilt(days):
    engine = days.airflow.engine
    days.lose_ledger()
    days.airflow.engine = engine
    rebuild(days.services)


def clear_both(days, number, *subtasks):
    """Clear both subtasks at once, whose keys get other numbers, and run some of them."""
    days.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, number)
    for subtask in (0, 1):
        days.airflow.clear_by_hand("scheduled__2013-01-02", "aircraft-known", subtask)
    aircraft(days, 2, *subtasks)


HALVES = {
    "closed": lambda _days: None,
    "cleared before": lambda days: clear_both(days, 300, 0, 1),
    "half cleared before": lambda days: clear_both(days, 300, 0),
    "rebuilt": rebuilt,
}


@all_retained
@pytest.mark.parametrize("before", HALVES)
def test_half_of_a_clear_is_not_answered_whatever_was_before(days, before):
    clear_both(days, 200, 0, 1)
    days.airflow.run_until_quiet()
    HALVES[before](days)
    clear_both(days, 400, 1)
    with opened_services() as services:
        served = Served(services, "ladder")
        body = json.dumps({"keys": [[key] for key in KEYS]})
        status, found, _ = served.ask(f"{ROWS}:get", body)
        numbers = {row["n"] for row in found.get("rows", []) if row}
        assert (status, found["stale"], len(numbers & {200, 300, 400})) == (200, True, 0)
        assert found["epoch"] == epoch(1)
        served.close()


def test_rows_as_arrow_say_the_rest_in_their_schema(served):
    asked = {"Accept": "application/vnd.apache.arrow.stream"}
    body = json.dumps({"keys": [["N2"], ["N9"], [None]]})
    status, found, headers = served.ask(f"{ROWS}:get", body, **asked)
    assert (status, headers["Content-Type"]) == (200, asked["Accept"])
    table = pa.ipc.open_stream(found).read_all()
    assert table.to_pylist() == [{"tail": "N2", "n": 2}, {"tail": None, "n": 6}]
    assert json.loads(table.schema.metadata[b"weir"])["epoch"] == epoch(2)
    table = pa.ipc.open_stream(served.ask(f"{ROWS}?prefix=N9", **asked)[1]).read_all()
    assert (table.num_rows, table.schema.names) == (0, ["tail", "n"])
    assert json.loads(table.schema.metadata[b"weir"])["next_after"] is None
    assert served.ask(f"{ROWS}?key=N2")[2]["ETag"] != served.ask(f"{ROWS}?key=N2", **asked)[2]["ETag"]


def test_a_request_that_lasts_too_long_is_refused_and_goes_on_when_it_is_asked_again(served):
    served.passes = 4.0  # at each look at the clock
    body = json.dumps({"keys": [["N1"], ["N2"], ["N3"], ["N4"]]})
    status, found, headers = served.ask(f"{ROWS}:get", body)
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "10 s" in found["error"]
    served.passes = 0.0
    assert served.ask(f"{ROWS}:get", body)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (f"{ROWS}:get", "[" * 200_000, {}, 400),
        (f"{ROWS}:get", json.dumps({"keys": [["\ud800"]]}), {}, 400),
        (f"{ROWS}:get", json.dumps({"keys": [[{"a": "b" * 900_000}]]}), {}, 400),
        (f"{ROWS}?key=N1&epoch=0001-01-01T00:00:00%2B10:00", None, {}, 404),
        (f"{ROWS}?prefix=N1&after=N1", None, {}, 400),
        (f"{ROWS}?prefix=N1&after=%5B%22N1%22%5D", None, {}, 200),
        (f"{ROWS}?key=N1", None, {"If-None-Match": "*"}, 304),
    ],
)
def test_no_request_is_more_than_the_service_can_answer(served, path, body, headers, status):
    found, answer, _ = served.ask(path, body, **headers)
    assert found == status
    assert len(str(answer)) < 3_000


def test_a_tag_that_a_proxy_has_weakened_is_known(served):
    tag = served.ask(f"{ROWS}?key=N1")[2]["ETag"]
    assert served.ask(f"{ROWS}?key=N1", **{"If-None-Match": f'"other", W/{tag}'})[0] == 304


def test_a_ledger_that_is_none_is_said_without_where_it_is(days, served):
    days.ledger.close()
    for file in days.folder.glob("ledger.db*"):
        file.write_bytes(b"no database" * 500)
    served.now += 1
    status, found, _ = served.ask(f"{ROWS}?key=N1")
    assert (status, str(days.folder) in found["error"]) == (503, False)


def test_without_names_what_is_declared_queryable_is_served(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    days = run_days(keeps_state(ReaderWorld(tmp_path, ladder())), history(), 1)
    with opened_services() as services:
        found = Served(services)
        status, said, _ = found.ask(f"{ROWS}?key=N1")
        assert (status, "queryable=True" in said["error"]) == (404, True)
        run_days(days, history(queryable=True), 2)
        assert found.ask(f"{ROWS}?key=N1")[1]["rows"] == [{"tail": "N1", "n": 10}]
        found.close()


@pytest.mark.parametrize(
    ("named", "kind"), [("other", "ledger.dataflow_unknown"), ("ladder.other", "reading.state_unknown")]
)
def test_a_name_that_the_ledger_does_not_know_is_refused_before_anything_is_served(days, named, kind):
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        served_states(days.services, ["ladder.history", named])


def test_an_epoch_is_closed_only_when_nobody_reads_it_any_more(days):
    now = [0.0]
    wanted = WantedState(dataflow="ladder", name="history", of_closed=True)
    state = ServedState(StateReader(days.services), wanted, RowGroupCache(), lambda: now[0])
    with state.at(None) as before:
        days.run(3)
        now[0] += 1
        with state.at(None) as after:
            assert (before.opened.epoch, after.opened.epoch) == (epoch(2), epoch(3))
            state.close()
            assert (before.get(["N3"]), after.get(["N3"])) == (None, {"tail": "N3", "n": 30})
    for each in (before, after):
        with pytest.raises(Misconfigured, match="closed"):
            each.get(["N3"])


@all_retained
def test_a_service_without_leases_looks_again_where_a_file_has_gone_meanwhile(days):
    by = StateReader(days.services, is_leasing=False)
    service = StateService(by, lambda *_: None, RowGroupCache(most_bytes=0), lambda: 0.0)
    with TestClient(Starlette(routes=[Route(PATHS["GET"], service.answer)])) as client:
        assert client.get(f"{ROWS}?key=N1").json()["rows"] == [{"tail": "N1", "n": 10}]
        with weir.open("ladder", epoch(2), state="history") as state:
            before = [file.path for part in state.partitions for file in part.files if file.epoch == epoch(2)]
        days.airflow.engine.plan[epoch(2)] = {"N1": 100, "N2": 200}
        days.airflow.clear_run_by_hand("scheduled__2013-01-02")
        days.airflow.run_until_quiet()
        for path in before:
            days.store.delete(path)
        assert client.get(f"{ROWS}?key=N1").json()["rows"] == [{"tail": "N1", "n": 100}]
        assert client.get(f"{ROWS}?key=N1&epoch={epoch(2)}").json()["rows"] == [{"tail": "N1", "n": 100}]


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
        found = Served(services, "ladder")
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

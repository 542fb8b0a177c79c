"""The page about state: the dry run of a restore and the row of a key, as the commands have them."""

from __future__ import annotations

import html
import json
import re

import httpx
import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.command_line import invoked
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days

from weir.ledger.database.tables import DataflowRow, LeaseRow
from weir.requests.request import REQUESTS
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def world():
    """Three days of real Parquet state, of which the second was computed again, and a savepoint."""
    with fast_folder() as folder:
        world = keeps_state(ReaderWorld(folder, history()))
        world.airflow.engine.plan[epoch(2)][HOSTILE] = 1
        run_days(world, history(), 1, 2, 3)
        create(world.services, SavepointRequest("ladder", 2, name="before"))
        world.airflow.engine.plan[epoch(2)]["N2"] = 22
        world.airflow.clear_run_by_hand("scheduled__2013-01-02")
        world.airflow.run_until_quiet()
        yield world
        world.ledger.close()


@pytest.fixture(scope="module")
def requests_dag(airflow_home, enter_dags):
    """The DAG of requests, in Airflow's database."""
    from airflow.api.common.delete_dag import delete_dag

    file, bag = enter_dags("weir_upkeep.py", "from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag\n")
    yield
    file.unlink()
    for dag_id in bag.dags:  # other tests look at all DAGs
        delete_dag(dag_id)


@pytest.fixture
def get(api_url, tokens, world, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(world.folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{world.folder}/ledger.db")

    def ask(user="reader", **asked):
        headers = {"Cookie": f"_token={tokens[user]}"}
        return httpx.get(
            f"{api_url}/weir/dags/dag/state", params={"dataflow": "ladder", **asked}, headers=headers, timeout=60
        )

    return ask


def facts(world):
    with world.ledger.transaction() as session:
        row = session.get_one(DataflowRow, "ladder")
        return row.lineage, row.revision, session.query(LeaseRow).count()


def test_a_dry_run_is_that_of_the_command_and_changes_nothing(get, world):
    before = facts(world)
    told = html.unescape(get(restore=4).text)
    said = json.loads(invoked("restore", "ladder", "before", "--dry-run", "--json").stdout)
    assert said["stale"]
    for each in (said["source"], *said["later_runs"], *(each["region"] for each in said["stale"])):
        assert each in told
    assert f"lineage {said['lineage']}" in told
    assert said["looked_at"][:13].replace("T", " ") in told
    assert facts(world) == before


@pytest.mark.parametrize("number", ["99", "0", "-1", "9" * 30, "s3://elsewhere/x", "before", HOSTILE])
def test_no_other_place_is_opened_and_what_is_not_there_is_answered_with_what_there_is(get, number):
    answer = get(restore=number)
    assert answer.status_code in (404, 422)
    assert HOSTILE not in answer.text or answer.headers["content-type"] == "application/json"
    if number == "99":
        assert "4 (savepoint" in answer.text


def test_the_row_of_a_key_is_that_of_the_command_at_the_newest_epoch_an_earlier_one_or_in_a_checkpoint(get, world):
    before = facts(world)
    for asked, words in (
        ({"key": "N1"}, ("N1",)),
        ({"key": "N1", "epoch": "2013-01-01"}, ("N1", "--epoch", "2013-01-01")),
        ({"key": "N2", "checkpoint": "1"}, ("N2", "--checkpoint", "1")),
        ({"key": "N2", "checkpoint": "4"}, ("N2", "--checkpoint", "before")),
    ):
        told = get(state="history", **asked)
        assert told.status_code == 200, told.text
        said = json.loads(invoked("state", "get", "ladder", "history", *words, "--json").stdout)
        assert f'<dd class="code">{said["row"]["n"]}</dd>' in told.text
        assert f"at the end of {said['run']}" in told.text
        assert said["looked_at"][:13].replace("T", " ") in told.text
    revision = facts(world)[1] - before[1]
    get(state="history", key="N1")
    assert facts(world)[1] - before[1] == revision  # a command takes leases, the page takes none


def test_a_key_may_be_null_hostile_or_nowhere(get):
    null = get(state="history", key="", null="0", epoch="2013-01-01")
    assert '<dd class="code">6</dd>' in null.text
    hostile = get(state="history", key=HOSTILE, epoch="2013-01-02")
    assert '<dd class="code">1</dd>' in hostile.text
    assert HOSTILE not in hostile.text
    assert "it has no row of this key" in get(state="history", key="N99").text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"state": "histroy", "key": "N1"}, "history"),
        ({"state": "history"}, "tail"),
        ({"state": "history", "key": ["N1", "N2"]}, "tail"),
        ({"state": "history", "key": "N1", "epoch": "2013-02-30"}, "20130103T000000Z"),
        ({"state": "history", "key": "N1", "checkpoint": "99"}, "checkpoint 99"),
        ({"state": HOSTILE, "key": "N1"}, "history"),
    ],
)
def test_what_cannot_be_looked_up_is_told_on_the_page(get, asked, said):
    answer = get(**asked)
    assert answer.status_code == 404
    assert said in answer.text
    assert "Look in the store" in answer.text
    assert HOSTILE not in answer.text


@pytest.fixture
def press(api_url, tokens, requests_dag, monkeypatch):
    """Send a form of a page of this Airflow, of which `worker` is one of the operators."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", api_url)
    monkeypatch.setenv("AIRFLOW__WEIR__OPERATORS", "anna, worker")

    def send(form, user="worker"):
        headers = {"Cookie": f"_token={tokens[user]}", "Origin": api_url}
        return httpx.post(f"{api_url}/weir/dags/dag/requests", data=form, headers=headers, timeout=60)

    return send


def forms_of(page):
    """What the buttons of a page would ask for, by verb."""
    forms = re.findall(r'<form class="acts" method="post".*?</form>', page, re.S)
    fields = [dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)) for form in forms]
    return {each["verb"]: each for each in fields}


def requests_made():
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return [row.conf for row in session.query(DagRun).filter_by(dag_id=REQUESTS).order_by(DagRun.id)]


def test_an_operator_asks_for_a_savepoint_and_below_its_dry_run_for_a_restore(get, press):
    assert set(forms_of(get("worker").text)) == {"savepoint"}
    forms = forms_of(get("worker", restore=4).text)
    said = json.loads(invoked("restore", "ladder", "before", "--dry-run", "--json").stdout)
    assert (forms["restore"]["hash"], forms["restore"]["what"]) == (said["hash"], "4")
    for form in forms.values():
        answer = press(form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/weir/dags/dag/state")
    assert [(each["verb"], each["name"]) for each in requests_made()] == [
        ("restore", "ladder"),
        ("savepoint", "ladder"),
    ]
    followed = get("worker", dataflow="").text
    assert "waits for a worker" in followed
    assert '<main data-follow="2">' in followed


@pytest.mark.parametrize(("user", "operators"), [("reader", "reader,worker"), ("worker", "anna")])
def test_who_may_not_edit_or_is_no_operator_can_only_look(get, press, monkeypatch, user, operators):
    forms = forms_of(get("worker", restore=4).text)
    monkeypatch.setenv("AIRFLOW__WEIR__OPERATORS", operators)
    before = requests_made()
    shown = get(user, restore=4).text
    assert forms_of(shown) == {}
    assert "weir restore ladder 4</code>" in shown
    assert [press(form, user).status_code for form in forms.values()] == [403, 403]
    assert requests_made() == before


@pytest.mark.parametrize(
    ("changed", "status"), [({"hash": "0" * 16}, 409), ({"what": "s3://x/y"}, 404), ({"name": HOSTILE}, 404)]
)
def test_what_was_not_shown_is_not_asked_for(get, press, changed, status):
    form = forms_of(get("worker", restore=4).text)["restore"]
    before = requests_made()
    answer = press({**form, **changed})
    assert answer.status_code == status
    assert HOSTILE not in answer.text
    assert requests_made() == before


def test_what_is_restored_already_would_change_nothing(get, world):
    restore(world.services, RestoreRequest("ladder", "before"))
    assert "nothing would change" in get(restore=4).text

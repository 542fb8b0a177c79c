"""Pages in a browser: served by Airflow's real API to users who may read the DAG; what they show is the documents."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import World, ladder

from weir.ledger.database.tables import AttemptRow, FailedBeginRow, ResultRow, RunRow
from weir.ledger.failed_begins import record_failed_begin
from weir.ledger.housekeeping import ALL as ALL_DATAFLOWS
from weir.ledger.housekeeping import UPKEEP, note_done
from weir.ledger.ledger import Ledger

PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}
HOSTILE = '<script>alert("x")</script>'
DAY = "scheduled__2013-01-02"


@pytest.fixture(scope="module")
def lived():
    """Three days of a small dataflow, of which the second has a lost result and a hostile error."""
    with fast_folder() as folder:
        world = World(folder, ladder())
        world.run_days(1, 2, 3)
        with world.ledger.transaction("ladder") as session:
            run = session.scalars(select(RunRow.id).where(RunRow.run_id == DAY)).one()
            query = select(ResultRow.folder).where(ResultRow.run == run, ResultRow.stage == "clean")
            (gone,) = session.scalars(query.where(ResultRow.subtask == 0))
            row = session.scalars(select(AttemptRow).where(AttemptRow.run == run, AttemptRow.region == "routes")).one()
            row.state, row.error = "failed", HOSTILE
            for result in session.scalars(select(ResultRow).where(ResultRow.run == run, ResultRow.stage == "routes")):
                result.state = "lost"
        world.store.delete_folder(gone)
        yield folder
        world.ledger.close()


@pytest.fixture
def get(api_url, lived, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(lived / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{lived}/ledger.db")

    def ask(path, user="reader", **asked):
        headers = {}
        if user:
            login = {"username": user, "password": PASSWORDS[user]}
            token = httpx.post(f"{api_url}/auth/token", json=login, timeout=30).json()["access_token"]
            headers = {"Cookie": f"_token={token}"}
        return httpx.get(f"{api_url}/weir/{path}", params=asked or None, headers=headers, timeout=60)

    return ask


ALL = (
    "dataflows",
    "dags/dag/dataflow",
    f"dags/dag/run?run_id={DAY}",
    f"dags/dag/results?run_id={DAY}&dataflow=ladder",
)


@pytest.mark.parametrize("path", ALL)
def test_a_page_is_for_users_who_may_read_and_loads_nothing_from_elsewhere(get, path):
    assert get(path, user=None).status_code == 401
    answer = get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    loaded = re.findall(r'(?:src|<link rel="stylesheet" href)="([^"]*)"', answer.text)
    assert loaded
    for each in loaded:
        assert each.startswith("/weir/static/")
        assert get(each.removeprefix("/weir/")).status_code == 200
    assert not re.search(r"<style|style=|<script(?! src=)|onclick", answer.text)


def test_what_a_page_names_of_itself_is_there_and_nothing_else_is_served(get):
    assert get("static/pages.js").headers["content-type"].startswith("text/javascript")
    assert get("static/drawing.css").headers["content-type"].startswith("text/css")
    assert get("static/app.py").status_code == 404
    assert get("static/..%2Froutes.py").status_code == 404


def test_a_run_shows_what_the_ledger_knows_and_what_the_store_has_once_it_is_asked(get):
    by_ledger = get("dags/dag/run", run_id=DAY).text
    looked = get("dags/dag/run", run_id=DAY, look="true").text
    assert "By what the ledger knows" in by_ledger
    assert not re.search(r"raw-clean\[0\]</th><td></td><td class=\"nowrap\">runs again", by_ledger)
    assert re.search(r"raw-clean\[0\]</th><td></td><td class=\"nowrap\">runs again", looked)
    assert "Each result was looked for in the store at" in looked


def test_a_run_shows_what_a_failure_would_restart(get):
    asked = get("dags/dag/run", run_id=DAY, fail="joined[1]")
    assert "What if joined[1] failed" in asked.text
    unknown = get("dags/dag/run", run_id=DAY, fail="joind[1]")
    assert unknown.status_code == 404
    assert "joined" in unknown.text


def test_results_say_who_has_read_them_why_they_are_kept_and_what_their_loss_would_restart(get):
    page = get("dags/dag/results", run_id=DAY, dataflow="ladder").text
    assert "kept: " in page
    assert "joined[0]" in page
    (lost,) = set(re.findall(r'href="([^"]*lost=clean%5B1%5D)"', page))
    assert "What if clean[1] were lost" in get(unescape(lost).removeprefix("/weir/")).text
    assert get("dags/dag/results", run_id=DAY, dataflow="other").status_code == 404


def test_what_keeps_the_bytes_of_a_dataflow_is_told_when_it_is_asked(get):
    assert "What keeps them" in get("dags/dag/dataflow").text
    assert "for published versions" in get("dags/dag/dataflow", kept="true").text


def test_without_upkeep_the_page_of_all_dataflows_says_so(get, lived):
    assert "Upkeep was never done" in get("dataflows").text
    ledger = Ledger.open(f"sqlite:///{lived}/ledger.db")
    for at, late in ((datetime.now(UTC), False), (datetime.now(UTC) - timedelta(hours=1), True)):
        with ledger.transaction(ALL_DATAFLOWS) as session:
            note_done(session, UPKEEP, ALL_DATAFLOWS, at)
        assert ("is the DAG weir_upkeep there" in get("dataflows").text) is late
    ledger.close()


def test_a_run_of_which_every_try_failed_before_it_was_registered_has_a_story(get, lived):
    ledger = Ledger.open(f"sqlite:///{lived}/ledger.db")
    with ledger.transaction("ladder") as session:
        record_failed_begin(
            session,
            FailedBeginRow(
                dataflow="ladder",
                epoch="20130109T000000Z",
                dag_id="dag",
                run_id="scheduled__2013-01-09",
                task_id="clean",
                map_index=0,
                try_number=1,
                failed_at=datetime.now(UTC),
                failure="fatal",
                error=HOSTILE,
            ),
        )
    ledger.close()
    answer = get("dags/dag/task", run_id="scheduled__2013-01-09", task_id="clean", map_index="0")
    assert answer.status_code == 200
    assert HOSTILE in unescape(answer.text)
    assert HOSTILE not in answer.text
    assert get("dags/other/task", run_id="scheduled__2013-01-09", task_id="clean").status_code == 404


def test_hostile_texts_are_text(get):
    page = get("dags/dag/run", run_id=DAY).text
    assert HOSTILE not in page
    assert HOSTILE in unescape(page)
    answer = get("dags/dag/run", run_id=HOSTILE)
    assert answer.status_code == 404
    assert HOSTILE not in answer.text


@pytest.mark.parametrize("path", ["dags/other/dataflow", f"dags/other/run?run_id={DAY}", "dags/dag/run?run_id=none"])
def test_what_the_ledger_does_not_know_of_a_dag_is_not_found(get, path):
    assert get(path).status_code == 404


def test_a_name_that_no_database_takes_is_not_asked_for(get, monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/away.db")
    assert get("dags/dag/run", run_id=DAY).status_code == 503
    assert get("dags/dag/run", run_id="a\0b").status_code == 404


def test_without_a_ledger_the_page_says_so_and_makes_none(get, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/none.db")
    for path in ALL:
        answer = get(path)
        assert answer.status_code == 503
        assert "weir ledger upgrade" in answer.text
        assert str(tmp_path) not in answer.text
    assert not (tmp_path / "none.db").exists()

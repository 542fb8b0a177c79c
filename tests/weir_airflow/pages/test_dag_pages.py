"""Pages in a browser: served by Airflow's real API to users who may read the DAG, of a world of many events."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.views.eventful import HOSTILE, RUN, after_all

from weir.ledger.database.tables import AttemptRow, FailoverRow
from weir_airflow.api.quality_link import QualityLink

PAGES = Path(__file__).parents[3] / "plugins" / "weir_airflow" / "pages"
OF_A_DAG = ("recovery", "state", "sinks", "quality")
TASK = {"run_id": RUN.format(2), "task_id": "clean", "map_index": "1"}


@pytest.fixture(scope="module")
def world():
    with fast_folder() as folder:
        world = after_all(folder)
        with world.ledger.transaction("ladder") as session:
            session.get_one(FailoverRow, 1).cause = HOSTILE
            for row in session.query(AttemptRow).filter_by(region="clean"):
                row.error = HOSTILE
            for row in session.query(AttemptRow).filter_by(region="flights"):
                row.began_at -= timedelta(minutes=1)
        yield world
        world.ledger.close()


@pytest.fixture
def get(api_url, tokens, world, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(world.folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{world.folder}/ledger.db")

    def ask(name, user="reader", dag_id="dag", **asked):
        headers = {"Cookie": f"_token={tokens[user]}"} if user else {}
        return httpx.get(f"{api_url}/weir/dags/{dag_id}/{name}", params=asked, headers=headers, timeout=60)

    return ask


@pytest.mark.parametrize(("name", "asked"), [("task", TASK), *((each, {}) for each in OF_A_DAG)])
def test_who_may_read_the_dag_sees_its_pages_and_they_can_run_nothing(get, name, asked):
    assert get(name, user=None, **asked).status_code == 401
    answer = get(name, **asked)
    assert answer.status_code == 200, answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert HOSTILE not in answer.text
    assert "<b>phone" not in answer.text
    assert not re.search(r'\sstyle="|<style|\son[a-z]+="', answer.text)


@pytest.mark.parametrize("name", OF_A_DAG)
def test_a_dag_without_runs_is_not_found(get, name):
    answer = get(name, dag_id="<other>")
    assert answer.status_code == 404
    assert "<other>" not in answer.text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run_id": "other"}, "other"),
        ({"task_id": "claen"}, "clean"),
        ({"map_index": "7"}, "clean"),
        ({"task_id": HOSTILE}, "clean"),
    ],
)
def test_a_task_that_is_not_there_is_answered_with_what_there_is(get, changed, said):
    answer = get("task", **{**TASK, **changed})
    assert answer.status_code == 404
    assert said in answer.text
    assert HOSTILE not in answer.text


def test_the_story_of_a_task_says_why_it_ran_and_what_a_clear_would_restart(get):
    told = get("task", **TASK).text
    assert "clean[1]" in told
    assert "try 2" in told
    assert "it was cleared in Airflow" in told
    assert "A full restart" in told


@pytest.mark.parametrize("map_index", ["{MAP_INDEX}", "-1", "", "9" * 5000])
def test_without_a_map_index_all_subtasks_are_told(get, map_index):
    told = get("task", **{**TASK, "map_index": map_index}).text
    assert "clean[0]" in told
    assert "clean[1]" in told


def test_a_failure_is_told_with_its_cost_and_its_week(get):
    told = get("recovery").text
    assert "&lt;script&gt;" in told
    assert 'class="chart"' in told
    assert "2025-12-29" in told
    assert "<meter" in told


def test_checkpoints_are_drawn_and_listed_without_a_look_at_the_store(get, world, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(world.folder / "elsewhere"))
    told = get("state").text
    assert 'class="chart"' in told
    assert "20130102T000000Z" in told


def test_what_is_published_and_what_is_pending_is_told_and_who_has_not_got_it(get):
    told = get("sinks").text
    assert "pending" in told
    assert "unpublished" in told
    assert "the server does not answer" in told
    assert "&lt;b&gt;phone" in told


def test_checks_of_a_dag_are_listed_with_examples_the_newest_first(get):
    told = get("quality").text
    assert told.index("20130104T000000Z") < told.index("20130101T000000Z")
    assert "expect_column_values_to_be_unique" in told
    assert "of 1 rows, such as" in told
    assert "20130101T000000Z" not in get("quality", violations="true").text


def test_a_task_instance_has_the_checks_of_its_tries(get):
    told = get("quality", **TASK).text
    assert "clean[1]" in told
    assert "clean[0]" not in told
    assert "20130101T000000Z" not in told
    assert "clean[0]" not in get("quality", **{**TASK, "run_id": "other"}).text


def test_the_button_of_a_task_leads_to_its_checks(get, api_url, monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{api_url}/")
    key = SimpleNamespace(dag_id="dag", run_id=TASK["run_id"], task_id="clean", map_index=1)
    address = QualityLink().get_link(None, ti_key=key)
    assert address.startswith(f"{api_url}/weir/dags/dag/quality?")
    assert "clean[1]" in get(address.removeprefix(f"{api_url}/weir/dags/dag/")).text


@pytest.mark.parametrize(
    ("statement", "command"),
    [("UPDATE alembic_version SET version_num = '0007'", "weir doctor"), (None, "weir ledger upgrade")],
)
def test_a_ledger_that_is_away_or_of_another_build_is_left_as_it_is(
    get, monkeypatch, tmp_path, statement, command, world
):
    file = tmp_path / "ledger.db"
    if statement:
        import sqlite3

        with sqlite3.connect(world.folder / "ledger.db") as found, sqlite3.connect(file) as copy:
            found.backup(copy)
            copy.execute(statement)
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{file}")
    for name in OF_A_DAG:
        answer = get(name)
        assert answer.status_code == 503
        assert command in answer.text
        assert str(tmp_path) not in answer.text
    assert file.exists() is bool(statement)


def test_pages_show_views_only():
    """What a page shows, a command prints: pages import views, errors, what opens them, requests and rights."""
    allowed = ("weir.views.", "weir.errors", "weir.recovery.questions", "weir.coordination.services", "weir.units")
    allowed += ("weir.recovery.run_plans.", "weir.recovery.dataset_plans.", "weir.requests.")
    names = {"NotMigrated", "UserRights"}
    for file in PAGES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "weir":
                imported = {alias.name for alias in node.names}
                assert f"{node.module}.".startswith(allowed) or imported <= names, f"{file.name}: {node.module}"

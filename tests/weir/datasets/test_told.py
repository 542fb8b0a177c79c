"""What is told of a task that waits for a data set, and of a result that was made of an older version."""

import json
from datetime import datetime

import pytest
from tests.weir.command_line import typed, use
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import dataset
from weir.ledger.database.tables import AttemptRow
from weir.recovery.questions import Question
from weir.recovery.run_plans import reaching
from weir.views.runs import run_details

FIRST, SECOND = ("report@20130101T000000Z", "report@20130102T000000Z")


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A day that was read, and one that is waited for; in the environment's ledger and store."""
    town = Neighbours(tmp_path)
    use(monkeypatch, tmp_path)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.run("report", 1)
    town.airflows["report"].dag_run(2)
    for _ in range(4):
        town.go_on()
    return town


def began_at(town):
    with town.ledger.transaction() as session:
        return session.query(AttemptRow.began_at).filter_by(run=SECOND).scalar()


def test_a_run_whose_task_waits_says_for_which_epoch_and_since_when(town):
    told = json.loads(typed("plan", SECOND, "--json"))["standing"]
    assert (told["standing"], told["command"]) == ("waiting", "")
    assert datetime.fromisoformat(told["since"]) == began_at(town)
    for said in (told["reason"], typed("plan", SECOND), typed("runs"), typed("why", "read", "--run", SECOND)):
        assert "trips.zones" in said
        assert "trips@20130102T000000Z" in said
    town.run("trips", 2)
    town.go_on()
    assert json.loads(typed("plan", SECOND, "--json"))["standing"] is None


def test_the_page_of_the_run_says_so_of_the_task(town):
    found = run_details(town.services, Question(SECOND, looks=False), reaching(town.airflows["report"]))
    (task,) = next(region for region in found.graph.regions if region.name == "read").subtasks
    assert (task.status.value, task.since) == ("waiting", began_at(town))
    assert "trips@20130102T000000Z" in task.error
    assert "trips.zones" in found.sentence


def test_the_note_of_the_task_says_so(town):
    (note,) = town.airflows["report"].task("scheduled__2013-01-02", "read").notes[-1:]
    assert "trips.zones" in note
    assert f"{began_at(town):%Y-%m-%d %H:%M:%S}" in note


def test_results_of_an_older_version_name_the_data_set_and_so_do_those_that_were_made_of_them(town, monkeypatch):
    monkeypatch.setattr("weir.settling.tell_readers", lambda *_: [])
    town.content["trips"]["raw"] = "other"
    town.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    town.go_on()
    (run,) = json.loads(typed("results", FIRST, "--json"))["runs"]
    because = [each["invalid_because"] for stage in run["stages"] for each in stage["results"] if each["is_current"]]
    assert len(because) == 2
    assert all("trips.zones of 20130101T000000Z" in each for each in because)
    assert typed("results", FIRST).count(because[0]) == 2
    (step, *_) = json.loads(typed("plan", FIRST, "--json"))["steps"]
    assert "trips.zones of 20130101T000000Z" in step["reason"]


def test_valid_results_have_nothing_to_say(town):
    (run,) = json.loads(typed("results", FIRST, "--json"))["runs"]
    assert {each["invalid_because"] for stage in run["stages"] for each in stage["results"]} == {None}

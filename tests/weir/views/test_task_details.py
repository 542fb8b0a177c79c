"""What is told of a task, and what a clear of it would restart."""

import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import World, ladder

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.recovery.rules.plan import StepKind
from weir.recovery.run_plans import reaching
from weir.views.runs import run_of_task
from weir.views.tasks import task_details

RUN = "ladder@20130101T000000Z"


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, ladder())
    world.run_days(1)
    return world


def details(world, task):
    return task_details(world.services, RUN, task, reaching(world.airflow))


def test_a_clear_of_one_subtask_restarts_it_and_what_reads_other_rows(world):
    plan = details(world, "joined[1]").if_cleared
    assert [str(step.region) for step in plan.of(StepKind.RERUN)] == ["joined[1]"]
    assert "totals[0]" in [str(step.region) for step in plan.of(StepKind.IF_CHANGED)]


def test_a_clear_of_a_task_restarts_all_its_subtasks(world):
    found = details(world, "joined")
    assert [each.region for each in found.tasks] == ["joined[0]", "joined[1]"]
    assert len(found.if_cleared.of(StepKind.RERUN)) == 2


def test_the_closing_task_can_be_cleared_too(world):
    plan = details(world, "weir_close").if_cleared
    assert [str(step.region) for step in plan.of(StepKind.RERUN)] == ["weir_close[0]"]


def test_nothing_is_asked_of_the_store(world):
    def away(*_):
        raise AssertionError

    store = type("Away", (), {"__getattr__": away})()
    services = Services(ledger=world.ledger, store=store, now=world.services.now)
    assert task_details(services, RUN, "joined[1]", reaching(world.airflow)).if_cleared is not None


def test_an_index_that_is_no_number_of_a_subtask_is_unknown(world):
    with pytest.raises(Misconfigured, check=of_kind("views.subtask_unknown", each="joined")):
        details(world, f"joined[{'9' * 5000}]")


def test_the_command_prints_what_the_page_shows(world, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    told = json.loads(typed("why", "joined[1]", "--run", RUN, "--json"))
    assert told["if_cleared"] == details(world, "joined[1]").if_cleared.to_json()
    assert "If it is cleared in Airflow: re-running joined[1]" in typed("why", "joined[1]", "--run", RUN)


def test_the_run_of_a_task_is_that_of_its_group(world):
    with world.ledger.transaction() as session:
        assert run_of_task(session, "dag", "scheduled__2013-01-01", "joined") == RUN
        assert run_of_task(session, "other", "scheduled__2013-01-01", "joined") is None

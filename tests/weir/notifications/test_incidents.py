"""Incidents of a run are told once: what Weir recovers from, that it is over, and that a person is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.weir.notifications import receiving
from tests.weir.notifications.receiving import ids

from weir.attempts.failure import fail
from weir.dataflow import Dataflow, Stage, blocking, callback, keyed_state, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Misconfigured
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.database.outbox_tables import IncidentRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.questions import Question, apply_answer, ask
from weir.restarts.strategy import NoRestart
from weir.testing.fakes.task_ports import failed_try
from weir.upkeep import RECEIVERS, settle_everywhere

FUNCTION = "tests.weir.notifications.receiving:tell"
RECOVERIES = callback(FUNCTION, kinds=["failed_over", "healed"])
USUAL = callback(FUNCTION, receiver="usual", who="usual")
RUN = "ladder@20130101T000000Z"


@pytest.fixture(autouse=True)
def receivers():
    receiving.reset()
    yield
    receiving.reset()


@pytest.fixture
def told(world):
    """A world whose dataflow has a receiver of recoveries, and one that has named no kinds."""
    flow = world.airflow.flow
    world.airflow.deploy(Dataflow(flow.name, flow.stages, notify=[RECOVERIES, USUAL]))
    return world


def events(who="tell"):
    return [event for name, event in receiving.got if name == who]


def kinds(who="tell"):
    return [event["kind"] for event in events(who)]


def people():
    """What a person was told of, by upkeep at the latest."""
    return [event["details"]["task_id"] for event in events("usual") if event["kind"] == "person_needed"]


def settle(world):
    settle_everywhere(world.services, RECEIVERS, context=dict).require_whole()


def incidents(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(IncidentRow.kind)))


def losing(world, task_id, *lost):
    """Results are lost right before a task begins for the first time."""

    def before(key):
        if key.task_id == task_id and lost_now:
            for stage, subtask in lost_now:
                world.lose(stage, subtask)
            lost_now.clear()

    lost_now = list(lost)
    world.airflow.during = before


def raising(world, *task_ids):
    def during(key):
        if key.task_id in task_ids:
            raise Misconfigured(f"no such column in {key.task_id}")

    world.airflow.during = during


def test_a_recovery_is_told_when_it_begins_and_when_the_run_is_whole_again(told):
    losing(told, "totals", ("weather", 0), ("joined", 0), ("joined", 1))
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    assert kinds() == ["failed_over", "healed"]
    begun, over = events()
    assert (begun["run"], over["run"]) == (RUN, RUN)
    assert begun["details"]["trigger"] == "loss"
    assert set(begun["details"]["tasks"]) == {"weather[0]", "joined[0]", "joined[1]"}
    assert over["details"]["failed_over"] == begun["id"]
    assert over["details"]["cause"] == begun["details"]["cause"]
    assert kinds("usual") == ["version_published"]
    assert incidents(told) == []


def test_each_recovery_has_ids_of_its_own(told):
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    for _ in range(2):
        told.lose("delays", 0)
        told.lose("joined", 1)
        told.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
        told.airflow.run_until_quiet()
        settle(told)
    assert kinds() == ["failed_over", "healed"] * 2
    assert len(set(ids())) == 4


def test_a_closed_run_is_whole_again_once_all_that_was_lost_is_computed_again(told):
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    for stage in ("totals", "routes"):
        told.lose(stage, 0)
    told.lose("delays", 0)
    services = replace(told.services, retention=RetentionSettings(scrub_share=1.0))
    assert scrub_dataflow(services, told.airflow, "ladder").bad
    settle(told)
    assert kinds() == ["failed_over"]
    assert events()[0]["details"]["trigger"] == "scrub"
    told.airflow.deliver_clears()
    seen = []
    while (ready := told.airflow._ready()) is not None:
        seen.append((kinds(), [each.state for each in told.airflow.tasks.values()].count(None)))
        told.airflow.step(ready)
        settle(told)
    assert all(told_then == ["failed_over"] for told_then, open_tasks in seen if open_tasks > 1)
    assert kinds() == ["failed_over", "healed"]


def test_what_a_person_applies_is_told_too(told):
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    told.lose("delays", 0)
    assert apply_answer(told.services, ask(told.services, Question(RUN)))
    told.airflow.deliver_clears()
    told.airflow.run_until_quiet()
    settle(told)
    assert [event["details"].get("trigger") for event in events()] == ["by hand", None]


def test_one_who_wants_to_know_only_of_the_end_is_told_of_it(world):
    flow = world.airflow.flow
    world.airflow.deploy(Dataflow(flow.name, flow.stages, notify=[callback(FUNCTION, kinds="healed")]))
    losing(world, "totals", ("joined", 0))
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
    assert kinds() == ["healed"]


def test_a_ledger_that_is_rebuilt_tells_of_no_recovery_again(told):
    losing(told, "totals", ("joined", 0))
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    first = ids()
    told.lose_ledger()
    rebuild(told.services, "ladder")
    settle(told)
    assert ids() == first
    told.lose("joined", 1)
    told.airflow.clear_by_hand("scheduled__2013-01-01", "totals", 0)
    told.airflow.run_until_quiet()
    settle(told)
    assert kinds() == ["failed_over", "healed"] * 2
    assert len(set(ids())) == 4


def test_a_person_is_told_once_of_a_run_however_many_of_its_tasks_fail(told):
    raising(told, "totals", "routes")
    run = told.airflow.dag_run()
    told.airflow.run_until_quiet()
    settle(told)
    assert list(told.airflow.states().values()).count("failed") == 3
    assert len(people()) == 1
    told.airflow.clear_by_hand(run, "totals", 0)
    told.airflow.run_until_quiet()
    settle(told)
    assert people()[1:] == ["totals"]  # a person has acted, and it has not helped


def test_a_task_that_fails_since_another_one_has_is_no_other_incident(told):
    """What it misses could not be computed again."""
    run = told.airflow.dag_run()
    told.airflow.run_until_quiet()
    raising(told, "joined")
    told.lose("joined", 0)
    for task in ("totals", "routes"):
        told.airflow.clear_by_hand(run, task, 0 if task == "totals" else -1)
    told.airflow.run_until_quiet()
    settle(told)
    assert list(told.airflow.states().values()).count("failed") > 1
    assert people() == ["joined"]
    told.airflow.during = lambda _key: None
    assert apply_answer(told.services, ask(told.services, Question(RUN), lambda: told.airflow))
    told.airflow.deliver_clears()
    told.airflow.run_until_quiet()
    assert set(told.airflow.states().values()) == {"success"}
    assert incidents(told) == []


def test_what_stops_a_run_that_has_gone_on_by_itself_is_another_incident(told):
    raising(told, "routes")
    told.airflow.dag_run()
    told.airflow.run_until_quiet()
    raising(told, "report-delays")
    told.airflow.clear_by_hand("scheduled__2013-01-01", "routes")
    told.airflow.run_until_quiet()
    settle(told)
    assert people() == ["routes", "report-delays"]


def history_of(key_type, *receivers):
    state = keyed_state("history", key="k", schema=f"k {key_type}, n BIGINT")
    stages = [
        source("flights", "m:flights", parallelism=2),
        Stage("aircraft", "m:aircraft", [blocking("flights", by="k")], state=(state,)),
        sink("aircraft", "known"),
    ]
    return Dataflow("ladder", stages, notify=receivers)


def test_tasks_that_fail_before_they_begin_are_one_incident_of_their_run(world):
    world.airflow.deploy(history_of("BIGINT", USUAL))
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
    world.airflow.deploy(history_of("STRING", USUAL))
    run = world.airflow.dag_run(2)
    for cleared in (False, True):
        if cleared:
            world.airflow.clear_run_by_hand(run)
        world.airflow.run_until_quiet()
        settle(world)
        assert [world.airflow.task(run, "flights", each).state for each in (0, 1)] == ["failed", "failed"]
    assert people() == ["flights"]
    world.airflow.deploy(history_of("BIGINT", USUAL))
    raising(world, "flights")
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    settle(world)
    assert people() == ["flights", "flights"]


def test_an_incident_of_a_task_that_never_began_lasts_until_that_task_has_run(told):
    told.airflow.dag_run()
    told.airflow.step(told.airflow.task("scheduled__2013-01-01", "weather"))
    routes = told.airflow.task("scheduled__2013-01-01", "routes")
    request = replace(told.airflow.request(routes), try_number=1)
    failed = failed_try("ladder", request, Misconfigured("no such connection"), NoRestart())
    fail(told.airflow.services, failed, lambda: told.airflow)
    seen = []
    while (ready := told.airflow._ready()) is not None:
        seen.append((incidents(told), routes.state))
        told.airflow.step(ready)
    assert all(open_then == ["person_needed"] for open_then, state in seen if state is None)
    assert incidents(told) == []
    settle(told)
    assert people() == ["routes"]

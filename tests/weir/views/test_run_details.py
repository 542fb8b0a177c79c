"""A run as a person sees it first: its graph, what would run again, and one sentence."""

import json

import pytest
from sqlalchemy import delete, select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use

from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.recovery.questions import Question
from weir.recovery.rules.plan import StepKind
from weir.recovery.run_plans import reaching
from weir.views.dataflows import dataflow_details, dataflow_overviews
from weir.views.documents import document
from weir.views.graphs import SubtaskStatus
from weir.views.runs import run_details

DAY = "ladder@20130101T000000Z"


def details(world, *, looks=False, **more):
    return run_details(world.services, Question(DAY, looks=looks, **more), reaching(world.airflow))


def statuses(found):
    return {f"{region.name}[{each.subtask}]": each.status for region in found.graph.regions for each in region.subtasks}


def test_a_run_that_is_whole_is_valid_and_nothing_would_run_again(done):
    found = details(done)
    assert set(statuses(found).values()) == {SubtaskStatus.VALID}
    assert found.counts == {"valid": 9}
    assert found.graph.close.status is SubtaskStatus.VALID
    assert found.plan["standing"] is None
    assert {step["kind"] for step in found.plan["steps"]} == {"spared"}
    assert found.published == {"delays": 1}


def test_exchanges_tell_how_they_are_read_and_what_is_stored_of_them(done):
    edges = {(each.producer, each.reader): each for each in details(done).graph.exchanges}
    assert edges["raw", "clean"].kind == "pipelined"
    assert (edges["raw", "clean"].rows, edges["raw", "clean"].bytes) == (None, None)
    keyed = edges["clean", "joined"]
    assert (keyed.kind, keyed.by) == ("blocking", ("k",))
    with done.ledger.transaction() as session:
        stored = session.scalars(select(ResultRow).where(ResultRow.stage == "clean", ResultRow.is_current)).all()
    assert keyed.bytes == sum(row.bytes for row in stored)
    assert keyed.rows == sum(row.rows for row in stored)


def test_a_deleted_result_is_lost_once_somebody_has_looked(done):
    done.lose("clean", 0)
    by_ledger, looked = details(done), details(done, looks=True)
    assert by_ledger.counts == {"valid": 9}
    assert by_ledger.looked_at is None
    assert looked.looked_at is not None
    assert statuses(looked)["raw-clean[0]"] is SubtaskStatus.LOST
    assert looked.counts == {"valid": 8, "lost": 1}
    assert [step["region"] for step in looked.plan["steps"] if step["kind"] == "rerun"] == ["raw-clean[0]"]


def test_a_page_s_plan_is_that_of_the_command(done, tmp_path, monkeypatch):
    done.lose("clean", 0)
    use(monkeypatch, tmp_path)
    printed = json.loads(invoked("plan", DAY, "--json").stdout)
    found = document(run=details(done, looks=True))["run"]["plan"]
    assert {**found, "standing": None} == {**printed, "standing": None}


def test_what_is_asked_of_a_failure_changes_nothing(done):
    before = details(done)
    asked = details(done, fail="joined[1]")
    assert asked.plan["failed"] == "joined[1]"
    assert statuses(details(done)) == statuses(before)


def test_a_cleared_task_is_recomputing_until_it_has_committed(done):
    with done.ledger.transaction() as session:
        run_id = session.scalars(select(RunRow.run_id)).one()
    done.lose("clean", 0)
    done.airflow.clear_by_hand(run_id, "joined", 0)
    seen = []
    done.airflow.during = lambda *_: seen.append(statuses(details(done)))
    done.airflow.run_until_quiet()
    assert any(each["raw-clean[0]"] is SubtaskStatus.RECOMPUTING for each in seen)
    assert set(statuses(details(done)).values()) == {SubtaskStatus.VALID}
    (failover,) = details(done).failovers
    assert [step.region.name for step in failover.plan.of(StepKind.RERUN)] == ["raw-clean"]


@pytest.mark.parametrize(
    ("state", "status"), [("lost", SubtaskStatus.LOST), ("quarantined", SubtaskStatus.QUARANTINED)]
)
def test_a_result_has_the_status_that_the_ledger_has_of_it(done, state, status):
    with done.ledger.transaction("ladder") as session:
        row = session.scalars(select(ResultRow).where(ResultRow.stage == "routes", ResultRow.is_current)).one()
        row.state = state
    assert statuses(details(done))["routes[0]"] is status


def test_a_task_that_failed_for_good_is_failed(done):
    with done.ledger.transaction("ladder") as session:
        row = session.scalars(select(AttemptRow).where(AttemptRow.region == "routes")).one()
        session.execute(delete(ResultRow).where(ResultRow.stage == "routes"))
        row.state, row.error = "failed", "boom"
    found = details(done)
    assert statuses(found)["routes[0]"] is SubtaskStatus.FAILED
    assert [each.subtasks[0].error for each in found.graph.regions if each.name == "routes"] == ["boom"]


def test_an_unknown_run_is_named(done):
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        run_details(done.services, Question("ladder@20130109T000000Z"), reaching(done.airflow))


def test_all_dataflows_and_one_of_them(done):
    (found,) = dataflow_overviews(done.services, reaching(done.airflow))
    assert (found.dataflow, found.dag_ids, found.open) == ("ladder", ("dag",), ())
    assert found.bytes_at_rest > 0
    assert dataflow_overviews(done.services, reaching(done.airflow), ["another"]) == []
    details_ = dataflow_details(done.services, "ladder", reaching(done.airflow))
    assert (details_.graph_run, len(details_.runs), details_.older) == (DAY, 1, 0)
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown")):
        dataflow_details(done.services, "river", reaching(done.airflow))

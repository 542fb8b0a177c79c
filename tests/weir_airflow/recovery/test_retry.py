"""The retry policy, with a real ledger and no Spark: what Airflow asks after each failure, and what it is answered."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from weir.dataflow import Dataflow, sink, source
from weir.errors import Fenced, Misconfigured
from weir.ledger.failed_begins import failed_begins_named
from weir.ledger.ledger import Ledger
from weir.restarts.strategy import RestartChoice, RestartStrategy


@pytest.fixture
def context():
    """The context that Airflow gives a policy, of a task instance that has not entered the ledger."""
    from weir.topology.regions import Topology
    from weir_airflow.dags.declaration import Declaration, TaskRecovery

    flow = Dataflow("brook", [source("spring", "m:spring"), sink("spring", "mouth")])
    once = RestartChoice.of(RestartStrategy.from_retries(1, timedelta(0)))
    declared = Declaration(flow, Topology(flow), TaskRecovery(once), "")
    ti = SimpleNamespace(dag_id="brook", run_id="r", task_id="spring-mouth", map_index=-1, id="ti-1")
    start = datetime(2013, 1, 1, tzinfo=UTC)
    interval = {"data_interval_start": start, "data_interval_end": start + timedelta(days=1)}
    run = SimpleNamespace(dag_id="brook", run_id="r", partition_key=None, **interval)
    return {"ti": ti, "task": SimpleNamespace(declared=declared), "dag_run": run}


@pytest.fixture
def settings(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps({"conn_type": "weir-db"}))
    return monkeypatch


@pytest.fixture
def evaluate(context):
    from weir_airflow.recovery.retry import WeirRetryPolicy

    return lambda error: WeirRetryPolicy().evaluate(error, 1, 999, context)


def test_a_fenced_try_opens_no_ledger_and_leaves_the_rest_to_airflow(evaluate, monkeypatch):
    monkeypatch.delenv("WEIR_LEDGER", raising=False)
    decision = evaluate(Fenced("a newer try is registered"))
    assert (decision.action.value, decision.retry_delay) == ("retry", timedelta(seconds=5))


def test_a_ledger_that_does_not_answer_means_another_try(evaluate, settings, monkeypatch):
    import sqlalchemy.exc

    from weir.ledger import ledger

    def unreachable(*_):
        raise sqlalchemy.exc.OperationalError("select", {}, OSError("connection refused"))

    monkeypatch.setattr(ledger, "_bring_to_head", unreachable)
    decision = evaluate(ValueError("boom"))
    assert (decision.action.value, decision.retry_delay) == ("retry", timedelta(seconds=5))
    assert "could not book" in decision.reason


def test_settings_that_are_missing_fail_the_task_and_say_what_to_set(evaluate, monkeypatch):
    monkeypatch.delenv("WEIR_LEDGER", raising=False)
    monkeypatch.delenv("WEIR_STORE", raising=False)
    decision = evaluate(ValueError("boom"))
    assert decision.action.value == "fail"
    assert "WEIR_STORE" in decision.reason
    assert "boom" in decision.reason


def test_a_misconfiguration_before_the_try_was_registered_is_final(evaluate, settings, airflow_home):
    decision = evaluate(Misconfigured("no such connection"))
    assert decision.action.value == "fail"
    assert "no such connection" in decision.reason


@pytest.mark.parametrize("start", [datetime(2013, 1, 1, tzinfo=UTC), None])
def test_what_fails_before_the_try_was_registered_is_recorded(
    evaluate, context, settings, tmp_path, airflow_home, start
):
    context["dag_run"].data_interval_start = start
    evaluate(Misconfigured("no such connection"))
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.transaction() as session:
        [row] = failed_begins_named(session, "r")
    ledger.close()
    assert (row.dataflow, row.epoch) == ("brook", None if start is None else "20130101T000000Z")
    assert (row.task_id, row.try_number, row.failure) == ("spring-mouth", 1, "fatal")
    assert row.error == "Misconfigured: no such connection"


def test_any_other_error_before_the_try_was_registered_is_tried_again(evaluate, settings, airflow_home):
    assert evaluate(TimeoutError("slow")).action.value == "retry"


def test_pending_clears_that_cannot_be_delivered_do_not_change_the_decision(evaluate, settings, airflow_home):
    settings.delenv("AIRFLOW_CONN_WEIR_API")
    decision = evaluate(TimeoutError("slow"))
    assert decision.action.value == "retry"
    assert "pending clears" in decision.reason
    assert "AIRFLOW_CONN_WEIR_API" in decision.reason


def test_without_a_context_airflow_decides():
    from weir_airflow.recovery.retry import WeirRetryPolicy

    assert WeirRetryPolicy().evaluate(ValueError(), 1, 3).action.value == "default"

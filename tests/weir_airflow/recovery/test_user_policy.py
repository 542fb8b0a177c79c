"""A user's own retry policy and functions that label failures, after a failure that a real ledger has booked."""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.definitions.retry_policy import (
    ExceptionRetryPolicy,
    RetryAction,
    RetryDecision,
    RetryPolicy,
    RetryRule,
)
from tests.weir_airflow.recovery.tries import FAST, Tries

from weir.attempts.failing import note_of
from weir.coordination.values import BeginRequest, TaskKey
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Conflict, EngineLost, SuppressRestarts
from weir.execution.labels import Failure
from weir.restarts.strategy import FailureLimits, FixedDelay, NoRestart
from weir.topology.regions import Topology
from weir_airflow.dags.declaration import TaskRecovery
from weir_airflow.recovery.failing import ask_enrichers
from weir_airflow.tasks.context import TaskContext

DAY = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)


class Mine(RetryPolicy):
    """Returns a given answer, and keeps the arguments of each call."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def evaluate(self, exception, try_number, max_tries, context=None):
        self.calls.append((type(exception), try_number, max_tries, context is not None))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def tries(monkeypatch, tmp_path, airflow_home):
    return Tries.at(tmp_path, monkeypatch)


def test_a_policy_that_fails_the_task_overrides_the_strategy(tries):
    decision = tries.fail(ValueError("bad row"), FAST, Mine(RetryDecision.fail("no use")))
    assert decision.action is RetryAction.FAIL
    assert decision.reason.startswith("Mine: no use; restart strategy fixed-delay: ValueError: bad row")
    assert [(row.state, row.failure) for row in tries.rows()] == [("failed", "application")]


@pytest.mark.parametrize("strategy", [FAST, NoRestart()])
def test_a_policy_that_retries_after_a_delay_overrides_the_strategy(tries, strategy):
    decision = tries.fail(ValueError("bad row"), strategy, Mine(RetryDecision.retry(timedelta(minutes=7))))
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(minutes=7))
    assert tries.rows()[0].state == "retrying"


@pytest.mark.parametrize("answer", [RetryDecision.default(), RetryDecision.retry()])
@pytest.mark.parametrize(("strategy", "action"), [(FAST, RetryAction.RETRY), (NoRestart(), RetryAction.FAIL)])
def test_what_a_policy_leaves_open_is_the_strategys(tries, strategy, action, answer):
    decision = tries.fail(ValueError("bad row"), strategy, Mine(answer))
    assert decision.action is action
    assert decision.retry_delay == (timedelta(seconds=1) if action is RetryAction.RETRY else None)


@pytest.mark.parametrize("limits", [FailureLimits(per_task=1), FailureLimits(per_run=1)])
def test_limits_of_failures_hold_whatever_a_policy_says(tries, limits):
    policy = Mine(RetryDecision.retry(timedelta(0)))
    strategy = FixedDelay(9, 0, limits=limits)
    actions = [tries.fail(ValueError("bad row"), strategy, policy).action for _ in range(2)]
    assert actions == [RetryAction.RETRY, RetryAction.FAIL]
    assert len(policy.calls) == 1


@pytest.mark.parametrize("error", [Conflict("changed"), EngineLost("gone"), SuppressRestarts("closed")])
def test_a_policy_is_not_asked_about_recovery_or_what_is_hopeless(tries, error):
    policy = Mine(RetryDecision.fail("no use"))
    decision = tries.fail(error, FAST, policy)
    assert policy.calls == []
    assert decision.action is (RetryAction.FAIL if isinstance(error, SuppressRestarts) else RetryAction.RETRY)


def test_a_policy_gets_the_number_of_the_task_s_own_failures_as_try_number(tries):
    policy = Mine(RetryDecision.default())
    tries.fail(Conflict("changed"), FAST, policy)
    tries.fail(ValueError("bad row"), FAST, policy)
    tries.fail(EngineLost("gone"), FAST, policy)
    tries.fail(KeyError("k"), FixedDelay(9, 0, limits=FailureLimits(per_task=4)), policy)
    assert policy.calls == [(ValueError, 1, 999, True), (KeyError, 2, 4, True)]


@pytest.mark.parametrize("answer", [LookupError("oops"), None])
def test_a_policy_that_fails_or_answers_nonsense_leaves_the_strategys_decision(tries, answer):
    decision = tries.fail(ValueError("bad row"), FAST, Mine(answer))
    assert decision.action is RetryAction.RETRY
    said = "Mine failed: LookupError: oops" if answer else "Mine answered a NoneType, not a RetryDecision"
    assert said in decision.reason


def test_airflows_own_policy_of_rules_can_be_chained_in(tries):
    policy = ExceptionRetryPolicy([RetryRule(KeyError, RetryAction.FAIL), RetryRule(OSError, retry_delay=timedelta(5))])
    assert tries.fail(OSError("busy"), FAST, policy).retry_delay == timedelta(5)
    assert tries.fail(ValueError("bad row"), FAST, policy).retry_delay == timedelta(seconds=1)
    assert tries.fail(KeyError("k"), FAST, policy).action is RetryAction.FAIL


@pytest.fixture
def tickets(tmp_path, monkeypatch):
    """A module with functions that label failures."""
    (tmp_path / "tickets.py").write_text(
        "def owner(failure):\n    return {'owner': f'{failure.region} of {failure.epoch}'}\n"
        "def fails(failure):\n    raise LookupError(failure.error)\n"
        "def late(failure):\n    import threading\n    threading.Event().wait()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("tickets", None)


def test_labels_are_in_the_log_line_and_in_the_ledger(tries, tickets):
    decision = tries.fail(ValueError("bad row"), FAST, None, ["tickets:owner"])
    labels = {"type": "application", "exception": "ValueError", "owner": "spring-mouth of 20130101T000000Z"}
    assert tries.rows()[0].labels == labels
    assert "; labels: type=application, exception=ValueError, owner=spring-mouth of 2013" in decision.reason


def test_the_deployments_functions_are_asked_too(tries, tickets, monkeypatch):
    monkeypatch.setenv("AIRFLOW__WEIR__FAILURE_ENRICHERS", "tickets:owner")
    tries.fail(ValueError("bad row"), FAST)
    assert "owner" in tries.rows()[0].labels


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tickets:fails", "tickets:fails: LookupError: ValueError"),
        ("tickets:nothing", "tickets:nothing: AttributeError"),
        ("nowhere:at_all", "nowhere:at_all: ModuleNotFoundError"),
    ],
)
def test_a_function_that_does_not_work_never_hides_the_failure(tries, tickets, name, says):
    decision = tries.fail(ValueError("bad row"), FAST, None, [name, "tickets:owner"])
    assert decision.action is RetryAction.RETRY
    assert f"failure enricher {says}" in decision.reason
    assert "owner" in tries.rows()[0].labels


def test_a_function_that_hangs_is_not_waited_for(tickets):
    failure = Failure(
        dataflow="brook",
        epoch="e",
        region="spring",
        subtask=0,
        try_number=1,
        error="ValueError",
        message="bad row",
        failure_class="application",
    )
    found = ask_enrichers(failure, ["tickets:late"], seconds=0.05)
    assert found.complaints == ("tickets:late: no answer within 0.05 s",)
    hanging = [thread for thread in threading.enumerate() if thread.name == "weir-enrichers"]
    assert all(thread.daemon for thread in hanging)


def test_a_failure_that_cannot_be_noted_is_decided_all_the_same(tries, tickets, monkeypatch):
    away = {"conn_type": "http", "host": "http://127.0.0.1:1", "login": "weir", "password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps(away))
    decision = tries.fail(ValueError("bad row"), FAST, None, ["tickets:owner"])
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=1))
    assert "labels or note are missing: Retryable: " in decision.reason
    assert "owner" in tries.rows()[0].labels


def test_a_note_says_what_becomes_of_the_task_and_why():
    from weir.restarts.answer import Action, FailureDecision

    decision = FailureDecision(action=Action.RETRY, delay_seconds=5, reason="fixed-delay: ValueError: bad row")
    labels = {"type": "application", "exception": "ValueError", "owner": "routes"}
    note = note_of(decision, "ValueError: bad row", decision.reason, labels)
    assert note == "Weir: ValueError: bad row; tried again in 5 s. fixed-delay (application, owner=routes)"


def test_a_task_whose_process_was_killed_too_often_fails_with_a_note(tries, monkeypatch, new_run, look, tmp_path):
    """Airflow asks no policy then, so the begin that refuses to go on leaves the note."""
    from airflow.sdk.exceptions import AirflowFailException

    from weir_airflow.dags.declaration import Declaration
    from weir_airflow.tasks.operators import WeirRegionOperator
    from weir_airflow.tasks.running import run_region

    spark = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": 1}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_WEIR", json.dumps(spark))
    monkeypatch.setenv("AIRFLOW__WEIR__RESTART_STRATEGY_TYPE", "none")
    (tmp_path / "m.py").write_text("def spring(ctx): ...\n\n\ndef mouth(ctx, spring): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run_id = new_run("running", spring=("running", 2))
    mouth = Stage("mouth", "m:mouth", [blocking("spring")])
    flow = Dataflow("river", [source("spring", "m:spring"), mouth, sink("mouth", "sea")])
    key = TaskKey("river", run_id, "spring", -1)
    with TaskContext.open() as task_context:
        task_context.coordinator.begin(
            BeginRequest(
                key=key,
                try_number=1,
                max_tries=999,
                ti_id="ti-1",
                dataflow=flow,
                task_prefix="",
                interval=DAY,
                session_url="",
            ),
            task_context.airflow,
        )
    ti = SimpleNamespace(
        dag_id="river", run_id=run_id, task_id="spring", map_index=-1, try_number=2, max_tries=999, id="ti-2"
    )
    interval = {"data_interval_start": DAY[0], "data_interval_end": DAY[1]}
    run = SimpleNamespace(run_id=run_id, run_type="scheduled", clear_number=0, **interval)
    declared = Declaration(flow, Topology(flow), TaskRecovery(), "")
    context = {"ti": ti, "dag_run": run, "params": {}}
    context["task"] = WeirRegionOperator(task_id="spring", declared=declared, region="spring")
    with pytest.raises(AirflowFailException, match=r"ended without a result .*suppressed by restart strategy none"):
        run_region(declared, "spring", context, print, print)
    assert look.task(run_id, "spring")[2].startswith("Weir: its process was killed; not tried again. the process")

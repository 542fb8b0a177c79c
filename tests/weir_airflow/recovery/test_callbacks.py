"""Callbacks of users: called when a person has to know, whatever Airflow calls a failure."""

from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.sdk.definitions.mappedoperator import MappedOperator
from tests.weir_airflow.recovery.tries import FAST, Tries

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Conflict, EngineLost, Fault, Fenced, Loss, ResultUnavailable, SuppressRestarts
from weir.execution.failure_class import FailureClass
from weir.restarts.strategy import NoRestart
from weir_airflow import dataflow_dag, dataflow_group
from weir_airflow.dags.callbacks import WORD

START = datetime(2013, 1, 1, tzinfo=UTC)
CALLBACKS = ("on_retry_callback", "on_failure_callback")


def told(context):
    context["told"].append(1)


def told_too(context):
    context["told"].append(2)


@pytest.fixture
def tries(monkeypatch, tmp_path, airflow_home):
    return Tries.at(tmp_path, monkeypatch)


@pytest.fixture
def flow():
    return Dataflow(
        "brook",
        [
            source("spring", "m:spring", parallelism=2),
            Stage("basin", "m:basin", [blocking("spring", by="k")]),
            sink("basin", "mouth"),
        ],
    )


def called(task, kind, context):
    """Call a task's callbacks of a kind, as Airflow does after its policy; answers which have told a person."""
    context["told"] = []
    found = task.partial_kwargs.get(kind, []) if isinstance(task, MappedOperator) else getattr(task, kind)
    for each in found:
        each(context)
    return context["told"]


LOST = Loss("brook@20130101T000000Z", "spring", 0, "plain", "t0001-a", Fault.MISSING, "no such file")


@pytest.mark.parametrize(
    ("error", "strategy", "on_retry"),
    [
        pytest.param(ValueError("bad row"), FAST, [1], id="the user's own"),
        pytest.param(ValueError("bad row"), NoRestart(), [1], id="the user's own, for good"),
        pytest.param(SuppressRestarts("closed"), FAST, [], id="no retry helps"),
        pytest.param(ResultUnavailable((LOST,)), FAST, [], id="lost inputs"),
        pytest.param(Conflict("changed"), FAST, [], id="inputs that have changed"),
        pytest.param(EngineLost("gone"), FAST, [], id="Spark was away"),
        pytest.param(Fenced("newer"), FAST, [], id="a newer try has taken over"),
    ],
)
def test_a_retry_tells_of_the_users_own_failures_only(tries, flow, error, strategy, on_retry):
    dag = dataflow_dag(flow, start_date=START, default_args=dict.fromkeys(CALLBACKS, told))
    context = {}
    tries.fail(error, strategy, context=context)
    for task in dag.tasks:
        assert called(task, "on_retry_callback", context) == on_retry
        assert called(task, "on_failure_callback", context) == [1]  # Airflow calls these once, at the end


def test_after_a_kill_nobody_is_told_of_a_retry(flow):
    """The DAG processor calls them, without the word of a policy."""
    dag = dataflow_dag(flow, start_date=START, default_args={each: [told, told_too] for each in CALLBACKS})
    for task in dag.tasks:
        assert called(task, "on_retry_callback", {}) == []
        assert called(task, "on_failure_callback", {}) == [1, 2]


def test_callbacks_of_the_dag_around_a_group_are_called_in_the_same_way(flow):
    daily = CronDataIntervalTimetable("@daily", timezone="UTC")
    with DAG("mixed", schedule=daily, start_date=START, default_args={"on_retry_callback": told}) as dag:
        dataflow_group(flow)
    assert [called(task, "on_retry_callback", {}) for task in dag.tasks] == [[]] * len(dag.tasks)
    own = {WORD: FailureClass.APPLICATION}
    assert [called(task, "on_retry_callback", dict(own)) for task in dag.tasks] == [[1]] * len(dag.tasks)


def test_callbacks_of_a_dag_are_those_of_its_runs_and_reach_no_task(flow):
    dag = dataflow_dag(flow, start_date=START, on_failure_callback=told)
    assert dag.on_failure_callback is told
    for task in dag.tasks:
        for kind in CALLBACKS:
            assert called(task, kind, {WORD: FailureClass.APPLICATION}) == []


def test_airflow_sends_no_mail_at_a_retry(flow):
    dag = dataflow_dag(flow, start_date=START, default_args={"email": "night@example.com", "retry_delay": timedelta(1)})
    said = [
        task.partial_kwargs["email_on_retry"] if isinstance(task, MappedOperator) else task.email_on_retry
        for task in dag.tasks
    ]
    assert said == [False] * len(dag.tasks)


def test_a_mapped_task_calls_each_callback_once(flow):
    dag = dataflow_dag(flow, start_date=START, default_args={"on_retry_callback": told})
    mapped = dag.get_task("spring")
    assert isinstance(mapped, MappedOperator)
    task = mapped.unmap({"subtask": 1})
    assert called(task, "on_retry_callback", {WORD: FailureClass.APPLICATION}) == [1]

"""What a DAG declares of its tasks' recovery, and arguments of a wrong kind."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, sink, source
from weir.errors import Misconfigured

FLOW = Dataflow("delays", [source("flights", "p:flights"), sink("flights", "raw")])


def owner(failure):
    """A function that is given as an object."""


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"retries": "three"}, "dataflow 'delays': retries is 'three': write a whole number such as retries=3"),
        ({"retries": timedelta(minutes=1)}, "retries is datetime.timedelta(seconds=60): write a whole number"),
        ({"retries": 2.5}, "retries is 2.5: write a whole number"),
        ({"retries": -1}, "retries is -1: write a whole number"),
        ({"default_args": {"retries": "x"}}, "dataflow 'delays': retries is 'x'"),
        (
            {"retries": 2, "retry_delay": "5 minutes"},
            "retry_delay is '5 minutes': write retry_delay=timedelta(minutes=5)",
        ),
        ({"retry_delay": timedelta(1)}, "dataflow 'delays': `retry_delay` has no effect without `retries`"),
        ({"restart": "none"}, "dataflow 'delays': restart is 'none': write restart={\"restart-strategy.type\": "),
        (
            {"failure_enrichers": "p:f"},
            "failure_enrichers is 'p:f': write failure_enrichers=[\"module:function\"], a list",
        ),
        (
            {"failure_enrichers": [owner]},
            f'has the function owner, expected "module:function" of a function on the path: write "{__name__}:owner"',
        ),
        (
            {"default_args": [1]},
            "dataflow 'delays': default_args is [1]: write a dict such as default_args={'retries': 2}",
        ),
        ({"tags": "mine"}, "dataflow 'delays': tags is 'mine': write tags=[\"name\"]"),
        ({"dag_id": 5}, "dataflow 'delays': dag_id is 5: write dag_id=\"name\""),
        ({"spark_conn_id": 5}, "dataflow 'delays': spark_conn_id is 5: write spark_conn_id=\"name\""),
        (
            {"schedule_interval": "@daily"},
            "dataflow_dag(dataflow 'delays') has no argument schedule_interval=: write schedule='@daily'",
        ),
    ],
)
def test_an_argument_of_a_wrong_kind_is_answered_with_what_to_write(arguments, answer):
    from weir_airflow import dataflow_dag

    with pytest.raises(Misconfigured) as error:
        dataflow_dag(FLOW, **arguments)
    assert answer in str(error.value)


@pytest.mark.parametrize("given", [list(FLOW.stages), "delays", FLOW.stages[0], None])
def test_what_is_no_dataflow_is_refused(given):
    from weir_airflow import dataflow_dag, dataflow_group

    with pytest.raises(Misconfigured, match=r"dataflow_dag\(\.\.\.\): flow is .* write dataflow_dag\(Dataflow\("):
        dataflow_dag(given)
    with pytest.raises(Misconfigured, match=r"dataflow_group\(\.\.\.\): flow is"):
        dataflow_group(given)


def test_a_schedule_in_the_second_place_is_named():
    from weir_airflow import dataflow_dag

    with pytest.raises(
        Misconfigured,
        check=of_kind(
            "dataflow.argument_unnamed", given="'@daily'", second="schedule", where="dataflow_dag(dataflow 'delays')"
        ),
    ):
        dataflow_dag(FLOW, "@daily")


def test_the_number_of_retries_may_come_from_the_environment():
    from weir_airflow import dataflow_dag

    declared = dataflow_dag(FLOW, retries="3").task_dict["flights-raw"].declared
    assert declared.recovery.restart.strategy.attempts == 3

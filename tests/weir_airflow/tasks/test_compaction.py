"""The task that compacts state: where it stands in a DAG, and that a run does not depend on it."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from tests.weir_airflow.deployed import deployed

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source
from weir.ledger.database.tables import CompactionRow, ResultRow
from weir.ledger.ledger import Ledger

SCHEMA = "tail STRING, n BIGINT"


def flow(parallelism=2, **more):
    aircraft = Stage(
        "aircraft",
        "keepers:aircraft",
        [blocking("flights", by="tail")],
        parallelism=parallelism,
        state=keyed_state("history", key="tail", schema=SCHEMA, **more),
    )
    return Dataflow("keepers", [source("flights", "keepers:flights"), aircraft, sink("aircraft", "known")])


def dag_of(declared):
    from weir_airflow import dataflow_dag

    return dataflow_dag(declared, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))


def test_a_region_with_keyed_state_has_a_compaction_task_that_nothing_waits_for():
    dag = dag_of(flow())
    task = dag.task_dict["weir_compact-aircraft-known"]
    assert task.upstream_task_ids == {"aircraft-known"}
    assert task.downstream_task_ids == set()
    assert dag.task_dict["weir_close"].upstream_task_ids == {"aircraft-known"}


def test_it_is_an_ordinary_task_that_neither_a_failed_region_nor_a_kill_can_fail():
    task = dag_of(flow()).task_dict["weir_compact-aircraft-known"]
    assert (task.is_teardown, task.trigger_rule) == (False, "all_done")
    assert task.retries == 999
    assert task.execution_timeout is None


def test_where_nothing_is_written_in_runs_there_is_none():
    assert not [each for each in dag_of(flow(incremental=False)).task_dict if each.startswith("weir_compact")]
    lists = Dataflow(
        "lists", [source("flights", "keepers:flights", state=list_state("offsets")), sink("flights", "all")]
    )
    assert not [each for each in dag_of(lists).task_dict if each.startswith("weir_compact")]


def test_tasks_after_a_group_do_not_wait_for_compaction():
    from airflow.sdk import DAG, BaseOperator

    from weir_airflow import dataflow_group

    with DAG("mixed") as dag:
        last = BaseOperator(task_id="last")
        dataflow_group(flow(), group_id="inner") >> last
    assert last.upstream_task_ids == {"inner.weir_close"}
    assert dag.task_dict["inner.weir_compact-aircraft-known"].upstream_task_ids == {"inner.aircraft-known"}
    assert dag.task_dict["inner.weir_compact-aircraft-known"].downstream_task_ids == set()


def test_it_reads_back_from_a_serialized_dag():
    from airflow.serialization.serialized_objects import DagSerialization

    read = DagSerialization.from_dict(DagSerialization.to_dict(dag_of(flow())))
    task = read.task_dict["weir_compact-aircraft-known"]
    assert (task.is_teardown, task.trigger_rule, task.upstream_task_ids) == (False, "all_done", {"aircraft-known"})


FLOWS = """
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir_airflow import dataflow_dag

aircraft = Stage("aircraft", "keepers:aircraft", [blocking("flights", by="tail")],
                 state=keyed_state("history", key="tail", schema="tail STRING, n BIGINT", runs=2))
flow = Dataflow("keepers", [source("flights", "keepers:flights"), aircraft, sink("aircraft", "known")])
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""

STAGES = """
from pyspark.sql import functions as F

def flights(ctx):
    return ctx.spark.range(20).select(F.col("id").cast("string").alias("tail"), F.lit(1).cast("bigint").alias("n"))

def aircraft(ctx, flights, history):
    known = history.read().withColumnRenamed("n", "before")
    rows = flights.join(known, "tail", "left").select("tail", (F.coalesce("before", F.lit(0)) + F.col("n")).alias("n"))
    history.upsert(rows)
    return rows
"""


@pytest.fixture(scope="module")
def world(airflow_home, server, tmp_path_factory):
    """Store, ledger, connections, stages and the DAG file; the folder that all of it is in."""
    folder = tmp_path_factory.mktemp("world")
    with deployed(airflow_home, folder, server, "keepers", STAGES, FLOWS, "keepers"):
        yield folder


@pytest.fixture
def run(world):
    """Run the DAG for a day: the state of the run, and of its tasks; `before` is called with the DAG's tasks."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
    assert not bag.import_errors

    def test(day, before=lambda tasks: None):
        before(bag.dags["keepers"].task_dict)
        dag_run = bag.dags["keepers"].test(logical_date=datetime(2013, 1, day, tzinfo=UTC))
        with create_session() as session:
            tis = session.query(TaskInstance).filter_by(dag_id="keepers", run_id=dag_run.run_id).all()
            return dag_run.state, {ti.task_id: ti.state for ti in tis}

    return test


def compactions(world):
    ledger = Ledger.open(f"sqlite:///{world}/ledger.db")
    with ledger.transaction() as session:
        found = list(session.scalars(select(CompactionRow).order_by(CompactionRow.run)))
    ledger.close()
    return found


@pytest.mark.spark
def test_a_run_compacts_what_it_has_committed_and_is_green_where_that_fails(run, world):
    task = "weir_compact-aircraft-known"
    for day in (2, 3):
        state, tasks = run(day)
        assert (state, tasks[task]) == ("success", "success")
    assert compactions(world) == []
    state, tasks = run(4)
    assert (state, set(tasks.values())) == ("success", {"success"})
    (row,) = compactions(world)
    assert (row.state, len({each["epoch"] for each in row.files}) <= 2) == ("history", True)
    assert row.written_bytes > 0

    def without_engine(tasks):
        tasks[task].declared = None

    state, tasks = run(5, without_engine)
    assert (state, set(tasks.values())) == ("success", {"success"})
    assert "not compacted: AttributeError" in note_of(5, task)
    ledger = Ledger.open(f"sqlite:///{world}/ledger.db")
    with ledger.transaction() as session:
        digests = list(session.scalars(select(ResultRow.rows).where(ResultRow.stage == "history")))
    ledger.close()
    assert set(digests) == {20}


def note_of(day, task):
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        logical_date = datetime(2013, 1, day, tzinfo=UTC)
        run = session.query(DagRun).filter_by(dag_id="keepers", logical_date=logical_date).one()
        return session.query(TaskInstance).filter_by(dag_id="keepers", run_id=run.run_id, task_id=task).one().note

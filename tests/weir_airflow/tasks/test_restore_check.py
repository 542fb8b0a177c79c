"""The DAG of the restore test, in Airflow's own `dag.test()`, with a real Spark Connect server, store and ledger."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir_airflow.deployed import deployed

from weir.errors import Misconfigured
from weir.ledger.database.tables import QualityCheckRow
from weir.ledger.ledger import Ledger

PROJECT = Path(__file__).resolve().parents[3]
FLOWS = """
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, previous, sink, source
from weir_airflow import dataflow_dag

history = keyed_state("history", key="tail", schema="tail STRING, n BIGINT", grows=True, incremental=False,
                      quality=expectations("drilled_history", when="restored"))
aircraft = Stage("aircraft", "drilled:aircraft", [blocking("flights", by="tail")], state=history)
flow = Dataflow("drilled", [source("flights", "drilled:flights"), aircraft, sink("aircraft", "known")])
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""
STAGES = """
from pyspark.sql import functions as F

def flights(ctx):
    return ctx.spark.range(20).select(F.col("id").cast("string").alias("tail"), F.lit(1).cast("bigint").alias("n"))

def aircraft(ctx, flights, history):
    history.upsert(flights)
    return flights
"""
SUITE = {
    "name": "drilled_history",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 1, "max_value": 1}}
    ],
}


@pytest.fixture
def drill_dag(airflow_home):
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(PROJECT / "dags" / "weir_restore_check.py"), bundle_name="dags-folder")
    assert not bag.import_errors
    return bag.dags["weir_restore_check"]


def test_it_is_weekly_paused_at_first_and_restores_one_after_the_other(drill_dag):
    assert drill_dag.is_paused_upon_creation is True
    assert (drill_dag.timetable.expression, drill_dag.catchup, drill_dag.max_active_runs) == ("0 0 * * 0", False, 1)
    assert {task.task_id for task in drill_dag.leaves} == {"restore"}
    assert drill_dag.task_dict["restore"].max_active_tis_per_dagrun == 1


def test_a_checkpoint_is_chosen_together_with_its_dataflow(airflow_home, monkeypatch, tmp_path):
    from weir_airflow.tasks.restore_check import dataflows_to_check

    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", '{"conn_type": "weir-db"}')
    said = []
    assert dataflows_to_check({}, said.append) == []
    assert said == ["No dataflow has a checkpoint: nothing to restore"]
    with pytest.raises(Misconfigured, check=of_kind("tasks.dataflow_not_named", params="3")):
        dataflows_to_check({"checkpoint": "3"}, said.append)


@pytest.fixture(scope="module")
def world(airflow_home, server, tmp_path_factory):
    """Store, ledger, connections, suites, stages and the DAG file; the folder that all of it is in."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "suites").mkdir()
    (folder / "suites" / "drilled_history.json").write_text(json.dumps(SUITE))
    drill = airflow_home / "dags" / "weir_restore_check.py"
    shutil.copy(PROJECT / "dags" / "weir_restore_check.py", drill)
    dags, environ = ("drilled", "weir_restore_check"), {"WEIR_EXPECTATIONS": str(folder / "suites")}
    with deployed(airflow_home, folder, server, "drilled", STAGES, FLOWS, *dags, **environ):
        yield folder
        drill.unlink()


def outcome_of(dag, at, **conf):
    """The state of a run, and of its tasks by index."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    run = dag.test(logical_date=at, run_conf=conf or None)
    with create_session() as session:
        tis = session.query(TaskInstance).filter_by(dag_id=dag.dag_id, run_id=run.run_id).all()
        return run.state, {(ti.task_id, ti.map_index): ti.state for ti in tis}


def found(world):
    ledger = Ledger.open(f"sqlite:///{world}/ledger.db")
    with ledger.transaction() as session:
        rows = list(session.scalars(select(QualityCheckRow).where(QualityCheckRow.why == "drill")))
    ledger.close()
    return {(row.stage, row.subtask, row.suite, row.results[0]["type"], row.outcome) for row in rows}


@pytest.mark.spark
def test_a_checkpoint_is_restored_and_checked_and_one_that_is_damaged_fails_its_task(world):
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
    drill_dag = bag.dags["weir_restore_check"]
    assert outcome_of(bag.dags["drilled"], datetime(2013, 1, 2, tzinfo=UTC))[0] == "success"
    assert outcome_of(drill_dag, datetime(2026, 1, 3, tzinfo=UTC)) == (
        "success",
        {("which", -1): "success", ("restore", 0): "success"},
    )
    assert {each[4] for each in found(world)} == {"passed"}
    assert {each[:4] for each in found(world)} == {
        ("history", 0, suite, kind)
        for suite, kind in (
            ("weir", "weir_files_as_recorded"),
            ("weir", "weir_schema_as_recorded"),
            ("drilled_history", "expect_column_values_to_be_between"),
        )
    }
    assert not list((world / "store").glob("_drills/*"))
    file = next((world / "store" / "drilled").glob("*/history/*/0/*/*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    state, tasks = outcome_of(drill_dag, datetime(2026, 1, 4, tzinfo=UTC), dataflow="drilled", checkpoint="1")
    assert (state, tasks["restore", 0]) == ("failed", "failed")
    assert {each for each in found(world) if each[4] == "failed"} == {
        ("history", 0, "weir", "weir_files_as_recorded", "failed")
    }

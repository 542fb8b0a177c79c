"""A task whose rows are not as expected, in Airflow's own `dag.test()`: its button and its note."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from weir.ledger.database.tables import QualityCheckRow
from weir.ledger.ledger import Ledger

pytestmark = pytest.mark.spark

FLOWS = """
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, expectations, sink, source
from weir_airflow import dataflow_dag

doubtful = source("doubtful", "expected_rows:doubtful", quality=expectations("doubtful"))
refused = Stage("refused", "expected_rows:refused", [blocking(doubtful)], quality=expectations("refused"))
flow = Dataflow("expected", [doubtful, refused, sink(refused, "rows")])
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""
STAGES = """
def doubtful(ctx):
    return ctx.spark.range(10)

def refused(ctx, doubtful):
    return doubtful
"""
BETWEEN = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "min_value": 0, "max_value": 7}}
SUITES = {"doubtful": [BETWEEN | {"severity": "warning"}], "refused": [BETWEEN]}


@pytest.fixture(scope="module")
def folder(airflow_home, server, tmp_path_factory):
    """Of store, ledger, suites and stages; the DAG file is in Airflow's folder."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "expected_rows.py").write_text(STAGES)
    (folder / "suites").mkdir()
    for name, expected in SUITES.items():
        (folder / "suites" / f"{name}.json").write_text(json.dumps({"name": name, "expectations": expected}))
    environ = {
        "WEIR_STORE": str(folder / "store"),
        "WEIR_LEDGER": f"sqlite:///{folder}/ledger.db",
        "WEIR_EXPECTATIONS": str(folder / "suites"),
        "AIRFLOW_CONN_WEIR_API": json.dumps({"conn_type": "weir-db"}),
        "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(server.connection),
        "AIRFLOW__API__BASE_URL": "https://airflow.example",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder))
        file = airflow_home / "dags" / "expected_flows.py"
        file.write_text(FLOWS)
        yield folder
        file.unlink()
        sys.modules.pop("expected_rows", None)
        from airflow.api.common.delete_dag import delete_dag

        delete_dag("expected")  # other tests look at all DAGs


def checks(folder):
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
    with ledger.transaction() as session:
        rows = {row.stage: row for row in session.scalars(select(QualityCheckRow))}
    ledger.close()
    return rows


@pytest.mark.soak
def test_what_warns_and_what_is_refused_has_a_note_and_a_button(folder):
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
    run = bag.dags["expected"].test(logical_date=datetime(2013, 1, 2, tzinfo=UTC))
    with create_session() as session:
        tis = session.query(TaskInstance).filter_by(dag_id="expected", run_id=run.run_id).all()
        found = {ti.task_id: (ti.state, ti.note or "") for ti in tis}
        query = select(XComModel.task_id, XComModel.value).where(
            XComModel.run_id == run.run_id, XComModel.key == "_link_QualityLink"
        )
        links = dict(session.execute(query).tuples().all())
    assert {task: state for task, (state, _) in found.items() if task != "weir_close"} == {
        "doubtful": "success",
        "refused-rows": "failed",
    }
    for task in ("doubtful", "refused-rows"):
        assert f"{BETWEEN['type']}(id): 2 of 10 rows" in found[task][1]
        assert f"https://airflow.example/weir/dags/expected/quality?run_id={run.run_id[:6]}" in links[task]
        assert f"task_id={task}&map_index=-1" in links[task]
    rows = checks(folder)
    assert {stage: row.outcome for stage, row in rows.items()} == {"doubtful": "warned", "refused": "failed"}

"""The examples, end to end, in Airflow's own `dag.test()`: drivers in containers of YARN, store in HDFS."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.pipelines.flight_history_reference import expected_history, expected_rolling

import weir
from pipelines.flight_delays_reference import expected_report

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PROJECT = Path(__file__).parents[3]
DAGS = ("flight_delays", "flight_history")
DAYS = [dt.date(2013, 1, 1), dt.date(2013, 1, 2)]


@pytest.fixture(scope="module")
def run(airflow_home, cluster, tmp_path_factory):
    """Run a DAG of the examples for a day, and return the state of the run and the tries of its tasks."""
    from airflow.api.common.delete_dag import delete_dag
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    options = json.dumps(cluster.hdfs.storage_options)
    environ = cluster.environment(packed=True) | {
        "WEIR_STORE": f"{cluster.hdfs.url}/examples",
        "WEIR_STORE_OPTIONS": options,
        "WEIR_LEDGER": f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db",
        "WEIR_SPARK_CONN_ID": "spark_yarn",
        "AIRFLOW_CONN_WEIR_API": json.dumps({"conn_type": "weir-db"}),
        "AIRFLOW_CONN_SPARK_YARN": json.dumps(
            {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        folder = airflow_home / "dags"
        files = [shutil.copy(PROJECT / "dags" / f"{name}.py", folder) for name in DAGS]
        bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")

        def test(dag_id, day):
            at = dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) + dt.timedelta(days=1)
            dag_run = bag.dags[dag_id].test(logical_date=at)
            with create_session() as session:
                tis = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id=dag_run.run_id)
                return dag_run.state, {ti.try_number for ti in tis}

        yield test
        for name, file in zip(DAGS, files, strict=True):
            Path(file).unlink()
            delete_dag(name)  # other tests look at all DAGs


def rows_of(dag_id, day, sink, *keys):
    with weir.open(dag_id, day.isoformat(), sink) as found:
        return sorted(found.arrow().to_pylist(), key=lambda row: [row[key] for key in keys])


def test_the_reports_of_a_day_are_those_of_pandas(run):
    assert run("flight_delays", DAYS[0]) == ("success", {1})
    assert rows_of("flight_delays", DAYS[0], "delays", "kind", "rank") == expected_report(DAYS[0])


def test_states_go_on_from_day_to_day(run):
    for day in DAYS:
        assert run("flight_history", day) == ("success", {1})
        assert rows_of("flight_history", day, "rolling_delays", "origin", "dest") == expected_rolling(day)
        seen = rows_of("flight_history", day, "seen", "tailnum")
        known = {row["tailnum"]: row for row in expected_history(day)}
        assert len(seen) > 300
        assert seen == [known[row["tailnum"]] for row in seen]

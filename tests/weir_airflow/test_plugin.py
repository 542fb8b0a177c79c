"""What Airflow finds in the plugins folder, and Weir's own DAG."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def test_airflow_finds_the_plugin_once_and_nothing_below_it(airflow_home):
    from airflow import plugins_manager

    plugins, errors = plugins_manager._get_plugins()
    assert not errors
    assert [plugin.name for plugin in plugins].count("weir") == 1


def test_importing_the_plugin_does_not_import_the_app():
    script = (
        "import airflow.sdk, airflow.plugins_manager, sys; before = set(sys.modules); import weir_airflow.plugin;"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=400)
    loaded = set(done.stdout.split())
    assert "weir_airflow.plugin" in loaded
    assert not {"fastapi", "weir_airflow.api.endpoint", "pyspark", "sqlalchemy", "weir.ledger.ledger"} & loaded


@pytest.fixture
def upkeep():
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(PROJECT / "dags" / "weir_upkeep.py"))
    assert not bag.import_errors
    return bag.dags


@pytest.mark.parametrize(
    ("dag_id", "schedule", "at_most", "tasks"),
    [
        ("weir_upkeep", "*/3 * * * *", timedelta(hours=1), {"settle_pending_clears", "release_results"}),
        (
            *("weir_upkeep_hourly", "0 * * * *", timedelta(days=1)),
            {"sweep_store", "scrub_results", "create_savepoints", "look_for_late_files"},
        ),
    ],
)
def test_upkeep_runs_by_itself_and_no_task_keeps_another_from_running(upkeep, dag_id, schedule, at_most, tasks):
    dag = upkeep[dag_id]
    assert dag.is_paused_upon_creation is False
    assert dag.catchup is False
    assert dag.max_active_runs == 1
    assert dag.timetable.expression == schedule
    assert dag.dagrun_timeout <= at_most
    assert {task.task_id for task in dag.tasks} == tasks
    # A DagRun fails with any of its leaves, and with nothing else.
    assert {task.task_id for task in dag.leaves} == tasks


def test_requests_are_made_by_people_and_carried_out_once(upkeep):
    dag = upkeep["weir_requests"]
    assert dag.is_paused_upon_creation is False
    assert dag.timetable.can_be_scheduled is False
    assert [each.value for each in dag.allowed_run_types] == ["manual"]
    assert [task.retries for task in dag.tasks] == [0]


def test_upkeep_finds_nothing_to_do_in_a_new_ledger(airflow_home, monkeypatch, tmp_path):
    from weir_airflow.tasks.upkeep import (
        create_savepoints,
        deliver_pending_clears,
        look_for_late_files,
        release_results,
        scrub_results,
        sweep_store,
    )

    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", '{"conn_type": "weir-db"}')
    said = []
    assert deliver_pending_clears(said.append) == {"pending": 0}
    jobs = (release_results, sweep_store, scrub_results, create_savepoints, look_for_late_files)
    assert [job(said.append) for job in jobs] == [{}] * 5
    assert said == ["No clear is pending"]

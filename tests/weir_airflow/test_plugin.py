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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "weir_airflow.plugin" in loaded
    assert not {"fastapi", "weir_airflow.api", "pyspark", "sqlalchemy", "weir.ledger.ledger"} & loaded


@pytest.fixture
def upkeep():
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(PROJECT / "dags" / "weir_upkeep.py"))
    assert not bag.import_errors
    return bag.dags["weir_upkeep"]


def test_upkeep_runs_every_few_minutes_without_being_asked(upkeep):
    assert upkeep.is_paused_upon_creation is False
    assert upkeep.catchup is False
    assert upkeep.max_active_runs == 1
    assert upkeep.timetable.expression == "*/3 * * * *"
    assert upkeep.dagrun_timeout <= timedelta(hours=1)


def test_upkeep_finds_nothing_to_do_in_a_new_ledger(airflow_home, monkeypatch, tmp_path):
    from weir_airflow.upkeep import settle_owed_clears

    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", '{"conn_type": "weir-db"}')
    said = []
    assert settle_owed_clears(said.append) == {"owed": 0}
    assert said == ["Nothing is owed"]

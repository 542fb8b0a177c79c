from datetime import UTC, datetime, timedelta

import pytest

from weir.doctor import api
from weir.doctor.examination import Status

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
UPKEEP = api.Dag(api.UPKEEP, is_paused=False, max_active_runs=1)
HOURLY = api.Dag(api.UPKEEP_HOURLY, is_paused=False, max_active_runs=1)
TRIPS = api.Dag("trips", is_paused=False, max_active_runs=16)
SERIAL = api.Dag("ladder", is_paused=False, max_active_runs=1)


def last(state, minutes):
    return api.LastRun(state, NOW - timedelta(minutes=minutes))


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (api.version_finding("3.3.2", "3.3.2"), "ok", "3.3.2"),
        (api.version_finding("3.3.2", "3.3.1"), "warning", "same Airflow"),
        (api.plugin_finding(is_mounted=True), "ok", ""),
        (api.plugin_finding(is_mounted=False, dags=[TRIPS]), "problem", "PLUGINS_FOLDER"),
        (api.permission_finding("weir", ["trips"], []), "ok", "trips"),
        (api.permission_finding("weir", ["trips"], ["secret_dag"]), "problem", "PUT on task instances"),
        (api.upkeep_finding(api.UPKEEP, None, None, NOW), "problem", "dags/weir_upkeep.py"),
        (
            api.upkeep_finding(api.UPKEEP, api.Dag(api.UPKEEP, True, 1), None, NOW),
            "problem",
            "airflow dags unpause weir_upkeep",
        ),
        (api.upkeep_finding(api.UPKEEP, UPKEEP, None, NOW), "ok", "not run yet"),
        (api.upkeep_finding(api.UPKEEP, UPKEEP, last("success", 2), NOW), "ok", "success"),
        (api.upkeep_finding(api.UPKEEP, UPKEEP, last("failed", 2), NOW), "problem", "log of its tasks"),
        (api.upkeep_finding(api.UPKEEP, UPKEEP, last("success", 60), NOW), "warning", "60 minutes"),
        (api.upkeep_finding(api.UPKEEP_HOURLY, None, None, NOW), "problem", "dags/weir_upkeep.py"),
        (api.upkeep_finding(api.UPKEEP_HOURLY, HOURLY, last("success", 60), NOW), "ok", "success"),
        (api.upkeep_finding(api.UPKEEP_HOURLY, HOURLY, last("success", 200), NOW), "warning", "200 minutes"),
        (api.plugin_finding(is_mounted=False, dags=[SERIAL, UPKEEP]), "problem", "/weir: finished runs"),
    ],
)
def test_the_answers_of_the_api_server_are_judged(finding, status, words):
    assert finding.status is Status(status)
    assert words in f"{finding.found} {finding.expected} {finding.mend}"


def test_without_the_plugin_the_dags_that_would_wait_forever_are_named():
    found = api.plugin_finding(is_mounted=False, dags=[TRIPS, UPKEEP, SERIAL]).found
    assert found.endswith("; ladder would wait forever, with max_active_runs=1")


@pytest.mark.parametrize(
    ("executors", "ledger", "names"),
    [
        ("LocalExecutor", "sqlite:////l.db", []),
        ("airflow.executors.local_executor.LocalExecutor", "sqlite:////l.db", []),
        ("CeleryExecutor", "postgresql://db/weir", []),
        ("LocalExecutor,CeleryExecutor", "sqlite:////l.db", ["ledger of all workers"]),
        ("mine:my.module.EcsExecutor", "sqlite:////l.db", ["ledger of all workers"]),
    ],
)
def test_workers_on_several_machines_need_a_ledger_on_a_server(executors, ledger, names):
    assert [each.name for each in api.ledger_findings(executors, ledger)] == names


def test_a_plugins_folder_without_the_plugin_is_reported_with_the_setting():
    assert api.plugins_folder_finding("/p", ("weir_plugin.py", "x.py"), None).status is Status.OK
    other = api.plugins_folder_finding("/p", ("x.py",), "/weir/plugins")
    assert other.status is Status.PROBLEM
    assert "AIRFLOW__CORE__PLUGINS_FOLDER=/weir/plugins" in other.mend
    assert api.plugins_folder_finding("/p", None, None).found == "/p does not exist"

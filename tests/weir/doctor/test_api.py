import pytest

from weir.doctor import api, table
from weir.doctor.examination import Status


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (api.plugin_finding(is_mounted=True), "ok", ""),
        (api.plugin_finding(is_mounted=False), "problem", "pip install weir"),
        (api.permission_finding("weir", ["trips"], []), "ok", "trips"),
        (api.permission_finding("weir", ["trips"], ["secret_dag"]), "problem", "PUT on task instances"),
        (api.upkeep_finding(table.UPKEEP.name, is_paused=None), "problem", "from weir_airflow.upkeep.upkeep import"),
        (api.upkeep_finding(table.UPKEEP.name, is_paused=True), "problem", "weir airflow dags unpause weir_upkeep"),
        (api.upkeep_finding(table.UPKEEP.name, is_paused=False), "ok", "unpaused"),
    ],
)
def test_the_answers_of_the_api_server_are_judged(finding, status, words):
    assert finding.status is Status(status)
    assert words in f"{finding.found} {finding.expected} {finding.mend}"


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

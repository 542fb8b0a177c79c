import pytest

from weir.doctor.airflow_settings import (
    ALL_ADMINS,
    FERNET_KEY,
    HEARTBEAT_TIMEOUT,
    IDLE_SLEEP,
    JWT_KEY_FILE,
    JWT_SECRET,
    MIN_HEARTBEAT,
    PARALLELISM,
    judge_plugins_folder,
    judge_reach,
    judge_settings,
)
from weir.doctor.examination import Status

GOOD = {
    MIN_HEARTBEAT: "1",
    IDLE_SLEEP: "0.1",
    HEARTBEAT_TIMEOUT: "30",
    PARALLELISM: "4",
    ALL_ADMINS: "False",
    JWT_SECRET: "set",
    FERNET_KEY: "set",
}


def test_the_advised_settings_are_ok():
    assert {each.status for each in judge_settings(GOOD)} == {Status.OK}


@pytest.mark.parametrize(
    ("changes", "name", "status", "advice"),
    [
        (
            {MIN_HEARTBEAT: "5"},
            "[workers] min_heartbeat_interval",
            "warning",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL=1",
        ),
        ({IDLE_SLEEP: "1"}, "[scheduler] scheduler_idle_sleep_time", "warning", "SCHEDULER_IDLE_SLEEP_TIME=0.1"),
        (
            {HEARTBEAT_TIMEOUT: "300"},
            "[scheduler] task_instance_heartbeat_timeout",
            "warning",
            "TASK_INSTANCE_HEARTBEAT_TIMEOUT=30",
        ),
        ({MIN_HEARTBEAT: "2", HEARTBEAT_TIMEOUT: "5"}, "heartbeats", "problem", "HEARTBEAT_TIMEOUT=30"),
        ({IDLE_SLEEP: "soon"}, "[scheduler] scheduler_idle_sleep_time", "unknown", "=0.1"),
        ({PARALLELISM: "1"}, "[core] parallelism", "warning", "AIRFLOW__CORE__PARALLELISM=4"),
        ({ALL_ADMINS: "True"}, "[core] simple_auth_manager_all_admins", "warning", "ALL_ADMINS=False"),
        ({JWT_SECRET: ""}, "secret of the tokens", "warning", "AIRFLOW__API_AUTH__JWT_SECRET=..."),
        ({FERNET_KEY: ""}, "fernet key", "warning", "AIRFLOW__CORE__FERNET_KEY=..."),
    ],
)
def test_a_setting_that_costs_speed_or_safety_is_found(changes, name, status, advice):
    found = {each.name: each for each in judge_settings({**GOOD, **changes})}
    assert found[name].status is Status(status)
    assert advice in found[name].mend
    assert {each.status for key, each in found.items() if key != name} == {Status.OK}


def test_a_key_file_is_as_good_as_a_secret():
    found = judge_settings({**GOOD, JWT_SECRET: "", JWT_KEY_FILE: "/keys/a.pem"})
    assert {each.status for each in found} == {Status.OK}


@pytest.mark.parametrize(
    ("executors", "ledger", "store", "names"),
    [
        ("LocalExecutor", "sqlite:////l.db", "/store", []),
        ("airflow.executors.local_executor.LocalExecutor", "sqlite:////l.db", "/store", []),
        ("CeleryExecutor", "postgresql://db/weir", "s3://b/weir", []),
        ("CeleryExecutor", "sqlite:////l.db", "s3://b/weir", ["ledger of all workers"]),
        ("LocalExecutor,KubernetesExecutor", "postgresql://db/weir", "file:///s", ["store of all workers"]),
        ("mine:my.module.EcsExecutor", "sqlite:////l.db", "/s", ["ledger of all workers", "store of all workers"]),
    ],
)
def test_workers_on_several_machines_need_one_ledger_and_one_store(executors, ledger, store, names):
    assert [each.name for each in judge_reach(executors, ledger, store)] == names


def test_the_plugins_folder_has_the_plugin_or_is_told_which_one_has():
    assert judge_plugins_folder("/p", ("weir_plugin.py", "x.py"), None).status is Status.OK
    other = judge_plugins_folder("/p", ("x.py",), "/weir/plugins")
    assert other.status is Status.PROBLEM
    assert "AIRFLOW__CORE__PLUGINS_FOLDER=/weir/plugins" in other.mend
    assert judge_plugins_folder("/p", None, None).found == "/p is not there"

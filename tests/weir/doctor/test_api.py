from datetime import UTC, datetime, timedelta

import pytest

from weir.doctor import api
from weir.doctor.examination import Status

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
UPKEEP = api.Dag(api.UPKEEP, is_paused=False, max_active_runs=1)
HOURLY = api.Dag(api.UPKEEP_HOURLY, is_paused=False, max_active_runs=1)
TRIPS = api.Dag("trips", is_paused=False, max_active_runs=16)
SERIAL = api.Dag("trips", is_paused=False, max_active_runs=1)
HEALTHY = {name: {"status": "healthy"} for name in ("metadatabase", "scheduler", "dag_processor")}


def last(state, minutes):
    return api.LastRun(state, NOW - timedelta(minutes=minutes))


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (api.judge_version("3.3.2", "3.3.2"), "ok", "3.3.2"),
        (api.judge_version("3.3.2", "3.3.1"), "warning", "same Airflow"),
        (api.judge_plugin(is_mounted=True), "ok", ""),
        (api.judge_plugin(is_mounted=False, dags=[TRIPS]), "problem", "PLUGINS_FOLDER"),
        (api.judge_permission("weir", ["trips"], []), "ok", "trips"),
        (api.judge_permission("weir", ["trips"], ["secret_dag"]), "problem", "PUT on task instances"),
        (api.judge_import_errors([]), "ok", ""),
        (
            api.judge_import_errors([{"filename": "trips.py", "stack_trace": "Traceback\n  x\nNameError: no\n"}]),
            "problem",
            "trips.py: NameError: no",
        ),
        (api.judge_upkeep(api.UPKEEP, None, None, NOW), "problem", "dags/weir_upkeep.py"),
        (
            api.judge_upkeep(api.UPKEEP, api.Dag(api.UPKEEP, True, 1), None, NOW),
            "problem",
            "airflow dags unpause weir_upkeep",
        ),
        (api.judge_upkeep(api.UPKEEP, UPKEEP, None, NOW), "ok", "not run yet"),
        (api.judge_upkeep(api.UPKEEP, UPKEEP, last("success", 2), NOW), "ok", "success"),
        (api.judge_upkeep(api.UPKEEP, UPKEEP, last("failed", 2), NOW), "problem", "log of its tasks"),
        (api.judge_upkeep(api.UPKEEP, UPKEEP, last("success", 60), NOW), "warning", "60 minutes"),
        (api.judge_upkeep(api.UPKEEP_HOURLY, None, None, NOW), "problem", "dags/weir_upkeep.py"),
        (api.judge_upkeep(api.UPKEEP_HOURLY, HOURLY, last("success", 60), NOW), "ok", "success"),
        (api.judge_upkeep(api.UPKEEP_HOURLY, HOURLY, last("success", 200), NOW), "warning", "200 minutes"),
        (api.judge_active_runs([HOURLY], is_mounted=False), "ok", "1 DAG(s)"),
        (api.judge_active_runs([UPKEEP, TRIPS], is_mounted=False), "ok", "2 DAG(s)"),
        (api.judge_active_runs([UPKEEP, SERIAL], is_mounted=True), "ok", "plugin"),
        (api.judge_active_runs([UPKEEP, SERIAL], is_mounted=False), "problem", "max_active_runs=4"),
        (api.judge_pool(None, 4), "unknown", "may not"),
        (api.judge_pool(-1, 4), "ok", "without limit"),
        (api.judge_pool(128, 4), "ok", "128"),
        (api.judge_pool(1, 4), "warning", "airflow pools set"),
        (api.judge_pool(1, 1), "ok", "1"),
    ],
)
def test_each_answer_is_judged(finding, status, words):
    assert finding.status is Status(status)
    assert words in f"{finding.found} {finding.expected} {finding.mend}"


@pytest.mark.parametrize("missing", ["metadatabase", "scheduler", "dag_processor"])
def test_a_component_that_weir_needs_is_missed(missing):
    assert [each.status for each in api.judge_health(HEALTHY)] == [Status.OK]
    [silent] = api.judge_health({**HEALTHY, missing: None})
    [sick] = api.judge_health({**HEALTHY, missing: {"status": "unhealthy"}})
    assert (silent.status, sick.status) == (Status.PROBLEM, Status.PROBLEM)
    assert f"{missing}: unhealthy" in sick.found


def test_the_triggerer_is_not_missed():
    assert [each.status for each in api.judge_health({**HEALTHY, "triggerer": None})] == [Status.OK]

"""The runs of Airflow that a task describes to the coordinator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest


def dag_run(day, kind="backfill", state="running", **more):
    """A DagRun as the task's API has it, with Airflow's own enums."""
    from airflow.sdk.api.datamodels._generated import DagRunState, DagRunType

    start = datetime(2013, 1, day, tzinfo=UTC)
    known = {
        "dag_id": "delays",
        "run_id": f"{kind}__{day}",
        "data_interval_start": start,
        "data_interval_end": start + timedelta(days=1),
        "run_type": DagRunType(kind),
        "state": DagRunState(state),
        "start_date": None if state == "queued" else start,
    }
    return SimpleNamespace(**{**known, **more})


def found_by(own, before):
    from weir_airflow.tasks.running import previous_run

    context = {"dag_run": own, "ti": SimpleNamespace(get_previous_dagrun=lambda: before)}
    return previous_run(context)


@pytest.mark.parametrize(
    ("own", "before", "is_backwards"),
    [
        (("backfill", "running"), ("backfill", "queued"), True),
        (("backfill", "running"), ("backfill", "running"), False),
        (("backfill", "running"), ("backfill", "failed"), False),
        (("scheduled", "running"), ("scheduled", "queued"), False),
        (("backfill", "running"), ("scheduled", "queued"), False),
        (("manual", "running"), ("backfill", "queued"), False),
    ],
)
def test_a_backfill_runs_backwards_if_an_earlier_run_of_it_is_queued_while_a_later_one_runs(own, before, is_backwards):
    found = found_by(dag_run(2, *own), dag_run(1, *before))
    assert found.run_id == f"{before[0]}__1"
    assert found.is_queued is is_backwards


def test_an_earlier_run_that_has_started_once_and_was_cleared_is_not_queued():
    cleared = dag_run(1, state="queued", start_date=datetime(2026, 1, 1, tzinfo=UTC))
    assert found_by(dag_run(2), cleared).is_queued is False


def test_a_run_without_an_interval_is_no_earlier_epoch():
    assert found_by(dag_run(2), None) is None
    assert found_by(dag_run(2), dag_run(1, data_interval_start=None)) is None


@pytest.mark.parametrize("kind", ["backfill", "scheduled", "manual"])
def test_what_a_backfill_makes_is_no_fresh_result(kind):
    from weir_airflow.tasks.running import is_backfill

    assert is_backfill({"dag_run": dag_run(1, kind)}) is (kind == "backfill")

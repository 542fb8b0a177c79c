"""What a task works with, task_context by Airflow connections alone."""

from __future__ import annotations

import json

import pytest

from weir.store.catalogue import stored_dataflows


@pytest.fixture
def s3():
    from tests.servers.s3 import running_s3

    with running_s3() as server:
        server.make_bucket("weir-of-office")
        yield server


def test_store_and_ledger_are_opened_by_their_connections(s3, tmp_path, monkeypatch, caplog):
    from weir_airflow.tasks.context import TaskContext

    for name in ("WEIR_STORE", "WEIR_STORE_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    extra = {"url": "s3a://weir-of-office/team", "endpoint_url": s3.url, "region_name": "us-east-1"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_WEIR_STORE",
        json.dumps({"conn_type": "aws", "login": "weir", "password": "hush-hush", "extra": extra}),
    )
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    with TaskContext.open() as task_context:
        store_id = task_context.store.initialise()
        task_context.store.check_marker(store_id)
        assert task_context.store.url == "s3://weir-of-office/team"
        assert task_context.store.spark_url("flow") == "s3a://weir-of-office/team/flow"
        assert stored_dataflows(task_context.store) == ()
        assert "hush" not in repr(task_context) + repr(task_context.store) + caplog.text

"""Tries of a task instance that begin, fail, and are answered by the retry policy, with a real ledger and no Spark."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

from weir.coordination.values import BeginRequest, TaskKey
from weir.dataflow import Dataflow, sink, source
from weir.ledger.database.tables import AttemptRow
from weir.ledger.ledger import Ledger
from weir.restarts.strategy import FixedDelay, RestartChoice
from weir.topology.regions import Topology
from weir_airflow.dags.declaration import Declaration, TaskRecovery
from weir_airflow.recovery.retry import WeirRetryPolicy
from weir_airflow.tasks.context import TaskContext

DAY = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
FAST = FixedDelay(9, 1_000)


class Tries:
    """Tries of one task instance that begin, fail, and are answered."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    @classmethod
    def at(cls, folder, monkeypatch):
        monkeypatch.setenv("WEIR_STORE", str(folder / "store"))
        monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
        monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", json.dumps({"conn_type": "weir-db"}))
        return cls(folder)

    def fail(self, error, strategy, policy=None, enrichers=(), context=None):
        self.count += 1
        flow = Dataflow("brook", [source("spring", "m:spring"), sink("spring", "mouth")])
        recovery = TaskRecovery(RestartChoice.of(strategy), policy, tuple(enrichers))
        declared = Declaration(flow, Topology(flow), recovery, "")
        key = TaskKey("brook", "r", "spring-mouth", -1)
        with TaskContext.open() as task_context:
            task_context.coordinator.begin(
                BeginRequest(
                    key=key,
                    try_number=self.count,
                    max_tries=999,
                    ti_id=f"ti-{self.count}",
                    dataflow=flow,
                    task_prefix="",
                    interval=DAY,
                    session_url="sc://nowhere",
                ),
                task_context.airflow,
            )
        of_task = {"dag_id": "brook", "run_id": "r", "task_id": "spring-mouth", "map_index": -1}
        ti = SimpleNamespace(**of_task, try_number=self.count, id=f"ti-{self.count}")
        run = SimpleNamespace(run_id="r", dag_id="brook", data_interval_start=DAY[0], data_interval_end=DAY[1])
        task = SimpleNamespace(declared=declared, weir_region="spring-mouth", task_id="spring-mouth")
        context = {} if context is None else context
        context |= {"ti": ti, "task": task, "dag_run": run}
        return WeirRetryPolicy().evaluate(error, self.count, 999, context)

    def rows(self):
        ledger = Ledger.open(f"sqlite:///{self.folder}/ledger.db")
        with ledger.transaction() as session:
            rows = list(session.query(AttemptRow).order_by(AttemptRow.try_number))
        ledger.close()
        return rows

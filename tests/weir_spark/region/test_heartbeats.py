"""A heartbeat really ends Spark work that could not be committed."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.assembly import coordinator_of
from weir.attempts.attempt import run_attempt
from weir.attempts.steps import repeated
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Conflict
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.testing.fakes.task_ports import FakeTaskPorts
from weir_spark.transport.connect import ConnectEngine

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("seen_at_work")]

SECONDS = 200
"""How long the work would take, at least."""

PIPELINE = """
import time
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

SLOW = Path(%r)


def numbers(ctx):
    return ctx.spark.range(0, 400, 1, 2)


@F.udf(LongType())
def slowly(number):
    if SLOW.exists():
        time.sleep(1)
    return number


def joined(ctx, numbers):
    return numbers.select(slowly("id").alias("id"))
"""


class Ports(FakeTaskPorts):
    """The ports of a process with a second thread, as Airflow's has it; `computes` is set once Spark is at work."""

    def __init__(self, airflow, coordinator):
        super().__init__(airflow, coordinator)
        self.computes = threading.Event()

    def heartbeats(self, beat):
        return repeated(beat, 0.2, self.log)

    def log(self, message):
        super().log(message)
        if "Spark's tasks" in message:
            self.computes.set()


class Engine(ConnectEngine):
    """A Connect engine as a task's port."""

    def prepare(self):
        """Do nothing: this process has imported the pipeline."""

    def connect(self):
        """Do nothing."""


@pytest.fixture
def airflow(server, store, tmp_path, pipeline):
    module = pipeline(PIPELINE % str(tmp_path / "slow"))
    stages = (
        source("numbers", f"{module}:numbers"),
        Stage("joined", f"{module}:joined", [blocking("numbers")]),
        sink("joined", "delays"),
    )
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store)
    yield AirflowWithCode(services, OnSpark(server.url, store), Dataflow("flow", stages))
    ledger.close()


def test_spark_work_whose_input_has_changed_is_interrupted_at_the_next_heartbeat(airflow, server, tmp_path) -> None:
    run, services = airflow.dag_run(), airflow.services
    airflow.step(airflow.task(run, "numbers"))
    task = airflow.task(run, "joined-delays")
    task.try_number, task.state = 1, "running"
    ports = Ports(airflow, coordinator_of(services))
    (tmp_path / "slow").touch()

    def change() -> None:
        assert ports.computes.wait(120)
        with services.ledger.transaction("flow") as session:
            row = session.scalars(select(ResultRow).where(ResultRow.stage == "numbers")).one()
            row.digest = f"{row.digest}0"

    changing = threading.Thread(target=change)
    changing.start()
    began = time.monotonic()
    with pytest.raises(Conflict, check=of_kind("attempts.input_changed")) as stopped:
        run_attempt(ports, Engine(server.url), "flow", lambda: airflow.request(task))
    changing.join()
    assert time.monotonic() - began < SECONDS / 2
    assert type(stopped.value.__cause__).__name__ == "Fenced"
    with services.ledger.transaction() as session:
        session_id = session.scalars(select(AttemptRow.session_id).where(AttemptRow.region == "joined-delays")).one()
    ended = SparkSession.builder.remote(f"{server.url};user_id=weir;session_id={session_id}").create()
    with pytest.raises(PySparkException, match="SESSION_CLOSED"):
        ended.range(1).collect()
    ended.client.close()  # or this process asks the server for ten minutes when both end

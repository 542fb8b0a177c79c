"""The error of a task whose input Spark could not read: the store decides whether the input is lost."""

from __future__ import annotations

import pytest
from tests.builders.ledgers import new_ledger

from weir.attempts.attempt import inputs_suspected
from weir.coordination.services import Services
from weir.coordination.values import Begun
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import InputUnreadable, ResultUnavailable
from weir.execution.failure_class import FailureClass, classify
from weir.store.store import Store
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine

FLOW = Dataflow(
    "flow",
    [
        source("numbers", "pipelines.numbers:numbers"),
        Stage("joined", "pipelines.numbers:joined", [blocking("numbers")]),
        sink("joined", "delays"),
    ],
)
SAID = "region joined-delays: Spark could not read numbers[0] (plain) of attempt t0001"


@pytest.fixture
def airflow(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: made.time)
    made = FakeAirflow(services, FakeEngine(store, {}), FLOW)
    yield made
    ledger.close()


@pytest.fixture
def begun(airflow) -> Begun:
    """The consumer, while it runs."""
    run = airflow.dag_run()
    airflow.step(airflow.task(run, "numbers"))
    task = airflow.task(run, "joined-delays")
    task.try_number = 1
    found = airflow.coordinator.begin(airflow.request(task), airflow)
    assert isinstance(found, Begun)
    return found


def fails(airflow, begun) -> None:
    with inputs_suspected(airflow.coordinator, begun):
        raise InputUnreadable(SAID)


def test_an_input_that_was_away_for_a_moment_costs_a_try_of_the_environment(airflow, begun) -> None:
    with pytest.raises(InputUnreadable) as caught:
        fails(airflow, begun)
    assert str(caught.value).startswith(f"{SAID}. By now it is there, as recorded: nothing is lost")
    assert classify(caught.value) is FailureClass.ENVIRONMENT


def test_an_input_that_is_gone_is_lost_with_its_attempt(airflow, begun) -> None:
    [read] = begun.inputs
    airflow.services.store.delete(f"{read.folder}/{read.manifest.files[0].name}")
    with pytest.raises(ResultUnavailable) as caught:
        fails(airflow, begun)
    assert [loss.attempt for loss in caught.value.losses] == [read.manifest.attempt]

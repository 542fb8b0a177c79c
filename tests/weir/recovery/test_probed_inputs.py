"""A begin leases finished inputs only, whatever other tasks record while it probes the store."""

import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger

from weir.coordination.services import Services
from weir.coordination.values import Begun
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Fault, Loss, ResultUnavailable
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.results import record_losses
from weir.store.store import Store
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine

FLOW = Dataflow(
    "flow",
    [
        source("numbers", "pipelines.numbers:numbers"),
        Stage("sums", "pipelines.numbers:sums", [blocking("numbers")]),
        sink("sums", "totals"),
    ],
)


class OvertakenStore(Store):
    """A store in which `then` happens after the next read of `path`."""

    __slots__ = ("path", "then")

    def __init__(self, store):
        super().__init__(store.files)
        self.path, self.then = "", None

    def read(self, path, offset=0, length=None):
        found = super().read(path, offset, length)
        if self.then is not None and path == self.path:
            then, self.then = self.then, None
            then()
        return found


@pytest.fixture
def airflow(tmp_path):
    ledger = new_ledger(tmp_path / "ledger.db")
    store = OvertakenStore(Store.open(str(tmp_path / "store")))
    made = FakeAirflow(Services(ledger=ledger, store=store, now=lambda: made.time), FakeEngine(store, {}), FLOW)
    yield made
    ledger.close()


@pytest.fixture
def consumer(airflow):
    """The task that reads `numbers`, about to begin."""
    run = airflow.dag_run()
    airflow.step(airflow.task(run, "numbers"))
    task = airflow.task(run, "sums-totals")
    task.try_number = 1
    return task


def overtake(airflow, *, is_back):
    """While the next begin probes the only file of `numbers`, another task records that it is missing."""
    services = airflow.services
    with services.ledger.transaction() as session:
        row = session.scalars(select(ResultRow).where(ResultRow.stage == "numbers")).one()
    path = f"{row.folder}/part-0.bin"

    def then():
        lost = Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, Fault.MISSING, "it was away")
        with services.ledger.transaction("flow") as session:
            record_losses(session, [lost], services.now())
        if not is_back:
            services.store.delete(path)

    services.store.path, services.store.then = path, then


def leased(airflow):
    with airflow.services.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow.state).join(LeaseRow, LeaseRow.result == ResultRow.id)))


def test_an_input_that_another_task_recorded_as_lost_meanwhile_is_probed_again(airflow, consumer):
    overtake(airflow, is_back=True)
    assert isinstance(airflow.coordinator.begin(airflow.request(consumer), airflow), Begun)
    assert leased(airflow) == ["finished"]


def test_an_input_that_was_lost_while_it_was_probed_is_not_leased(airflow, consumer):
    overtake(airflow, is_back=False)
    with pytest.raises(ResultUnavailable) as caught:
        airflow.coordinator.begin(airflow.request(consumer), airflow)
    assert [loss.stage for loss in caught.value.losses] == ["numbers"]
    assert leased(airflow) == []

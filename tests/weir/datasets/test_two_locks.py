"""Operations of two dataflows in the middle of each other, on PostgreSQL: no deadlock, and the outcome is right.

The first stands still before a statement or a COMMIT until the second has ended, or waits for a lock of the first.
"""

import random
import threading

import pytest
from sqlalchemy import event, select
from tests.weir.datasets.neighbours import reader, trips

from weir.dataflow import dataset, last
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.upkeep import RESULTS, settle_everywhere

DAY2 = "scheduled__2013-01-02"
OF_PRODUCER = ("commit", "close", "upkeep")
OF_READER = ("read", "made", "close of the reader")


@pytest.fixture
def database():
    return "postgresql"


@pytest.fixture
def scene(town):
    """The second day of the trips is computed anew, with other rows; its reader is cleared, too."""
    flow = town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones", epoch=last(2))))
    town.run("trips", 1, 2)
    town.run("report", 1, 2)
    town.content["trips"]["raw"] = "other"
    watch(town.ledger._engine)
    for task in ("raw", "by_zone-zones", "weir_close"):
        for key in [key for key in flow.tasks if (key.run_id, key.task_id) == (DAY2, task)]:
            flow.clear_by_hand(DAY2, task, key.map_index)
    for task in ("read", "made-out", "weir_close"):
        report.clear_by_hand(DAY2, task)
    return town


def prepared(town, kind):
    """Bring the scene to where an operation is next, and return the operation."""
    flow, report = town.airflows["trips"], town.airflows["report"]
    if kind == "upkeep":
        return lambda: settle_everywhere(town.services, RESULTS).require_whole()
    steps = {
        "commit": [(flow, "raw", -1), (flow, "by_zone-zones", 0), (flow, "by_zone-zones", 1)],
        "close": [(flow, "raw", -1), *((flow, "by_zone-zones", each) for each in (0, 1)), (flow, "weir_close", -1)],
        "read": [(report, "read", -1)],
        "made": [(report, "read", -1), (report, "made-out", -1)],
        "close of the reader": [(report, "read", -1), (report, "made-out", -1), (report, "weir_close", -1)],
    }[kind]
    for airflow, task, index in steps[:-1]:
        airflow.step(airflow.task(DAY2, task, index))
    airflow, task, index = steps[-1]
    return lambda: airflow.step(airflow.task(DAY2, task, index))


class Halt(threading.Thread):
    """A thread that performs an operation, and stands still before its statement or COMMIT of a number."""

    def __init__(self, work, at=0):
        super().__init__()
        self.work, self.at, self.count, self.error = work, at, 0, None
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.start()

    def point(self):
        self.count += 1
        if self.count == self.at:
            self.reached.set()
            self.go_on.wait(60)

    def run(self):
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error
        finally:
            self.reached.set()

    def end(self):
        self.go_on.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def watch(engine):
    """Each statement and each COMMIT of a halting thread is a point of it."""

    def point(*_):
        thread = threading.current_thread()
        if isinstance(thread, Halt):
            thread.point()

    event.listen(engine, "before_cursor_execute", point)
    event.listen(engine, "commit", point)


def deadlocks(town):
    with town.ledger._engine.connect() as connection:
        return connection.exec_driver_sql("SELECT sum(deadlocks) FROM pg_stat_database").scalar()


def is_blocked(town):
    with town.ledger._engine.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        return bool(connection.exec_driver_sql(query).scalar())


def perform(town, first, second, at):
    """Perform `first` up to a statement, then `second`, then the rest; return the statements of `first`."""
    before = deadlocks(town)
    halting = Halt(first, at)
    halting.reached.wait(60)
    other = Halt(second)
    while other.is_alive() and not is_blocked(town):
        other.join(0.02)
    halting.end()
    other.end()
    assert deadlocks(town) == before
    return halting.count


def require_right(town):
    """All goes on to its end: each run is closed, and each result is made of what is published."""
    settle_everywhere(town.services, RESULTS).require_whole()
    for name, airflow in town.airflows.items():
        airflow.deliver_clears(name)
    town.go_on()
    with town.ledger.transaction() as session:
        for row in session.scalars(select(RunRow)):
            state = run_state(session, run_by_id(session, row.id))
            parts = [each for region in state.region_ids() for each in state.outputs(region)]
            assert {each: list(state.obstacles(each)) for each in parts if not state.is_valid(each)} == {}
            assert row.closed_at is not None
    assert [each.version for each in town.versions("trips", day=2)] == [1, 2]
    assert len(town.versions("report", "out", day=2)) == 2


PAIRS = [(one, other) for one in OF_PRODUCER for other in OF_READER]
MOST_POINTS = 110


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_operations_of_two_dataflows_break_nothing_in_the_middle_of_each_other(scene, one, other):
    """One point of each pair, always the same, of the one that comes first by chance."""
    chance = random.Random(one + other)
    first, second = chance.sample((one, other), 2)
    perform(scene, *(prepared(scene, each) for each in (first, second)), chance.randint(1, MOST_POINTS))
    require_right(scene)


@pytest.mark.soak
@pytest.mark.parametrize("at", range(1, MOST_POINTS, 3))
@pytest.mark.parametrize(("first", "second"), [*PAIRS, *((other, one) for one, other in PAIRS)])
def test_every_pair_at_many_points(scene, first, second, at):
    perform(scene, *(prepared(scene, each) for each in (first, second)), at)
    require_right(scene)

"""Attempts of many processes on one PostgreSQL ledger: each try enters once, and the newest that committed counts."""

import multiprocessing
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from tests.builders.ledgers import fast_folder

from weir.assembly import coordinator_of
from weir.attempts.failure import fail
from weir.coordination.airflow import ClearAnswer
from weir.coordination.services import Services
from weir.coordination.settled import CLEARS
from weir.coordination.values import Adopted, BeginRequest, Begun, FailedTry, TaskKey
from weir.dataflow import Dataflow, sink, source
from weir.errors import Conflict, Fenced, Retryable
from weir.ledger.database.tables import AttemptRow, PendingClearRow, ResultRow
from weir.ledger.ledger import Ledger
from weir.restarts.strategy import RestartStrategy
from weir.settling import Settling
from weir.store.store import Store
from weir.testing.fakes.engine import FakeEngine
from weir.topology.regions import Topology

DAY = datetime(2013, 1, 1, tzinfo=UTC)
TRIES = 5


def wide(name, parallelism):
    return Dataflow(name, [source("raw", "pipelines.wide:raw", parallelism=parallelism), sink("raw", "out")])


def region_of(flow):
    (region,) = Topology(flow).regions
    return region.name


class Hand:
    """An Airflow in which whatever is to be cleared runs already, and which has lost none of the tries."""

    def clear(self, wanted):
        return [ClearAnswer(each, "running", each.expected_try or 1, cleared=False) for each in wanted]

    def inspect(self, wanted):
        return [ClearAnswer(each, "queued", each.expected_try or 1, cleared=False) for each in wanted]


class Writer:
    """What a task process does with the coordinator, without Airflow and Spark."""

    def __init__(self, url, folder, flow, number):
        self.store = Store.open(f"file://{folder}")
        self.ledger = Ledger.open(url)
        self.coordinator = coordinator_of(Services(ledger=self.ledger, store=self.store))
        self.flow, self.key = flow, TaskKey("dag", "run", region_of(flow), number)
        self.world = {}

    def try_once(self, number):
        """One try. Each computes other content, as `max_tries` says that a person asked."""
        request = BeginRequest(
            key=self.key,
            try_number=number,
            max_tries=999 + number,
            ti_id="ti",
            dataflow=self.flow,
            task_prefix="",
            interval=(DAY, DAY + timedelta(days=1)),
            session_url="",
        )
        begun = self.coordinator.begin(request, Hand())
        if isinstance(begun, Adopted):  # the other process of the same try has committed
            return
        assert isinstance(begun, Begun), begun
        self.world["raw"] = number
        report = FakeEngine(self.store, self.world).run(begun.job)
        self.coordinator.heartbeat(begun)
        self.coordinator.commit(begun, report, Hand())
        Settling(self.coordinator.services, Hand).settle(self.flow.name, CLEARS).require_whole()


def race(url, folder, flow, subtask):
    """Take part in each try of a subtask; some other process does the same."""
    writer = Writer(url, folder, flow, subtask)
    for number in range(1, TRIES + 1):
        try:
            writer.try_once(number)
        except (Fenced, Conflict):
            continue


def persist(url, folder, flow, subtask):
    """Try as Airflow does, until as many tries have committed as there should be."""
    writer, number, committed = Writer(url, folder, flow, subtask), 0, 0
    while committed < TRIES:
        number += 1
        try:
            writer.try_once(number)
        except Retryable as error:
            book(writer, number, error)
            # The commit may have gone through, as the next begin would find.
            committed += has_committed(writer, number)
        else:
            committed += 1


def book(writer, number, error):
    failed = FailedTry(
        dataflow=writer.flow.name,
        key=writer.key,
        try_number=number,
        ti_id="ti",
        error=error,
        strategy=RestartStrategy.default(),
    )
    with suppress(Retryable):  # the next begin finds the try without an end
        fail(writer.coordinator.services, failed, Hand)


def has_committed(writer, number):
    query = select(AttemptRow.state).where(AttemptRow.subtask == writer.key.map_index, AttemptRow.try_number == number)
    while True:
        with suppress(Retryable), writer.ledger.transaction() as session:  # the server may die under this question, too
            return session.scalar(query) == "committed"


@pytest.fixture
def folder():
    with fast_folder() as made:
        yield made


@pytest.fixture
def url(new_postgres_url):
    return new_postgres_url()


def start(work, *each):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=args, daemon=True) for args in each]
    for process in processes:
        process.start()
    return processes


def attempts(url):
    with Ledger.open(url).transaction() as session:
        return list(session.scalars(select(AttemptRow).order_by(AttemptRow.try_number)))


def check(url, subtasks):
    """Each partition has one current result, of the newest try that committed; nothing is running or pending."""
    found = attempts(url)
    newest = {(row.run, row.subtask): row.id for row in found if row.state == "committed"}
    with Ledger.open(url).transaction() as session:
        current = session.scalars(select(ResultRow).where(ResultRow.is_current)).all()
        assert {(row.run, row.subtask): row.attempt for row in current} == newest
        assert len(current) == len(newest) == subtasks
        assert session.scalar(select(func.count(PendingClearRow.id)).where(PendingClearRow.settled_at.is_(None))) == 0
    again = Counter((row.run, row.subtask, row.try_number) for row in found)
    assert set(again.values()) == {1}


def deadlocks(postgres, url):
    query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = :name")
    with postgres.connect() as connection:
        return connection.scalar(query, {"name": make_url(url).database})


@pytest.mark.parametrize("dataflows", [pytest.param(1, marks=pytest.mark.soak), 4])
def test_of_sixteen_processes_that_race_in_pairs_one_enters_each_try(postgres, url, folder, dataflows):
    flows = [wide(f"wide_{number}", 8 // dataflows) for number in range(dataflows)]
    Services(ledger=Ledger.open(url), store=Store.open(f"file://{folder}")).store_id()
    pairs = [(url, folder, flow, subtask) for flow in flows for subtask in range(8 // dataflows)]
    processes = start(race, *pairs, *pairs)
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    check(url, subtasks=8)
    tries = {(row.run, row.subtask, row.try_number) for row in attempts(url)}
    assert len(tries) == 8 * TRIES
    assert {row.state for row in attempts(url)} <= {"committed", "fenced"}
    assert deadlocks(postgres, url) == 0


def test_eight_processes_reach_their_end_although_the_server_dies_again_and_again(postgres, url, folder):
    flow = wide("wide", 8)
    Services(ledger=Ledger.open(url), store=Store.open(f"file://{folder}")).store_id()
    processes = start(persist, *[(url, folder, flow, subtask) for subtask in range(8)])
    died, before = 0, -1
    while any(process.is_alive() for process in processes):
        now = sum(row.state == "committed" for row in attempts(url))
        if died < 5 and now > before + 3:
            postgres.restart()
            died, before = died + 1, now
        processes[0].join(0.02)
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert died >= 3
    check(url, subtasks=8)
    committed = Counter(row.subtask for row in attempts(url) if row.state == "committed")
    assert set(committed.values()) == {TRIES}

"""Leases by the database's clock: a worker whose clock is wrong neither loses its inputs nor keeps them for ever."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import delete, func, select, update
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import World, ladder

from weir.coordination.read_leases import ReadLease, claimed
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.leases import LEASE, clock, drop_expired, drop_leases, hold_leases, leased, take_leases
from weir.ledger.ledger import Ledger
from weir.reading.opening import open_results
from weir.retention.release import release

FLOW = "ladder"
RUN = "ladder@20130101T000000Z"
FUTURE = timedelta(hours=10)
PAST = -FUTURE


@contextmanager
def a_run_on(request, database):
    """A complete run; tests set the clock of each process."""
    empty = None
    if database == "postgresql":
        server, name = request.getfixturevalue("postgres"), f"leases_{uuid.uuid4().hex}"
        empty = partial(Ledger.open, server.url(name))
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, ladder(), empty)
        world.airflow.dag_run()
        world.airflow.run_until_quiet()
        world.has_clock = database == "postgresql"
        yield world
        world.ledger.close()
    if empty is not None:
        server.drop_database(name)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request):
    """One that tests share: they take leases, and release nothing."""
    with a_run_on(request, request.param) as world:
        yield world


@pytest.fixture
def done(world):
    with world.ledger.transaction(FLOW) as session:
        session.execute(delete(LeaseRow))
    return world


@pytest.fixture(params=["sqlite", "postgresql"])
def own(request):
    """One in which a test may release."""
    with a_run_on(request, request.param) as world:
        yield world


def joined(session):
    return list(session.scalars(select(ResultRow.id).where(ResultRow.stage == "joined")))


def take(world, holder="me", skew=timedelta(0)):
    with world.ledger.transaction(FLOW) as session:
        take_leases(session, joined(session), holder, world.airflow.time + skew)


def seen(world, skew=timedelta(0)):
    """Return the holders of leases, for a process whose clock is wrong by `skew`."""
    with world.ledger.transaction() as session:
        return {row.holder for row in leased(session, joined(session), world.airflow.time + skew).values()}


def expire(world):
    """Let all leases have ended a second ago, by the clock that counts."""
    with world.ledger.transaction(FLOW) as session:
        ended = clock(session, world.airflow.time) - timedelta(seconds=1)
        session.execute(update(LeaseRow).values(expires_at=ended))


def count(world):
    with world.ledger.transaction() as session:
        return session.scalar(select(func.count()).select_from(LeaseRow))


def releases(world, services=None):
    said = release(services or world.services, FLOW, [RUN], is_reclaiming=True, is_dry=True)
    return {each.stored.partition.stage: each.is_released for each in said}["joined"]


def test_a_lease_lasts_an_hour_and_is_renewed_by_an_hour(done):
    take(done)
    assert seen(done) == {"me"}
    assert not releases(done)
    expire(done)
    assert seen(done) == set()
    assert releases(done)
    with done.ledger.transaction(FLOW) as session:
        assert hold_leases(session, "me", joined(session), [PartitionState.FINISHED], done.airflow.time) == frozenset()
    assert seen(done) == {"me"}


def test_the_lease_that_ends_last_is_told_of_each_result(done):
    take(done, "first")
    with done.ledger.transaction(FLOW) as session:
        take_leases(session, joined(session), "second", done.airflow.time)
        later = update(LeaseRow).where(LeaseRow.holder == "first")
        session.execute(later.values(expires_at=clock(session, done.airflow.time) + 2 * LEASE))
    assert seen(done) == {"first"}


def test_only_ones_own_leases_are_dropped(done):
    take(done, "first")
    take(done, "second")
    with done.ledger.transaction(FLOW) as session:
        drop_leases(session, "first")
    assert seen(done) == {"second"}
    assert not releases(done)


def test_leases_that_have_just_ended_are_kept_for_whoever_was_asleep(done):
    take(done)
    expire(done)
    with done.ledger.transaction(FLOW) as session:
        drop_expired(session, done.airflow.time)
    assert count(done) == 2
    with done.ledger.transaction(FLOW) as session:
        session.execute(update(LeaseRow).values(expires_at=clock(session, done.airflow.time) - 2 * LEASE))
        drop_expired(session, done.airflow.time)
    assert count(done) == 0


def test_nothing_is_leased_of_nothing(done):
    with done.ledger.transaction(FLOW) as session:
        take_leases(session, [], "me", done.airflow.time)
        assert leased(session, [], done.airflow.time) == {}


@pytest.mark.parametrize("skew", [FUTURE, PAST], ids=["fast", "slow"])
def test_a_worker_whose_clock_is_wrong_keeps_its_inputs(done, skew):
    """On SQLite all processes are of one machine, which has one clock."""
    if not done.has_clock:
        take(done, skew=skew)
        assert seen(done, skew) == {"me"}
        return
    take(done, skew=skew)
    assert seen(done) == seen(done, FUTURE) == seen(done, PAST) == {"me"}
    for wrong in (FUTURE, PAST, 1000 * FUTURE):
        services = replace(done.services, now=lambda wrong=wrong: done.airflow.time + wrong)
        assert not releases(done, services)
    expire(done)
    assert seen(done) == seen(done, FUTURE) == seen(done, PAST) == set()


def test_a_worker_whose_clock_is_wrong_drops_nobodys_lease(done):
    take(done)
    with done.ledger.transaction(FLOW) as session:
        drop_expired(session, done.airflow.time + (1000 * FUTURE if done.has_clock else timedelta(0)))
    assert seen(done) == {"me"}


def test_the_clock_goes_on_within_a_transaction_and_tells_utc(done):
    """A transaction may have waited for its lock: what counts is the time after that."""
    with done.ledger.transaction(FLOW) as session:
        first, second = clock(session, done.airflow.time), clock(session, done.airflow.time)
    assert first.tzinfo is UTC
    if done.has_clock:
        assert first < second
        assert abs(datetime.now(UTC) - second) < timedelta(minutes=5)
    else:
        assert first == second == done.airflow.time


def test_whoever_releases_waits_for_whoever_claims_and_sees_the_claim(own):
    with ThreadPoolExecutor() as pool:
        with own.ledger.transaction(FLOW) as session:
            claim = claimed(session, own.services, FLOW, joined(session), "me")
            said = pool.submit(release, own.services, FLOW, [RUN], is_reclaiming=True)
        lease = ReadLease(claim)
        released = {each.stored.partition.stage: each.is_released for each in said.result(timeout=60)}
    lease.close()
    assert not released["joined"]
    assert released["clean"]


def test_whoever_claims_waits_for_whoever_releases_and_gets_nothing(own):
    with own.ledger.transaction() as session:
        wanted = joined(session)

    def claim():
        with own.ledger.transaction(FLOW) as session:
            return claimed(session, own.services, FLOW, wanted, "me")

    with ThreadPoolExecutor() as pool:
        release(own.services, FLOW, [RUN], is_reclaiming=True)
        assert pool.submit(claim).result(timeout=60).results == frozenset()
    assert count(own) == 0


def test_what_weir_open_gives_is_kept_on_either_database(own):
    with open_results(FLOW, stage="joined", services=own.services) as opened:
        assert len(opened.partitions) == 2
        assert not releases(own)
    assert releases(own)

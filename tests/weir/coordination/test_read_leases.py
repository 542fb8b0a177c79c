"""Whoever reads without being an attempt claims what it reads, and what is claimed stays."""

import gc
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.coordination import read_leases as reading
from weir.coordination.read_leases import ReadLease, claimed, leased_reading, reader
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.leases import LEASE, drop_expired
from weir.ledger.results import transition
from weir.retention.release import release

FLOW = "ladder"
RUN = "ladder@20130101T000000Z"


@pytest.fixture
def done(world):
    """A run that has gone through and is kept."""
    world.run_first(1)
    return world


def of_stage(world, stage):
    with world.ledger.transaction() as session:
        return set(session.scalars(select(ResultRow.id).where(ResultRow.stage == stage)))


def leases(world):
    with world.ledger.transaction() as session:
        return {row.result: row.expires_at for row in session.scalars(select(LeaseRow))}


def pressed(world):
    """The stages that are released where room is needed, and why others stay."""
    said = release(world.services, FLOW, [RUN], is_reclaiming=True, is_dry=True)
    return {each.stored.partition.stage: each.is_released for each in said}, " ".join(each.reason for each in said)


def test_what_is_read_is_not_released_and_its_reader_is_named(done):
    joined = of_stage(done, "joined")
    with leased_reading(done.services, FLOW, joined, reader("a test")) as lease:
        assert lease.results == joined
        released, why = pressed(done)
        assert not released["joined"]
        assert released["clean"]
        assert "a test of " in why
        assert "reads it, under lease until" in why
    assert leases(done) == {}
    assert pressed(done)[0]["joined"]


def test_an_error_while_reading_drops_the_lease(done):
    with pytest.raises(ValueError, match="mine"), leased_reading(done.services, FLOW, of_stage(done, "joined"), "me"):
        raise ValueError("mine")
    assert leases(done) == {}


def test_what_is_gone_is_not_claimed(done):
    joined = of_stage(done, "joined")
    with done.ledger.transaction(FLOW) as session:
        transition(
            session, session.get_one(ResultRow, min(joined)), PartitionState.RELEASED, "a test", done.airflow.time
        )
    with leased_reading(done.services, FLOW, {*joined, 4711}, "me") as lease:
        assert lease.results == joined - {min(joined)}
        assert leases(done).keys() == lease.results


def test_two_readers_of_one_name_do_not_drop_each_others_leases(done):
    joined = of_stage(done, "joined")
    with leased_reading(done.services, FLOW, joined, "x" * 500):
        with leased_reading(done.services, FLOW, joined, "x" * 500):
            pass
        assert leases(done).keys() == joined


def test_a_lease_is_renewed_while_its_reader_lives(done, monkeypatch):
    monkeypatch.setattr(reading, "RENEWAL", 0.01)
    looked = threading.Semaphore(0)

    def now():
        looked.release()
        return done.airflow.time

    services = replace(done.services, now=now)
    with leased_reading(services, FLOW, of_stage(done, "joined"), "me"):
        done.airflow.time += timedelta(minutes=50)
        for _ in range(4):  # two of them have begun after the change, and one of them has ended
            assert looked.acquire(timeout=30)
        assert set(leases(done).values()) == {done.airflow.time + LEASE}
    assert leases(done) == {}


def test_a_reader_that_was_taken_for_dead_claims_what_is_left(done):
    joined = of_stage(done, "joined")
    with leased_reading(done.services, FLOW, joined, "me") as lease:
        done.airflow.time += 3 * LEASE
        with done.ledger.transaction(FLOW) as session:
            drop_expired(session, done.airflow.time)
            row = session.get_one(ResultRow, min(joined))
            transition(session, row, PartitionState.RELEASED, "a test", done.airflow.time)
        assert leases(done) == {}
        lease.renew()
        assert leases(done) == dict.fromkeys(joined - {min(joined)}, done.airflow.time + LEASE)


def taken(world, stage):
    with world.ledger.transaction(FLOW) as session:
        claim = claimed(session, world.services, FLOW, of_stage_in(session, stage), "me")
    return ReadLease(claim)


def of_stage_in(session, stage):
    return set(session.scalars(select(ResultRow.id).where(ResultRow.stage == stage)))


def ended(holder):
    """Wait until the thread of a lease has ended."""
    for thread in threading.enumerate():
        if holder in thread.name:
            thread.join(30)


def test_a_lease_that_is_forgotten_is_dropped(done):
    lease = taken(done, "joined")
    holder = lease.holder
    assert leases(done)
    del lease
    gc.collect()
    ended(holder)
    assert leases(done) == {}


def test_a_lease_may_outlive_its_object_until_it_is_closed(done):
    lease = taken(done, "joined")
    holder, close = lease.holder, lease._claim.end
    lease.outlive_its_object()
    del lease
    gc.collect()
    assert leases(done)
    close()
    ended(holder)
    assert leases(done) == {}


def test_a_lease_is_closed_once(done):
    lease = taken(done, "joined")
    lease.close()
    lease.close()
    lease.renew()
    assert leases(done) == {}


def test_a_rolled_back_answer_claims_nothing(done):
    def take_and_fail():
        with done.ledger.transaction(FLOW) as session:
            claimed(session, done.services, FLOW, of_stage_in(session, "joined"), "me")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        take_and_fail()
    assert leases(done) == {}

"""A pending clear is delivered once Airflow is seen to have followed it, and not before."""

import pytest
from sqlalchemy import select

from weir.coordination.airflow import ClearAnswer
from weir.errors import Retryable
from weir.execution.airflow_words import MISSING
from weir.ledger.clears import add_pending_clear
from weir.ledger.database.tables import AttemptRow, PendingClearRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.pending_clears import deliver
from weir.topology.regions import RegionId

RUN = "ladder@20130101T000000Z"
JOINED = RegionId("joined", 1)


class Hand:
    """Answers as Airflow would, whatever it is asked; `matches` is the try that it clears."""

    def __init__(self, state, try_number, *, clears=False):
        self.state, self.try_number, self.clears = state, try_number, clears
        self.asked, self.notes, self.requests = [], [], 0

    def clear(self, wanted):
        self.asked += wanted
        self.requests += 1
        self.notes += [each.note for each in wanted]
        return [
            ClearAnswer(each, self.state, self.try_number, cleared=self.clears and each.expected_try == self.try_number)
            for each in wanted
        ]

    def inspect(self, wanted):
        raise AssertionError("settling asks nothing that it does not carry out")


on_both = pytest.mark.parametrize("database", ["sqlite", "postgresql"])


@pytest.fixture
def owing(world):
    """A finished run that owes the clear of `joined[1]` at its first try."""
    world.run_first(1)
    owe(world, JOINED, 1, "weir: weather[0] has changed")
    return world


def owe(world, region, expected_try, reason):
    with world.ledger.transaction("ladder") as session:
        add_pending_clear(session, run_by_id(session, RUN), region, expected_try, reason, world.airflow.time)


def open_clears(world):
    with world.ledger.transaction() as session:
        rows = session.scalars(
            select(PendingClearRow).where(PendingClearRow.settled_at.is_(None)).order_by(PendingClearRow.id)
        )
        return [(row.region, row.subtask, row.expected_try) for row in rows]


def newest(session):
    query = select(AttemptRow).where(AttemptRow.region == "joined", AttemptRow.subtask == 1)
    return session.scalars(query.order_by(AttemptRow.try_number.desc())).first()


@on_both
def test_a_clear_that_was_carried_out_is_settled(owing):
    hand = Hand("success", 1, clears=True)
    [settled] = deliver(owing.services, hand)
    assert (settled.is_settled, settled.outcome) == (True, "cleared")
    assert [(each.task_id, each.map_index, each.expected_try) for each in hand.asked] == [("joined", 1, 1)]
    assert hand.notes == ["weir: weather[0] has changed"]
    assert open_clears(owing) == []
    assert deliver(owing.services, hand) == []


@pytest.mark.parametrize("state", [None, "queued", "scheduled", "up_for_retry", "up_for_reschedule", "deferred"])
def test_a_task_that_has_not_finished_needs_no_clear(owing, state):
    with owing.ledger.transaction("ladder") as session:
        newest(session).state = "retrying"
    [settled] = deliver(owing.services, Hand(state, 1))
    assert settled.is_settled
    assert "it has not finished" in settled.outcome


@pytest.mark.parametrize(("state", "is_awaited"), [("up_for_retry", True), (None, True), ("running", False)])
def test_the_try_that_follows_a_fenced_one_is_awaited(owing, state, is_awaited):
    """A rebuild has fenced a try that Airflow goes on to retry."""
    with owing.ledger.transaction("ladder") as session:
        newest(session).state = "fenced"
    deliver(owing.services, Hand(state, 1))
    with owing.ledger.transaction() as session:
        assert run_state(session, run_by_id(session, RUN)).region(JOINED).is_running is is_awaited


@pytest.mark.parametrize("state", ["up_for_reschedule", "scheduled", "queued"])
def test_a_fenced_try_that_begins_anew_under_its_number_is_awaited_until_it_has_ended(owing, state):
    def is_running():
        with owing.ledger.transaction() as session:
            return run_state(session, run_by_id(session, RUN)).region(JOINED).is_running

    with owing.ledger.transaction("ladder") as session:
        newest(session).state = "fenced"
    deliver(owing.services, Hand(state, 1))
    assert is_running()
    with owing.ledger.transaction("ladder") as session:
        newest(session).state = "committed"
    assert not is_running()


def test_a_task_instance_that_is_still_ending_stays_owed(owing):
    """Its try has committed, and so would not read the new content, but Airflow still calls it running."""
    [settled] = deliver(owing.services, Hand("running", 1))
    assert not settled.is_settled
    assert "to be cleared when it has ended" in settled.outcome
    assert open_clears(owing) == [("joined", 1, 1)]
    [settled] = deliver(owing.services, Hand("success", 1, clears=True))
    assert settled.is_settled


def test_a_newer_try_that_began_has_done_what_is_owed(owing):
    with owing.ledger.transaction("ladder") as session:
        row = newest(session)
        columns = {column.name: getattr(row, column.name) for column in AttemptRow.__table__.columns}
        session.add(AttemptRow(**columns | {"id": "t0002-another", "try_number": 2}))
    [settled] = deliver(owing.services, Hand("success", 2, clears=True))
    assert (settled.is_settled, settled.outcome) == (True, "not needed: success at try 2, newer than try 1")


@pytest.mark.parametrize("state", ["success", "failed", "upstream_failed"])
def test_a_newer_try_that_never_began_is_cleared(owing, state):
    """Marked manually, failed before its begin, or known to a lost ledger only: it has read nothing."""
    hand = Hand(state, 4, clears=True)
    [settled] = deliver(owing.services, hand)
    assert (settled.is_settled, settled.outcome) == (True, "cleared")
    assert [each.expected_try for each in hand.asked] == [1, 4]
    assert open_clears(owing) == []


def test_a_lower_try_is_one_of_a_dag_run_that_was_made_anew_and_is_cleared(owing):
    """It was marked manually before its first try, and would never reach the try that the ledger knows."""
    hand = Hand("success", 0, clears=True)
    [settled] = deliver(owing.services, hand)
    assert (settled.is_settled, settled.outcome) == (True, "cleared")
    assert [each.expected_try for each in hand.asked] == [1, 0]
    assert open_clears(owing) == []


def test_a_finished_task_that_was_not_cleared_stays_owed(owing):
    """As if another process had locked it."""
    [settled] = deliver(owing.services, Hand("success", 1))
    assert not settled.is_settled
    assert open_clears(owing) == [("joined", 1, 1)]


@pytest.mark.parametrize("state", [MISSING, "removed"])
def test_a_task_instance_that_is_gone_cannot_be_cleared(owing, state):
    [settled] = deliver(owing.services, Hand(state, 0))
    assert settled.is_settled
    assert f"no such task instance ({state})" in settled.outcome


def test_a_skipped_task_instance_is_left_to_people(owing):
    [settled] = deliver(owing.services, Hand("skipped", 1))
    assert (settled.is_settled, settled.outcome) == (True, "not cleared: skipped at try 1")


def test_airflow_out_of_reach_leaves_everything_owed(owing):
    class Gone(Hand):
        def clear(self, wanted):
            raise Retryable("Airflow does not answer")

    with pytest.raises(Retryable):
        deliver(owing.services, Gone("success", 1))
    assert open_clears(owing) == [("joined", 1, 1)]


def test_all_clears_of_a_dag_are_one_request_each_with_its_reason(owing):
    owe(owing, RegionId("joined", 0), 1, "weir: weather[0] has changed")
    owe(owing, RegionId("totals", 0), 1, "weir: weather[1] is lost")
    hand = Hand("success", 1, clears=True)
    assert len(deliver(owing.services, hand)) == 3
    assert hand.requests == 1
    assert sorted(set(hand.notes)) == ["weir: weather[0] has changed", "weir: weather[1] is lost"]


@on_both
def test_only_the_clears_of_one_dataflow_are_settled_on_demand(owing):
    assert deliver(owing.services, Hand("success", 1, clears=True), "another") == []
    assert open_clears(owing) == [("joined", 1, 1)]


@on_both
def test_two_that_settle_at_once_do_it_once(owing):
    """The second one finds it settled meanwhile, and does not overwrite what was recorded."""

    class Late(Hand):
        def clear(self, wanted):
            deliver(owing.services, Hand("success", 1, clears=True))
            return super().clear(wanted)

    deliver(owing.services, Late("running", 2))
    with owing.ledger.transaction() as session:
        [row] = session.scalars(select(PendingClearRow))
        assert row.outcome == "cleared"

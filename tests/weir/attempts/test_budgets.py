"""Failures count since a person has last cleared the task; against a budget also since its last commit."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from weir.attempts.failure import spent
from weir.execution.failure_class import FailureClass
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import Origin, failures_since_clear
from weir.ledger.database.tables import AttemptRow

AT = datetime(2026, 1, 1, tzinfo=UTC)
FAILURES = (None, FailureClass.BACKTRACK, FailureClass.CONFLICT, FailureClass.APPLICATION, FailureClass.KILLED)
ENDS = st.sampled_from([(AttemptState.COMMITTED, None), *((AttemptState.RETRYING, each) for each in FAILURES)])
TRIES = st.lists(st.tuples(st.sampled_from([Origin.RETRY, Origin.CLEARED_BY_WEIR, Origin.CLEARED_BY_PERSON]), ENDS))


def rows_of(tries):
    return [
        AttemptRow(
            try_number=number,
            origin=origin.value,
            state=state.value,
            failure=None if failure is None else failure.value,
            ended_at=AT + timedelta(minutes=number),
        )
        for number, (origin, (state, failure)) in enumerate(tries, 1)
    ]


def since(tries, *, is_commit_last):
    """The tries since a person's last clear, with the cleared one; and perhaps after the last commit."""
    last = 0
    for number, (origin, (state, _)) in enumerate(tries):
        last = number if origin is Origin.CLEARED_BY_PERSON else last
        last = number + 1 if is_commit_last and state is AttemptState.COMMITTED else last
    return tries[last:]


@given(TRIES)
def test_a_budget_is_spent_by_the_failures_since_the_last_commit_or_clear(tries):
    failed = [failure for _, (_, failure) in since(tries, is_commit_last=True)]
    for each in FAILURES[1:]:
        assert spent(rows_of(tries), each) == failed.count(each)


@given(TRIES)
def test_the_restart_strategy_is_told_of_the_failures_since_the_last_clear(tries):
    counted = (FailureClass.APPLICATION, FailureClass.KILLED)
    recent = [failure for _, (_, failure) in since(tries, is_commit_last=False) if failure in counted]
    found = failures_since_clear(rows_of(tries), counted)
    assert len(found) == len(recent)
    assert found == sorted(found)

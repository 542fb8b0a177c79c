"""State transitions of result partitions: all pairs of states, and the message of an illegal transition."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from weir.errors import Internal
from weir.execution.partition_state import (
    TRANSITIONS,
    IllegalTransition,
    PartitionState,
    StateEntry,
    require_transition,
)

WRITING, ABANDONED, FINISHED, LOST, QUARANTINED, RELEASED, SUPERSEDED = PartitionState

LEGAL = {
    (WRITING, FINISHED),  # a commit
    (WRITING, QUARANTINED),  # a commit whose check has failed
    (WRITING, ABANDONED),  # its attempt ended otherwise
    (FINISHED, LOST),
    (FINISHED, QUARANTINED),
    (FINISHED, RELEASED),
    (LOST, FINISHED),  # the files are back
    (LOST, SUPERSEDED),
    (QUARANTINED, SUPERSEDED),
    (QUARANTINED, RELEASED),  # it was kept long enough to be looked at
    (RELEASED, SUPERSEDED),
}
"""The transitions that there may be."""

AT = datetime(2026, 1, 1, tzinfo=UTC)


def history(*states):
    return [
        StateEntry(state, AT + timedelta(minutes=number), f"reason {number}") for number, state in enumerate(states)
    ]


@pytest.mark.parametrize(("now", "to"), product(PartitionState, PartitionState), ids=lambda state: state.value)
def test_each_pair_of_states_is_a_move_or_an_error(now, to):
    if (now, to) in LEGAL:
        require_transition("x", history(now), to)
        return
    with pytest.raises(IllegalTransition):
        require_transition("x", history(now), to)


def test_the_moves_are_told_of_every_state():
    assert TRANSITIONS.keys() == set(PartitionState)
    assert {(now, to) for now, following in TRANSITIONS.items() for to in following} == LEGAL


def test_nothing_comes_back_from_what_was_abandoned_or_superseded():
    assert TRANSITIONS[ABANDONED] == TRANSITIONS[SUPERSEDED] == frozenset()


def test_what_was_released_is_never_finished_again():
    """Its bytes are gone: another attempt has to make it."""
    reachable, new = set(), {RELEASED}
    while new:
        reachable |= new
        new = {to for now in new for to in TRANSITIONS[now]} - reachable
    assert FINISHED not in reachable


def test_only_the_last_chapter_counts():
    require_transition("x", history(WRITING, FINISHED, LOST, FINISHED, LOST), SUPERSEDED)
    with pytest.raises(IllegalTransition):
        require_transition("x", history(WRITING, FINISHED, LOST), RELEASED)


def test_a_partition_without_a_story_is_being_written():
    require_transition("x", (), FINISHED)
    with pytest.raises(IllegalTransition, match="Its history: unknown"):
        require_transition("x", (), RELEASED)


def test_an_illegal_move_tells_the_story_of_that_partition():
    with pytest.raises(IllegalTransition) as refused:
        require_transition("clean[0] of t0001", history(WRITING, FINISHED, RELEASED), LOST)
    assert str(refused.value) == (
        "clean[0] of t0001 cannot become lost. Its history: writing since 2026-01-01 00:00:00Z (reason 0); "
        "finished since 2026-01-01 00:01:00Z (reason 1); released since 2026-01-01 00:02:00Z (reason 2)"
    )
    assert isinstance(refused.value, Internal)


def test_a_chapter_without_a_reason_has_none():
    assert str(StateEntry(FINISHED, AT, "")) == "finished since 2026-01-01 00:00:00Z"

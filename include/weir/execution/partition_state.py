"""The life of a result partition (DESIGN 7), as a machine that refuses what cannot happen.

Invariant: a move that is not in `TRANSITIONS` is an error that tells the story of that partition. Pins (a lease, a
publication, a consumer that has not run yet) are not states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from weir.errors import Internal


class PartitionState(Enum):
    """Where a result partition of one attempt stands in its life; whether it is valid is another question.

    The ledger records it from its commit on: before that it is *writing*, as long as its attempt is at work, or
    *abandoned*.
    """

    WRITING = "writing"
    ABANDONED = "abandoned"
    """Its attempt ended without a commit: what it has written is garbage."""
    FINISHED = "finished"
    LOST = "lost"
    """Its bytes are gone or damaged; they may come back."""
    QUARANTINED = "quarantined"
    """Its content is in doubt: readable for inspection, consumed by nobody."""
    RELEASED = "released"
    """Nobody needs it: its bytes are deleted. Its content is known, and can be asked for again."""
    SUPERSEDED = "superseded"
    """Another attempt has made it again, after it was lost, released or quarantined."""


_S = PartitionState

TRANSITIONS: dict[PartitionState, frozenset[PartitionState]] = {
    _S.WRITING: frozenset({_S.FINISHED, _S.QUARANTINED, _S.ABANDONED}),
    _S.ABANDONED: frozenset(),
    _S.FINISHED: frozenset({_S.LOST, _S.QUARANTINED, _S.RELEASED}),
    _S.LOST: frozenset({_S.FINISHED, _S.SUPERSEDED}),
    _S.QUARANTINED: frozenset({_S.SUPERSEDED, _S.RELEASED}),
    _S.RELEASED: frozenset({_S.SUPERSEDED}),
    _S.SUPERSEDED: frozenset(),
}
"""What may follow what. A finished result that is made again stays finished, current no more, until it is released."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One state of a partition's life: since when, and why."""

    state: PartitionState
    at: datetime
    reason: str

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.state.value} since {self.at:%Y-%m-%d %H:%M:%S}Z{why}"


class IllegalTransition(Internal):
    """A partition cannot go where it was to go; tells its story so far."""

    def __init__(self, partition: str, to: PartitionState, story: Iterable[StateEntry]) -> None:
        told = "; ".join(str(each) for each in story)
        super().__init__(f"{partition} cannot become {to.value}. Its story: {told or 'unknown'}")


def require_transition(partition: str, story: Iterable[StateEntry], to: PartitionState) -> None:
    """Check that a partition may become `to`; `story` is what it has been, oldest first. Raises IllegalTransition."""
    chapters = tuple(story)
    now = chapters[-1].state if chapters else _S.WRITING
    if to not in TRANSITIONS[now]:
        raise IllegalTransition(partition, to, chapters)

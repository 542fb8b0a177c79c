"""The state machine of result partitions.

Invariant: a state transition that is not in `TRANSITIONS` is an error that names the history of the partition. The
reasons to retain a result (a lease, a publication, a consumer that has not run yet) are not states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from weir.errors import Internal


class PartitionState(Enum):
    """The state of a result partition of one attempt, independent of its validity.

    The ledger records it from the commit on: before that it is *writing*, while its attempt runs, or *abandoned*.
    """

    WRITING = "writing"
    ABANDONED = "abandoned"
    """Its attempt ended without a commit: its files are garbage."""
    FINISHED = "finished"
    LOST = "lost"
    """Its bytes are missing or damaged; they may come back."""
    QUARANTINED = "quarantined"
    """Its content is suspected: it can be read for inspection, and no region consumes it."""
    RELEASED = "released"
    """It is no longer needed, and its bytes are deleted. Its digest is known, and it can be recomputed."""
    SUPERSEDED = "superseded"
    """Another attempt has recomputed it, after it was lost, released or quarantined."""


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
"""The legal transitions. A finished result that is recomputed stays finished, but not current, until it is released."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A state in the history of a partition, with its start and its reason."""

    state: PartitionState
    at: datetime
    reason: str

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.state.value} since {self.at:%Y-%m-%d %H:%M:%S}Z{why}"


class IllegalTransition(Internal):
    """A state transition of a partition that is not legal; the message has its history."""

    def __init__(self, partition: str, to: PartitionState, history: Iterable[StateEntry]) -> None:
        states = "; ".join(str(each) for each in history)
        super().__init__(f"{partition} cannot become {to.value}. Its history: {states or 'unknown'}")


def require_transition(partition: str, history: Iterable[StateEntry], to: PartitionState) -> None:
    """Check that a partition may become `to`; `history` is oldest first. Raises IllegalTransition."""
    entries = tuple(history)
    now = entries[-1].state if entries else _S.WRITING
    if to not in TRANSITIONS[now]:
        raise IllegalTransition(partition, to, entries)

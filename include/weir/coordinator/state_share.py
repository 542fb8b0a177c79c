"""What an attempt goes on from of one keyed state. Invariant: the files are those of the subtask's own key groups."""

from __future__ import annotations

from dataclasses import dataclass

from weir.dataflow.state import State
from weir.results.manifest import StateFile, StateTally


@dataclass(frozen=True, slots=True)
class StateShare:
    """What a subtask goes on from of one state: files of its key groups, and their tallies where they are known."""

    state: State
    key_groups: tuple[int, int]
    files: tuple[StateFile, ...]
    tallies: tuple[StateTally, ...] | None
    expired_until: int | None
    is_rewritten: bool = False
    """Whether the epoch writes all of it, because it is declared otherwise than before."""

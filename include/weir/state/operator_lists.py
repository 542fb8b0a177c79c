"""What each subtask is given of a stage's operator state, as Flink's RoundRobinOperatorStateRepartitioner does.

Invariant: where each subtask goes on from its own elements, every element is one subtask's own: none is lost, and
none is kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weir.dataflow.state import StateKind
from weir.errors import Internal

T = TypeVar("T")


def given(kind: StateKind, lists: Sequence[Sequence[T]], parallelism: int, subtask: int) -> tuple[T, ...]:
    """What a subtask reads of the lists that the subtasks of the epoch before have left, by subtask.

    SPLIT: its own list while the parallelism is unchanged, else of all n elements those with i * parallelism // n equal
    to `subtask`. UNION: all elements. BROADCAST: the elements of one of them, since all have the same.
    """
    if kind is StateKind.UNION:
        return tuple(each for one in lists for each in one)
    if kind is StateKind.BROADCAST:
        return tuple(lists[0]) if lists else ()
    if kind is StateKind.SPLIT:
        return own(lists, parallelism, subtask)
    raise Internal(f"state that is {kind.value} is not given as a list")


def own(lists: Sequence[Sequence[T]], parallelism: int, subtask: int) -> tuple[T, ...]:
    """What a subtask goes on with of a list, split or union, if it changes nothing."""
    if len(lists) == parallelism:
        return tuple(lists[subtask])
    elements = [each for one in lists for each in one]
    return tuple(each for i, each in enumerate(elements) if i * parallelism // len(elements) == subtask)

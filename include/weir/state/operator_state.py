"""Assign list and broadcast state of the epoch before to subtasks.

Flink's RoundRobinOperatorStateRepartitioner does the same. An attempt reads them as plain results, over `previous`.

Invariant: each element of a split list is assigned to exactly one subtask, at any parallelism; broadcast state is equal
in all subtasks, or no attempt resumes from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from weir.dataflow.state import State, StateKind
from weir.errors import Internal, Misconfigured
from weir.execution.run_state import RunState
from weir.formats.region_job import StateToRead
from weir.topology.ids import Epoch
from weir.topology.regions import InputPartitions, PartitionId

T = TypeVar("T")


def assigned_elements(kind: StateKind, lists: Sequence[Sequence[T]], parallelism: int, subtask: int) -> tuple[T, ...]:
    """Return the elements that a subtask reads of the `lists` that the subtasks of the epoch before committed.

    SPLIT: its own list while the parallelism is unchanged, else of all n elements those with i * parallelism // n equal
    to `subtask`. UNION: all elements. BROADCAST: the elements of the first list, since all are equal.
    """
    if kind is StateKind.UNION:
        return tuple(element for elements in lists for element in elements)
    if kind is StateKind.BROADCAST:
        return tuple(lists[0]) if lists else ()
    if kind is StateKind.SPLIT:
        return own_elements(lists, parallelism, subtask)
    raise Internal.of("state.not_a_list", kind=kind.value)


def own_elements(lists: Sequence[Sequence[T]], parallelism: int, subtask: int) -> tuple[T, ...]:
    """Return the elements of a list, split or union, that a subtask commits again if it changes nothing."""
    if len(lists) == parallelism:
        return tuple(lists[subtask])
    every = [element for elements in lists for element in elements]
    return tuple(element for i, element in enumerate(every) if i * parallelism // len(every) == subtask)


def operator_state_to_read(kept: State, state: RunState, read: InputPartitions, epoch: Epoch | None) -> StateToRead:
    """Describe a list or broadcast state to the job, which reads its partitions as an input.

    Raises Misconfigured if it is broadcast state and its partitions differ.
    """
    if kept.kind is StateKind.BROADCAST:
        _require_equal(kept.name, state, read.partitions)
    return StateToRead(state=kept, epoch=epoch)


def require_equal_broadcasts(state: RunState) -> None:
    """Require that the broadcast states of a run are equal in all subtasks; all its results are valid.

    Raises Misconfigured, which names the state.
    """
    for stage in state.topology.dataflow.stages:
        for kept in stage.states:
            if kept.kind is StateKind.BROADCAST:
                (layout,) = state.topology.layouts_of(kept.name)
                _require_equal(kept.name, state, state.topology.partitions_of(kept.name, layout.id))


def _require_equal(name: str, state: RunState, partitions: Iterable[PartitionId]) -> None:
    by_digest = {state.results[each].digest: each for each in partitions}
    if len(by_digest) > 1:
        left, right = list(by_digest.values())[:2]
        raise Misconfigured.of(
            "state.broadcast_differs",
            name=name,
            subtask=left.subtask,
            rows=state.results[left].rows,
            other=right.subtask,
            other_rows=state.results[right].rows,
        )

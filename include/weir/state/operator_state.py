"""What each subtask is given of a stage's operator state, as Flink's RoundRobinOperatorStateRepartitioner does.

Invariant: where each subtask goes on from its own elements, every element is one subtask's own: none is lost, and
none is kept twice.

Lists and broadcast state as an attempt goes on from them: plain results that it reads over `previous`.

Invariant: broadcast state is the same in all subtasks, or nothing goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from weir.dataflow.state import State, StateKind
from weir.errors import Internal, Misconfigured
from weir.execution.run_state import RunState
from weir.formats.region_job import StateToRead
from weir.topology.regions import InputPartitions, PartitionId

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


def operator_state_to_read(kept: State, state: RunState, read: InputPartitions) -> StateToRead:
    """What the job is told of a list or of broadcast state besides the partitions that have it.

    Raises Misconfigured if it is broadcast state and its partitions differ.
    """
    if kept.kind is StateKind.BROADCAST:
        _require_equal(kept.name, state, read.partitions)
    return StateToRead(state=kept, files=(), tallies=None, updated=0, expired_until=None, is_full=False)


def require_equal_broadcasts(state: RunState) -> None:
    """Make sure that the broadcast states of a run, all of whose results are valid, are the same in all subtasks.

    Raises Misconfigured and names the state.
    """
    for stage in state.topology.dataflow.stages:
        for kept in stage.states:
            if kept.kind is StateKind.BROADCAST:
                (layout,) = state.topology.layouts_of(kept.name)
                _require_equal(kept.name, state, state.topology.partitions_of(kept.name, layout.id))


def _require_equal(name: str, state: RunState, partitions: Iterable[PartitionId]) -> None:
    by_digest = {state.results[each].digest: each for each in partitions}
    if len(by_digest) > 1:
        one, other = list(by_digest.values())[:2]
        raise Misconfigured(
            f"the broadcast state {name!r} must be the same in all subtasks, but subtask {one.subtask} has left "
            f"{state.results[one].rows} rows and subtask {other.subtask} {state.results[other].rows} rows, and their "
            "contents differ: update it from what all subtasks read alike (an input over blocking(..., "
            "broadcast=True)), or keep what differs in a list_state"
        )

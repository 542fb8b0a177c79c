"""Lists and broadcast state as an attempt goes on from them: plain results that it reads over `previous`.

Invariant: broadcast state is the same in all subtasks, or nothing goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.dataflow.state import State, StateKind
from weir.errors import Misconfigured
from weir.recovery.run_state import RunState
from weir.results.region_job import StateToRead
from weir.topology.regions import InputPartitions, PartitionId


def operator_state_to_read(kept: State, state: RunState, read: InputPartitions) -> StateToRead:
    """What the job is told of a list or of broadcast state besides the partitions that have it.

    Raises Misconfigured if it is broadcast state and its partitions differ.
    """
    if kept.kind is StateKind.BROADCAST:
        _require_equal(kept.name, state, read.partitions)
    return StateToRead(kept, (), None, 0, None, is_full=False)


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

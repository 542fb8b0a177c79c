"""Whether an attempt can go on from the state of the epoch before, as that was declared and written.

Invariant: asked before anything is computed; a state that the epoch before has not kept is new, starts empty, and that
is said. The dataflows that both runs are pinned to are the record of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weir.coordinator.registration import Registered
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_evolution import problems
from weir.dataflow.state_schema import fields_of_json
from weir.errors import Misconfigured
from weir.recovery.run_state import RunState
from weir.results.manifest import Manifest
from weir.topology.regions import InputPartitions, PartitionId


def check_states(registered: Registered, state: RunState, manifests: Mapping[PartitionId, Manifest]) -> tuple[str, ...]:
    """What is to be said of the states that an attempt goes on from. Raises Misconfigured where one cannot go on."""
    before = state.predecessor
    if before is None:
        return ()
    said = []
    for read in state.inputs(registered.attempt.region):
        kept = {each.name: each for each in registered.topology.dataflow.stage(read.stage).states}.get(read.argument)
        if kept is None:
            continue
        if kept.name not in state.topology_of(before).states:
            said.append(f"state {kept.name} is new and starts empty: {before} has kept none of this name")
            continue
        found = list(_problems(registered, state, kept, read, manifests))
        if found:
            raise Misconfigured(
                f"run {registered.run.id} cannot go on from the state of {before}: {'; '.join(found)}. Nothing was run"
            )
    return tuple(said)


def _problems(
    registered: Registered,
    state: RunState,
    kept: State,
    read: InputPartitions,
    manifests: Mapping[PartitionId, Manifest],
) -> Iterator[str]:
    old, new = state.topology_of(state.predecessor or "").dataflow, registered.topology.dataflow
    groups = (old.max_parallelism_of(kept.name), new.max_parallelism_of(kept.name))
    written = {manifests[each].spark_schema for each in read.partitions if kept.kind is StateKind.KEYED}
    for schema in sorted(written) or [""]:
        yield from problems(old.state(kept.name), kept, groups, fields_of_json(schema) if schema else None)

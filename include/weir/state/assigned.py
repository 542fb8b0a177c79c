"""The state that an attempt goes on from.

Invariant: an attempt is given the state of the epoch before as that epoch's manifests describe it, whole and of its own
key groups; a state that is missing is never taken for an empty one.

Whether an attempt can go on from the state of the epoch before, as that was declared and written.

Invariant: asked before anything is computed; a state that the epoch before has not kept is new, starts empty, and that
is said. The dataflows that both runs are pinned to are the record of it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.coordination.values import StateShare
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_evolution import Evolution, evolution, problems
from weir.dataflow.state_schema import fields_of_json
from weir.errors import Misconfigured
from weir.execution.run_state import RunState
from weir.formats.manifest import Manifest, StateContent, StateFile, StateTally
from weir.formats.paths import is_below_dataflow
from weir.formats.region_job import OutputReport, StateFileToRead, StateToRead
from weir.ledger.runs import Run, epoch_of_run
from weir.state.compactions import Compactions, compacted_files
from weir.state.file_rules import epoch_seconds, expired_until, share_of, visible
from weir.store.store import Store
from weir.topology.ids import OWN_RUN
from weir.topology.key_groups import key_group_range
from weir.topology.regions import InputPartitions, PartitionId


def state_shares(
    registered: Registered,
    state: RunState,
    manifests: Mapping[PartitionId, Manifest],
    compactions: Compactions = types.MappingProxyType({}),
) -> dict[str, StateShare]:
    """The keyed states that the attempt's region goes on from, by name; of what was compacted that is read."""
    shares = {}
    for read in state.inputs(registered.attempt.region):
        kept = {each.name: each for each in registered.topology.dataflow.stage(read.stage).states}
        if read.argument in kept and kept[read.argument].kind is StateKind.KEYED and read.key_groups is not None:
            shares[read.argument] = _share(registered.run, kept[read.argument], state, read, manifests, compactions)
    return shares


def _share(
    run: Run,
    kept: State,
    state: RunState,
    read: InputPartitions,
    manifests: Mapping[PartitionId, Manifest],
    compactions: Compactions,
) -> StateShare:
    assert read.key_groups is not None  # noqa: S101  # keyed
    evolved, until = _evolution(run, kept, state, read, manifests)
    files = [file for each in read.partitions for file in compacted_files(manifests[each], compactions)]
    tallies: tuple[StateTally, ...] | None = ()
    if read.partitions:
        alone = [each for each in read.partitions if _range_of(state, each, read) == read.key_groups]
        content = manifests[alone[0]].state if alone and not evolved.is_changed else None
        tallies = None if content is None else visible(content.tallies, until)
    files_to_read = share_of(files, read.key_groups, until)
    return StateShare(
        state=kept,
        key_groups=read.key_groups,
        files=files_to_read,
        tallies=tallies,
        expired_until=until,
        is_rewritten=evolved.is_rewritten,
    )


def _evolution(
    run: Run, kept: State, state: RunState, read: InputPartitions, manifests: Mapping[PartitionId, Manifest]
) -> tuple[Evolution, int | None]:
    """How the state is declared otherwise than by the epoch before, and until when its rows have expired.

    What had expired there is not visible again, although the state has its rows live longer now.
    """
    until = expired_until(kept, run.epoch)
    if not read.partitions:
        return Evolution(), until
    first = read.partitions[0]
    before = state.topology_of(first.run).dataflow.state(kept.name)
    evolved = evolution(before, kept, fields_of_json(manifests[first].spark_schema))
    until_before = expired_until(before, epoch_of_run(first.run))
    if until is None or until_before is None:
        return evolved, until
    return evolved, max(until, until_before)


def _range_of(state: RunState, partition: PartitionId, read: InputPartitions) -> tuple[int, int]:
    parallelism = state.topology_of(partition.run).dataflow.stage(partition.stage).parallelism
    return key_group_range(read.layout.max_parallelism, parallelism, partition.subtask)


def state_to_read(services: Services, run: Run, share: StateShare) -> StateToRead:
    """What the job is told of it."""
    files = files_to_read(services.store, share.files)
    updated = 0 if share.expired_until is None else epoch_seconds(run.epoch)
    is_full = share.state.is_full or share.is_rewritten or needs_others(run.dataflow.name, share.files)
    return StateToRead(
        state=share.state,
        files=files,
        tallies=share.tallies,
        updated=updated,
        expired_until=share.expired_until,
        is_full=is_full,
    )


def files_to_read(store: Store, files: Iterable[StateFile]) -> tuple[StateFileToRead, ...]:
    """Files of state as Spark is told of them."""
    return tuple(
        StateFileToRead(store.spark_url(each.path), each.epoch, each.key_groups, each.file.rows, each.file.bytes)
        for each in files
    )


def state_as_of(store: Store, kept: State, epoch: str, files: Iterable[StateFile]) -> StateToRead:
    """A state at the end of an epoch, as whoever only reads it is told of it."""
    ordered = sorted(files, key=lambda each: (each.epoch, each.key_groups, each.path))
    return StateToRead(
        state=kept,
        files=files_to_read(store, ordered),
        tallies=None,
        updated=0,
        expired_until=expired_until(kept, epoch),
        is_full=False,
    )


def needs_others(dataflow: str, files: Iterable[StateFile]) -> bool:
    """Whether files are another dataflow's: a fork writes all of its state in its first epoch, and is free of them."""
    return any(not is_below_dataflow(file.folder, dataflow) for file in files)


def state_content(run: Run, share: StateShare, output: OutputReport) -> StateContent | None:
    """What a partition of keyed state consists of once the job has written what has changed."""
    if output.state is None:
        return None
    written = tuple(StateFile(output.folder, file, run.epoch, share.key_groups) for file in output.files)
    kept: Sequence[StateFile] = () if output.state.is_whole else share.files
    return StateContent((*kept, *written), output.state.tallies, output.state.changed)


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
    old, new = state.topology_of(state.predecessor or OWN_RUN).dataflow, registered.topology.dataflow
    groups = (old.max_parallelism_of(kept.name), new.max_parallelism_of(kept.name))
    written = {manifests[each].spark_schema for each in read.partitions if kept.kind is StateKind.KEYED}
    for schema in sorted(written) or [""]:
        yield from problems(old.state(kept.name), kept, groups, fields_of_json(schema) if schema else None)

"""Assign to an attempt the keyed state of the epoch before, and check that it can resume from it.

Invariant: an attempt reads the state of the epoch before as that epoch's manifests describe it, whole and of its own
key groups; a state that is missing is never taken for an empty one. Compatibility is checked before anything is
computed, against the dataflows that both runs are pinned to; a state that the epoch before did not have is new, starts
empty, and the log says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.coordination.values import AssignedState
from weir.dataflow.state import Incremental, State, StateKind
from weir.dataflow.state_evolution import Evolution, evolution, problems
from weir.dataflow.state_schema import fields_of_json
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CurrentResult, RunState
from weir.formats.manifest import Manifest, StateContent, StateFile
from weir.formats.paths import is_below_dataflow
from weir.formats.region_job import OutputReport, ReplacedState, StateFileToRead, StateToRead
from weir.ledger.runs import Run, epoch_of_run
from weir.state.chain_rules import rows_known
from weir.state.compaction_rules import bytes_of
from weir.state.compactions import Compactions, compacted_files, missing_files, present_compactions
from weir.state.file_rules import assigned_files, epoch_seconds, expired_until, oldest_first, visible
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.store.store import Store
from weir.topology.ids import OWN_RUN, is_synthetic
from weir.topology.key_groups import key_group_range
from weir.topology.regions import InputPartitions, PartitionId

# Checking compatibility


def check_states(registered: Registered, state: RunState, manifests: Mapping[PartitionId, Manifest]) -> tuple[str, ...]:
    """Check the states that an attempt resumes from; return notes for its log. Raises Misconfigured if incompatible."""
    before = state.predecessor
    if before is None:
        return ()
    notes = []
    for read in state.inputs(registered.attempt.region):
        kept = {each.name: each for each in registered.topology.dataflow.stage(read.stage).states}.get(read.producer)
        if kept is None:
            continue
        if kept.name not in state.topology_of(before).states:
            notes.append(f"state {kept.name} is new and starts empty: {before} has kept none of this name")
            continue
        found = list(_problems(registered, state, kept, read, manifests))
        if found:
            raise Misconfigured.of("state.state_unfit", run_id=registered.run.id, before=before, found=found)
    return tuple(notes)


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


# Assigning


def assigned_states(
    services: Services, registered: Registered, state: RunState, manifests: Mapping[PartitionId, Manifest]
) -> dict[str, AssignedState]:
    """Return the keyed states that the attempt's region resumes from, by name; compacted files replace others.

    Raises Retryable where the ledger or the store does not answer.
    """
    kept = registered.topology.states
    reads = [read for read in state.inputs(registered.attempt.region) if read.producer in kept]
    attempts = {manifests[part].attempt for read in reads for part in read.partitions}
    compactions = present_compactions(services, attempts) if attempts else {}
    assigned = {}
    for read in reads:
        if read.key_groups is None or read.producer in assigned:
            continue
        declared = registered.topology.dataflow.state(read.producer)
        if declared.kind is StateKind.KEYED:
            assigned[declared.name] = _assigned(registered.run, declared, state, read, manifests, compactions)
    return assigned


def _assigned(
    run: Run,
    kept: State,
    state: RunState,
    read: InputPartitions,
    manifests: Mapping[PartitionId, Manifest],
    compactions: Compactions,
) -> AssignedState:
    assert read.key_groups is not None  # noqa: S101  # keyed
    evolved, until = _evolution(run, kept, state, read, manifests)
    files = [file for each in read.partitions for file in compacted_files(manifests[each], compactions)]
    assigned = AssignedState(
        state=kept,
        key_groups=read.key_groups,
        files=assigned_files(files, read.key_groups, until),
        tallies=None if read.partitions else (),
        expired_until=until,
        is_rewritten=evolved.is_rewritten,
    )
    same_range = [each for each in read.partitions if _range_of(state, each, read) == read.key_groups]
    content = manifests[same_range[0]].state if same_range and not evolved.is_changed else None
    if content is None:
        return assigned
    return _continued(assigned, content, state.results[same_range[0]], is_exact=evolved.is_exact)


def _continued(
    assigned: AssignedState, content: StateContent, result: CurrentResult, *, is_exact: bool
) -> AssignedState:
    """Return a state as it goes on from one partition: what is known of its rows, and the digest for a blind epoch.

    The first epoch after a restore is exact.
    """
    tallies = None if content.tallies is None else visible(content.tallies, assigned.expired_until)
    rows = rows_known(tallies, content.rows, assigned.files, expires=assigned.expired_until is not None)
    may_be_blind = not is_exact and rows is not None and not is_synthetic(result.attempt)
    return replace(assigned, tallies=tallies, rows=rows, digest=result.digest if may_be_blind else None)


def _evolution(
    run: Run, kept: State, state: RunState, read: InputPartitions, manifests: Mapping[PartitionId, Manifest]
) -> tuple[Evolution, int | None]:
    """Compare the declaration with that of the epoch before, and return until when rows have expired.

    Rows that had expired there stay expired, although the state has a longer ttl now.
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


# Describing to the job, and what it wrote


def state_to_read(services: Services, run: Run, assigned: AssignedState, replaced: ReplacedState | None) -> StateToRead:
    """Describe an assigned state to the job; `replaced` is what its epoch has committed before."""
    files = files_to_read(services.store, assigned.files)
    updated = 0 if assigned.expired_until is None else epoch_seconds(run.epoch)
    is_full = (
        assigned.state.incremental is Incremental.NEVER
        or assigned.is_rewritten
        or needs_others(run.dataflow.name, assigned.files)
    )
    return StateToRead(
        state=assigned.state,
        files=files,
        tallies=assigned.tallies,
        updated=updated,
        expired_until=assigned.expired_until,
        is_full=is_full,
        epoch=run.epoch,
        digest=assigned.digest,
        rows=assigned.rows,
        replaced=replaced,
    )


def state_as_read(services: Services, assigned: AssignedState) -> StateToRead:
    """Describe an assigned state to a stage of the job that only reads it."""
    files = files_to_read(services.store, assigned.files)
    return StateToRead(state=assigned.state, files=files, expired_until=assigned.expired_until)


def replaced_state(services: Services, old: CurrentResult | None) -> ReplacedState | None:
    """Describe the content that an epoch had before it is computed again, if all of its files exist.

    Raises Retryable where the store does not answer.
    """
    if old is None or old.state is not PartitionState.FINISHED or is_synthetic(old.attempt):
        return None
    try:
        content = read_manifest(services.store, old.folder).state
    except (NotFound, Misconfigured):
        return None  # it is gone or damaged
    if content is None or missing_files(services, content.files):
        return None
    files = files_to_read(services.store, oldest_first(content.files))
    return ReplacedState(digest=old.digest, files=files, expired_until=content.expired_until)


def state_as_of(store: Store, kept: State, epoch: str, files: Iterable[StateFile]) -> StateToRead:
    """Describe a state at the end of an epoch to a job that only reads it."""
    files_read = files_to_read(store, oldest_first(files))
    return StateToRead(state=kept, files=files_read, expired_until=expired_until(kept, epoch))


def files_to_read(store: Store, files: Iterable[StateFile]) -> tuple[StateFileToRead, ...]:
    """Describe files of keyed state to the Spark job."""
    return tuple(_file_to_read(store, each) for each in files)


def _file_to_read(store: Store, file: StateFile) -> StateFileToRead:
    size = bytes_of(file, file.key_groups)
    rows = -(-file.file.rows * size // max(1, file.file.bytes))
    return StateFileToRead(store.spark_url(file.path), file.epoch, file.key_groups, rows, size)


def needs_others(dataflow: str, files: Iterable[StateFile]) -> bool:
    """Report whether any file is in the folder of another dataflow.

    A fork writes all of its state in its first epoch, and needs none from then on.
    """
    return any(not is_below_dataflow(file.folder, dataflow) for file in files)


def state_content(run: Run, assigned: AssignedState, output: OutputReport) -> StateContent | None:
    """Return what a partition of keyed state consists of once the job has written its changes."""
    if output.state is None:
        return None
    written = tuple(StateFile(output.folder, file, run.epoch, assigned.key_groups) for file in output.files)
    kept: Sequence[StateFile] = () if output.state.is_whole else assigned.files
    report = output.state
    return StateContent(
        files=(*kept, *written),
        tallies=report.tallies,
        changed=report.changed,
        rows=report.rows,
        expired_until=assigned.expired_until,
        estimate=report.estimate,
    )

"""Compute the content of a run's checkpoint, and read checkpoints from the store.

Invariant: a checkpoint that is not as it was written counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from functools import lru_cache

from weir.coordination.services import Services
from weir.dataflow.state import State, StateKind
from weir.errors import Misconfigured
from weir.execution.run_state import CurrentResult
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, ResultInFlight, SnapshotKind, StatePartition
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest, StateFile
from weir.formats.paths import checkpoint_path
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.runs import Run
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.topology.ids import AttemptId, Digest
from weir.topology.key_groups import key_group_range
from weir.topology.regions import PartitionId, Topology

FilesOf = Callable[[Manifest], tuple[StateFile, ...]]
"""Returns the files of a partition of keyed state: those of its manifest, or of a compaction of it."""


def keyed_states(topology: Topology) -> dict[str, tuple[State, str]]:
    """Return the keyed states of a dataflow by name, with the stages that keep them."""
    return {
        state.name: (state, stage.name)
        for stage in topology.dataflow.stages
        for state in stage.states
        if state.kind is StateKind.KEYED
    }


def checkpoint_of(
    run: Run,
    attempt: AttemptId,
    results: Mapping[PartitionId, CurrentResult],
    manifests: Mapping[PartitionId, Manifest],
    files_of: FilesOf,
    before: Set[str],
    now: datetime,
    sources: Mapping[str, object],
) -> Checkpoint:
    """Return the checkpoint of a run, numbered 0; `before` are the files that retained checkpoints name.

    `sources` are the splits of the run's sources.
    """
    keyed = keyed_states(run.topology)
    carried = sorted(run.topology.carried)
    states = tuple(
        _keyed(run, *keyed[name], results, {each: manifests[each] for each in carried if each.stage == name}, files_of)
        for name in sorted(keyed)
    )
    in_flight = tuple(_in_flight(results[each], manifests[each]) for each in carried if each.stage not in keyed)
    named = _files(states, in_flight)
    new = {path: size for path, size in named.items() if path not in before}
    return Checkpoint(
        dataflow=run.dataflow.name,
        number=0,
        kind=SnapshotKind.CHECKPOINT,
        epoch=run.epoch,
        run=run.id,
        lineage=run.lineage,
        attempt=attempt,
        states=states,
        results=in_flight,
        pinned=run.topology.to_json(),
        triggered_at=now.isoformat(),
        completed_at=now.isoformat(),
        full_bytes=sum(named.values()),
        incremental_bytes=sum(new.values()),
        new_files=len(new),
        shared_files=len(named) - len(new),
        sources=dict(sources),
    )


def _keyed(
    run: Run,
    state: State,
    stage: str,
    results: Mapping[PartitionId, CurrentResult],
    parts: Mapping[PartitionId, Manifest],
    files_of: FilesOf,
) -> KeyedSnapshot:
    found = sorted(parts.items(), key=lambda part: part[1].subtask)
    parallelism = run.dataflow.stage(state.name).parallelism
    partitions = tuple(
        StatePartition(
            subtask=each.subtask,
            key_groups=key_group_range(each.max_parallelism, parallelism, each.subtask),
            attempt=each.attempt,
            digest=Digest(str(each.digest)),
            rows=each.rows,
            tallies=() if each.state is None else each.state.tallies,
            files=files_of(each),
            versions=_versions(results[partition]),
            rows_at_least=None if each.state is None or each.state.rows is None else each.state.rows.least,
            estimate=None if each.state is None else each.state.estimate,
        )
        for partition, each in found
    )
    first = found[0][1]
    return KeyedSnapshot(state, stage, first.max_parallelism, first.spark_schema, partitions)


def _versions(result: CurrentResult) -> tuple[str, ...]:
    """Return the versions of a result's code, with those that were declared equal, which no manifest has."""
    return tuple(sorted(result.versions))


def _in_flight(result: CurrentResult, manifest: Manifest) -> ResultInFlight:
    return ResultInFlight(
        stage=manifest.stage,
        subtask=manifest.subtask,
        layout=manifest.layout,
        attempt=manifest.attempt,
        folder=result.folder,
        manifest_sha256=result.manifest_sha256,
        digest=Digest(str(manifest.digest)),
        files=manifest.files,
        versions=_versions(result),
    )


# Files


def files_named(checkpoint: Checkpoint) -> dict[str, int]:
    """Return all data files that a checkpoint names, with their sizes."""
    return _files(checkpoint.states, checkpoint.results)


def _files(states: Iterable[KeyedSnapshot], results: Iterable[ResultInFlight]) -> dict[str, int]:
    of_state = {file.path: file.file.bytes for state in states for part in state.partitions for file in part.files}
    return of_state | {f"{each.folder}/{file.name}": file.bytes for each in results for file in each.files}


# Reading from the store


def read_checkpoint(store: Store, dataflow: str, number: int) -> Checkpoint | None:
    """Read a checkpoint by its number; None where its manifest is gone or cannot be read. Raises Retryable."""
    try:
        return _decoded(store.read(checkpoint_path(dataflow, number)))
    except (NotFound, Misconfigured):
        return None


@lru_cache(maxsize=16)
def _decoded(data: bytes) -> Checkpoint:
    """Decode a checkpoint; cached, since all retained ones are read before each deletion."""
    return from_json(Checkpoint, data)


def files_retained(services: Services, dataflow: str) -> dict[str, int]:
    """Return the data files that retained checkpoints name, with their sizes; savepoints have files of their own."""
    with services.ledger.transaction() as session:
        numbers = [row.number for row in retained_checkpoints(session, dataflow)]
    found = (read_checkpoint(services.store, dataflow, number) for number in numbers)
    return {path: size for each in found if each is not None for path, size in files_named(each).items()}

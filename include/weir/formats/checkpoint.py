"""A checkpoint or savepoint: the state of a dataflow at the end of an epoch, as one versioned JSON file.

Invariant: this file and the files that it names are all that the next epoch needs to continue. Equal content has an
equal fingerprint: the same files of keyed state and the same results in flight, with the same digests, whichever
attempt committed them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weir.dataflow.state import State
from weir.formats.manifest import DataFile, RowRange, StateFile, UpdateDigest, WriteEstimate
from weir.topology.ids import AttemptId, Digest, Epoch, RunId
from weir.topology.partitions import Layout, PartitionId


class SnapshotKind(Enum):
    """The kinds of snapshots."""

    CHECKPOINT = "checkpoint"
    """Taken and owned by Weir: deleted when it is subsumed."""
    SAVEPOINT = "savepoint"
    """Owned by a person: when it is subsumed it leaves the list, and its files stay."""
    AUTOMATIC = "automatic"
    """A savepoint that Weir owns: it does not count as a retained snapshot, and is dropped for newer ones."""
    STOP = "stop"
    """A savepoint with which the dataflow was stopped: no older snapshot is needed to continue."""

    @property
    def is_savepoint(self) -> bool:
        """Report whether it is self-contained, in a folder of its own."""
        return self is not SnapshotKind.CHECKPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePartition:
    """A subtask's partition of a keyed state: `key_groups` is inclusive, `attempt` committed it.

    `tallies` are the per-update digests of its live rows, from its manifest; a restored state continues from them.
    Where they are None, its rows were not counted: there are `rows` at most, and `rows_at_least`.
    `versions` are those of the code that is known to make it. `estimate` is given where it has decided whether the
    epoch wrote all of the state.
    """

    subtask: int
    key_groups: tuple[int, int]
    attempt: AttemptId
    digest: Digest
    rows: int
    tallies: tuple[UpdateDigest, ...] | None
    files: tuple[StateFile, ...]
    versions: tuple[str, ...]
    rows_at_least: int | None = None
    estimate: WriteEstimate | None = None

    @property
    def range(self) -> RowRange | None:
        """How many rows there are; None where they were counted."""
        return None if self.rows_at_least is None else RowRange(self.rows_at_least, self.rows)

    @property
    def is_counted(self) -> bool:
        """Report whether the number of rows is known."""
        return self.range is None or self.range.is_exact


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """A keyed state: its declaration, its stage, and its partitions by subtask."""

    state: State
    stage: str
    max_parallelism: int
    spark_schema: str
    partitions: tuple[StatePartition, ...]

    @property
    def layout(self) -> Layout:
        """The layout of its partitions."""
        return Layout(self.state.divided_by, self.max_parallelism)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultInFlight:
    """A result partition that the next epoch reads over `previous`: lists, broadcast state, and plain results.

    `folder` is relative to the store, or to the savepoint. `versions` are as in StatePartition.
    """

    stage: str
    subtask: int
    layout: str
    attempt: AttemptId
    folder: str
    manifest_sha256: str
    digest: Digest
    files: tuple[DataFile, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A completed checkpoint or savepoint; `number` counts up per dataflow and is never used twice.

    `pinned` is the JSON of the dataflow that the epoch's run is pinned to. Paths are relative to the store; those of a
    savepoint to its own folder, which contains all files that it names and can be moved anywhere. `triggered_at` and
    `completed_at` are in UTC, ISO 8601. `incremental_bytes` are those of files that no earlier checkpoint names.
    `sources` has what the epoch's run has read from outside: the splits of each source, by subtask.
    """

    dataflow: str
    number: int
    kind: SnapshotKind
    epoch: Epoch
    run: RunId
    lineage: int
    attempt: AttemptId
    states: tuple[KeyedSnapshot, ...]
    results: tuple[ResultInFlight, ...]
    pinned: dict[str, object]
    triggered_at: str
    completed_at: str
    full_bytes: int
    incremental_bytes: int
    new_files: int
    shared_files: int
    revision: int = 0
    """The revision of the dataflow in the ledger that its writer had last seen committed (0: none)."""
    sources: dict[str, object] = field(default_factory=dict)
    positions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Where the sources that go on ended, as the record of the run has it; in a savepoint always the value itself."""

    @property
    def files(self) -> dict[str, StateFile]:
        """The files of keyed state that it names, by path."""
        return {file.path: file for state in self.states for part in state.partitions for file in part.files}

    @property
    def parts(self) -> dict[PartitionId, StatePartition | ResultInFlight]:
        """The partitions of keyed state and the results in flight, by the partitions of the run that they are."""
        parts: dict[PartitionId, StatePartition | ResultInFlight] = {
            PartitionId(each.state.name, part.subtask, each.layout.id): part
            for each in self.states
            for part in each.partitions
        }
        return parts | {PartitionId(each.stage, each.subtask, each.layout): each for each in self.results}


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return the fingerprint of all that a checkpoint consists of."""
    states = [
        [state.state.name, state.max_parallelism, [_part(part) for part in state.partitions]]
        for state in checkpoint.states
    ]
    results = [[each.stage, each.subtask, each.layout, each.folder, each.digest] for each in checkpoint.results]
    text = json.dumps([checkpoint.run, states, results], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _part(part: StatePartition) -> list[object]:
    files = [[file.path, file.epoch, *file.key_groups] for file in part.files]
    return [part.subtask, *part.key_groups, part.digest, files]

"""What a checkpoint or a savepoint is: the state of a dataflow at the end of an epoch, as one versioned JSON file.

Invariant: whoever has this file and the files that it names has all that the next epoch goes on from.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.dataflow.state import State
from weir.results.layout import Layout
from weir.results.manifest import DataFile, StateFile, StateTally
from weir.state.retention import SnapshotKind

_DIGITS = 8
"""Of a number in the name of a file, so that names sort as numbers do."""


@dataclass(frozen=True, slots=True)
class StatePartition:
    """A subtask's part of a keyed state: `key_groups` is inclusive, `attempt` is who committed it.

    `tallies` are those of its live rows, as its manifest has them: who restores it goes on from them.
    """

    subtask: int
    key_groups: tuple[int, int]
    attempt: str
    digest: str
    rows: int
    tallies: tuple[StateTally, ...]
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """A keyed state: how it was declared, by which stage, and its partitions by subtask."""

    state: State
    stage: str
    max_parallelism: int
    spark_schema: str
    partitions: tuple[StatePartition, ...]

    @property
    def layout(self) -> Layout:
        """How the rows of its partitions are laid out."""
        return Layout(self.state.keys, self.max_parallelism)


@dataclass(frozen=True, slots=True)
class ResultInFlight:
    """A result partition that the next epoch reads over `previous`: lists, broadcast state, and plain results.

    `folder` is relative to the store, or to the savepoint.
    """

    stage: str
    subtask: int
    layout: str
    attempt: str
    folder: str
    manifest_sha256: str
    digest: str
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed checkpoint or savepoint; `number` counts up per dataflow and is never used twice.

    `pinned` is the JSON of the dataflow that the epoch's run is pinned to. Paths are relative to the store; those of a
    savepoint to its own folder, which has all files that it names and can be moved anywhere. `triggered_at` and
    `completed_at` are in UTC, ISO 8601. `incremental_bytes` are those of files that no checkpoint before it names.
    """

    dataflow: str
    number: int
    kind: SnapshotKind
    epoch: str
    run: str
    lineage: int
    attempt: str
    states: tuple[KeyedSnapshot, ...]
    results: tuple[ResultInFlight, ...]
    pinned: dict[str, object]
    triggered_at: str
    completed_at: str
    full_bytes: int
    incremental_bytes: int
    new_files: int
    shared_files: int

    @property
    def files(self) -> dict[str, StateFile]:
        """The files of keyed state that it names, by their paths."""
        return {file.path: file for state in self.states for part in state.partitions for file in part.files}


def checkpoints_folder(dataflow: str) -> str:
    """Where the checkpoints of a dataflow are listed, relative to the store."""
    return f"{dataflow}/_checkpoints"


def checkpoint_path(dataflow: str, number: int) -> str:
    """Where a checkpoint is described: made exclusively, so that a number is never that of two."""
    return f"{checkpoints_folder(dataflow)}/{number:0{_DIGITS}d}.json"


def checkpoint_number(path: str) -> int | None:
    """The number of the checkpoint that is described at a path; None where that is no checkpoint's."""
    name, dot, kind = path.rpartition("/")[2].partition(".")
    return int(name) if dot and kind == "json" and len(name) >= _DIGITS and name.isdecimal() else None

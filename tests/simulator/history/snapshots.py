"""The checkpoints and savepoints of one simulation: as the ledger has them, and as they were written.

Invariant: which files a checkpoint has is read from its manifest as it was written, not from the tested code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.simulator.history.ledger_view import Partition, Result
from tests.simulator.store import URL

from weir.formats.checkpoint import Checkpoint, fingerprint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path, checkpoints_folder, folder_of, name_of
from weir.formats.savepoint import SAVEPOINT
from weir.snapshots.savepoint import CLAIM
from weir.topology.regions import PartitionId

Key = tuple[str, int]
"""A dataflow, and the number of a checkpoint or savepoint of it."""


class Snapshot(NamedTuple):
    """A checkpoint or savepoint, as the ledger has it; `folder` is the URL of a savepoint."""

    number: int
    dataflow: str
    kind: str
    status: str
    epoch: str
    run: str
    attempt: str
    folder: str
    subsumed_at: str | None
    deleted_at: str | None

    @property
    def key(self) -> Key:
        """Its dataflow, and its number."""
        return self.dataflow, self.number

    @property
    def is_savepoint(self) -> bool:
        """Report whether it is a savepoint, which has files of its own."""
        return self.folder != ""

    @property
    def is_automatic(self) -> bool:
        """Report whether it is a savepoint that upkeep has made, and not a person."""
        return self.kind == "automatic"

    @property
    def is_listed(self) -> bool:
        """Report whether it is complete, and neither subsumed nor deleted: one of those that retention counts."""
        is_there = self.status == "completed" and self.subsumed_at is None and self.deleted_at is None
        return is_there and not self.is_automatic

    @property
    def is_retained(self) -> bool:
        """Report whether it is a checkpoint that is listed."""
        return self.is_listed and not self.is_savepoint

    @property
    def is_usable(self) -> bool:
        """Report whether a dataflow may be restored from it."""
        return self.is_retained or (self.is_savepoint and self.status == "completed" and self.deleted_at is None)


class Snapshots:
    """The checkpoints of one simulation: as the ledger has them, and as they were written."""

    def __init__(self) -> None:
        self.known: dict[Key, Snapshot] = {}
        self.newly_completed: list[Snapshot] = []
        self.written: dict[Key, Checkpoint] = {}
        self.completed: set[str] = set()
        """The runs that have had a checkpoint, retained or not."""

    def update(self, rows: list[Snapshot]) -> None:
        """Take the rows of the ledger, and note those newly completed."""
        before, self.known = self.known, {row.key: row for row in rows}
        self.newly_completed = [
            row
            for row in rows
            if row.status == "completed" and (row.key not in before or before[row.key].status != "completed")
        ]
        self.completed |= {row.run for row in self.newly_completed}

    def wrote(self, path: str, data: bytes) -> None:
        """Note a new file, if it is the manifest of a checkpoint or savepoint, complete or not."""
        folder, _, name = path.rpartition("/")
        if name == SAVEPOINT or folder == checkpoints_folder(path.partition("/")[0]):
            found = from_json(Checkpoint, data)
            self.written[found.dataflow, found.number] = found

    def has_written(self, path: str, data: bytes) -> bool:
        """Report whether it is a checkpoint's manifest of the same content: who slept meanwhile writes it again."""
        if folder_of(path) != checkpoints_folder(path.partition("/")[0]):
            return False
        found = from_json(Checkpoint, data)
        return fingerprint(self.written[found.dataflow, found.number]) == fingerprint(found)

    def retained(self) -> Iterator[Checkpoint]:
        """Yield the manifests of all retained checkpoints, as they were written."""
        return (self.written[row.key] for row in self.known.values() if row.is_retained)

    def why_needed(self, result: Result) -> str | None:
        """Return which retained checkpoint is of a result; others may name files of it."""
        for each in self.retained():
            if any((part.partition, part.attempt) == (result.partition, result.attempt) for part in parts_of(each)):
                return f"checkpoint {each.number} is of it"
        return None

    def automatic(self, dataflow: str) -> list[Snapshot]:
        """Return the automatic savepoints of a dataflow that are there, oldest epoch first."""
        found = [row for row in self.known.values() if row.is_automatic and row.is_usable and row.dataflow == dataflow]
        return sorted(found, key=lambda row: (row.epoch, row.number))

    def why_kept(self, path: str, most: int) -> str | None:
        """Return which retained checkpoint or complete savepoint, of automatic ones the newest, a file belongs to."""
        for row in self.known.values():
            is_old = row.is_automatic and row not in self.automatic(row.dataflow)[-most:]
            is_of = f"{URL}/{path}".startswith(f"{row.folder}/") and name_of(path) != CLAIM
            if row.is_savepoint and row.is_usable and is_of and not is_old:
                return f"it is of savepoint {row.number}"
        for each in self.retained():
            folders = {result.folder for result in each.results}
            if path == checkpoint_path(each.dataflow, each.number) or path in each.files:
                return f"checkpoint {each.number} names it"
            if folder_of(path) in folders:
                return f"checkpoint {each.number} names its result"
        return None


class Part(NamedTuple):
    """One partition of a checkpoint, and the attempt that made it."""

    partition: Partition
    attempt: str
    digest: str
    files: tuple[str, ...]


def parts_of(written: Checkpoint) -> Iterator[Part]:
    """Yield the parts of a checkpoint, as partitions of its run."""
    for kept in written.states:
        for part in kept.partitions:
            yield Part(
                Partition(written.run, PartitionId(kept.state.name, part.subtask, kept.layout.id)),
                part.attempt,
                part.digest,
                tuple(file.path for file in part.files),
            )
    for each in written.results:
        names = tuple(f"{each.folder}/{file.name}" for file in each.files)
        partition = Partition(written.run, PartitionId(each.stage, each.subtask, each.layout))
        yield Part(partition, each.attempt, each.digest, names)

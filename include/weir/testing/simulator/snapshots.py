"""What must hold of checkpoints (DESIGN 8, and 9's invariants 4 and 7).

Invariant: which files a checkpoint has is read from its manifest as it was written, not asked of what keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weir.results.checkpoint import Checkpoint, checkpoint_path
from weir.results.codec import checkpoint_from_json
from weir.results.layout import Layout
from weir.testing.simulator.sight import Partition, Result
from weir.topology.regions import PartitionId

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


class Snapshot(NamedTuple):
    """What the ledger knows of a checkpoint."""

    number: int
    status: str
    epoch: str
    run: str
    attempt: str
    subsumed_at: str | None
    deleted_at: str | None

    @property
    def is_retained(self) -> bool:
        """Whether it is complete, and nobody has said that it may go."""
        return self.status == "completed" and self.subsumed_at is None and self.deleted_at is None


class Snapshots:
    """The checkpoints of one simulation: as the ledger has them, and as they were written."""

    def __init__(self) -> None:
        self.known: dict[int, Snapshot] = {}
        self.newly_completed: list[Snapshot] = []
        self.written: dict[int, Checkpoint] = {}
        self.completed: set[str] = set()
        """The runs that have had one, retained or not."""

    def look(self, rows: dict[int, Snapshot]) -> None:
        """Note what has changed."""
        before, self.known = self.known, rows
        self.newly_completed = [
            row
            for row in rows.values()
            if row.status == "completed" and (row.number not in before or before[row.number].status != "completed")
        ]
        self.completed |= {row.run for row in self.newly_completed}

    def wrote(self, data: bytes) -> None:
        """A manifest is there, complete or not."""
        found = checkpoint_from_json(data)
        self.written[found.number] = found

    def retained(self) -> Iterator[Checkpoint]:
        """Those from which anybody may go on, as they were written."""
        return (self.written[row.number] for row in self.known.values() if row.is_retained)

    def why_kept(self, path: str) -> str | None:
        """Which retained checkpoint a file belongs to."""
        for each in self.retained():
            folders = {result.folder for result in each.results}
            if path == checkpoint_path(each.dataflow, each.number) or path in each.files:
                return f"checkpoint {each.number} names it"
            if path.rpartition("/")[0] in folders:
                return f"checkpoint {each.number} names its result"
        return None


def a_checkpoint_is_what_is_current(witness: Witness) -> Iterator[str]:
    """When it completes, it has all that the next epoch goes on from; and that of the epoch before is complete."""
    for row in witness.snapshots.newly_completed:
        written = witness.snapshots.written.get(row.number)
        before = witness.epochs.previous_of(row.run)
        if before is not None and before not in witness.snapshots.completed:
            yield f"checkpoint {row.number} of {row.run} is complete before that of {before}"
        if written is None:
            yield f"checkpoint {row.number} is complete, and has no manifest"
            continue
        for partition, attempt, files in _parts(written):
            found = witness.sight.current.get(partition)
            if found is None or found.attempt != attempt or not witness.sight.is_valid(partition):
                yield f"checkpoint {row.number} has {partition.id} of {attempt}, which is not current or not valid"
            elif not _is_there(witness, found, files):
                yield f"checkpoint {row.number} misses a file of {partition.id} of {attempt}"


def _parts(written: Checkpoint) -> Iterator[tuple[Partition, str, tuple[str, ...]]]:
    for kept in written.states:
        for part in kept.partitions:
            layout = Layout(kept.state.keys, kept.max_parallelism).id
            yield (
                Partition(written.run, PartitionId(kept.state.name, part.subtask, layout)),
                part.attempt,
                tuple(file.path for file in part.files),
            )
    for each in written.results:
        names = tuple(f"{each.folder}/{file.name}" for file in each.files)
        yield Partition(written.run, PartitionId(each.stage, each.subtask, each.layout)), each.attempt, names


def _is_there(witness: Witness, result: Result, files: tuple[str, ...]) -> bool:
    folders = {result.folder, *(path.rpartition("/")[0] for path in files)}
    return not folders.isdisjoint(witness.harmed) or all(path in witness.files for path in files)


def unfinished(witness: Witness) -> Iterator[str]:
    """What is not in order when all is well: each run's newest checkpoint is its state, and nothing is half done."""
    snapshots, sight = witness.snapshots, witness.sight
    newest = {row.run: row for row in sorted(snapshots.known.values()) if row.is_retained}
    for row in snapshots.known.values():
        if row.status == "pending":
            yield f"checkpoint {row.number} of {row.run} is neither complete nor given up"
        path = checkpoint_path(witness.flow.name, row.number)
        if path in witness.files and not row.is_retained:
            yield f"{path} is left"
        if row.is_retained and newest[row.run] != row:
            yield f"checkpoint {row.number} of {row.run} is retained beside {newest[row.run].number}"
    for run, row in newest.items():
        for partition, attempt, files in _parts(snapshots.written[row.number]):
            found = sight.current[partition]
            # One that came out as it was, without a file of its own, is what the checkpoint has.
            is_same = found.attempt == attempt or set(files) == set(witness.files_of(found))
            if not is_same or not _is_there(witness, found, files):
                yield f"checkpoint {row.number} of {run} has {partition.id} of {attempt}; {found.attempt} is current"
    last = max(sight.runs(), default=None)
    if witness.flow.keeps_state and last is not None and last not in newest:
        yield f"{last} has no checkpoint"

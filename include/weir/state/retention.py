"""Which checkpoints and savepoints stay, as Flink's CheckpointSubsumeHelper and CompletedCheckpointStore.

Invariant: the newest snapshot stays, and so does the newest that is no savepoint, unless the newest of all is the one
that the dataflow was stopped with. So there is always something to continue from that the dataflow owns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from weir.errors import Internal, Misconfigured


class SnapshotKind(Enum):
    """What a snapshot was made for."""

    CHECKPOINT = "checkpoint"
    """Weir's own: deleted when it is subsumed."""
    SAVEPOINT = "savepoint"
    """A person's: one that is subsumed leaves the list and stays where it is."""
    STOP = "stop"
    """A savepoint that the dataflow was stopped with: nothing older is needed to continue."""

    @property
    def is_savepoint(self) -> bool:
        """Whether it is self-contained, and a person's to delete."""
        return self is not SnapshotKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A completed checkpoint or savepoint; ids ascend and are never used twice."""

    id: int
    kind: SnapshotKind = SnapshotKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Subsumed:
    """What a list of snapshots becomes: those that are left, and those that are removed, each in the old order."""

    left: tuple[Snapshot, ...]
    removed: tuple[Snapshot, ...]

    @property
    def newest_removed(self) -> Snapshot | None:
        """The one of the highest id that was removed, if any was."""
        return max(self.removed, key=lambda snapshot: snapshot.id, default=None)

    @property
    def deleted(self) -> tuple[Snapshot, ...]:
        """Those whose manifest and unused files are to be deleted: no savepoint ever is."""
        return tuple(snapshot for snapshot in self.removed if not snapshot.kind.is_savepoint)

    @property
    def lowest_sharing(self) -> int | None:
        """The id below which no file needs to be shared any more; None while nothing is left that shares files.

        It is what SharedFiles.unregister_unused is called with. Savepoints share nothing, so they don't count.
        """
        return min((snapshot.id for snapshot in self.left if not snapshot.kind.is_savepoint), default=None)


def add(snapshots: Sequence[Snapshot], completed: Snapshot, retained: int) -> Subsumed:
    """Return what becomes of the snapshots, oldest first, when another one is complete and `retained` may stay.

    Raises Internal if its id is not above all others, Misconfigured if none may stay.
    """
    if snapshots and completed.id <= snapshots[-1].id:
        raise Internal(f"checkpoint {completed.id} is completed after checkpoint {snapshots[-1].id}: ids must ascend")
    return subsume((*snapshots, completed), retained)


def subsume(snapshots: Sequence[Snapshot], retained: int) -> Subsumed:
    """Return which of the snapshots, oldest first, have to go so that at most `retained` are left, if that can be.

    Raises Misconfigured if none may stay.
    """
    if retained < 1:
        raise Misconfigured(f"{retained} checkpoints are to be retained, expected at least 1: raise the number")
    excess = len(snapshots) - retained
    removed = tuple(_removable(snapshots))[: max(0, excess)]
    return Subsumed(tuple(snapshot for snapshot in snapshots if snapshot not in removed), removed)


def _removable(snapshots: Sequence[Snapshot]) -> Iterable[Snapshot]:
    """All that may go, oldest first."""
    newest = snapshots[-1] if snapshots else None
    own = [snapshot for snapshot in snapshots if not snapshot.kind.is_savepoint]
    stopped = newest is not None and newest.kind is SnapshotKind.STOP
    for snapshot in snapshots:
        needed = snapshot == newest or (snapshot in own[-1:] and not stopped)
        if not needed:
            yield snapshot

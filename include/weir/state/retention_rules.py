"""Which checkpoints and savepoints stay, as Flink's CheckpointSubsumeHelper and CompletedCheckpointStore.

Invariant: the newest snapshot stays, and so does the newest that is no savepoint, unless the newest of all is the one
that the dataflow was stopped with. So there is always something to continue from that the dataflow owns.

Which checkpoints have to go, where epochs may be completed again.

Invariant: of each epoch the newest checkpoint counts, and the newest epochs stay: an old epoch that is computed again
does not push out the one that the dataflow goes on from. Where epochs come in order this is Flink's rule to the letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weir.errors import Internal, Misconfigured
from weir.formats.checkpoint import SnapshotKind


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


@dataclass(frozen=True, slots=True)
class CompletedSnapshot:
    """A completed checkpoint or savepoint that is retained, and the epoch at the end of which it stands."""

    number: int
    kind: SnapshotKind
    epoch: str


def subsumed(completed: Sequence[CompletedSnapshot], retained: int) -> dict[int, int]:
    """Return the numbers of those that have to go so that `retained` stay, each with that for which it goes.

    A checkpoint goes when a later one of its epoch is complete; of the others the oldest epochs go first, whatever
    their numbers. The highest number stays in any case: so no number is given out twice, even by a ledger that was
    built again. Raises Misconfigured if none may stay.
    """
    outdated = _completed_again(completed)
    left = [each for each in completed if each.number not in outdated]
    highest = max((each.number for each in left), default=0)
    # Flink's list is in the order of ids; the newest of its list stays.
    in_order = sorted(left, key=lambda each: (each.number == highest, each.epoch, each.number))
    removed = subsume([Snapshot(each.number, each.kind) for each in in_order], retained).removed
    return {**outdated, **{each.id: highest for each in removed}}


def _completed_again(completed: Sequence[CompletedSnapshot]) -> dict[int, int]:
    newest: dict[str, int] = {}
    own = [each for each in completed if not each.kind.is_savepoint]
    for each in own:
        newest[each.epoch] = max(newest.get(each.epoch, each.number), each.number)
    return {each.number: newest[each.epoch] for each in own if each.number != newest[each.epoch]}

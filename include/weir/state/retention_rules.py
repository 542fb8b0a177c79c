"""Decide which snapshots are retained, as Flink's CheckpointSubsumeHelper and CompletedCheckpointStore do.

Invariant: the newest snapshot is retained, and so is the newest checkpoint, unless the newest snapshot is the savepoint
that the dataflow was stopped with. So there is always a snapshot to restore that the dataflow owns. Of an epoch that
is completed again the newest checkpoint counts, and the newest epochs are retained, whatever their numbers: an old
epoch that is recomputed never subsumes the epoch that the dataflow resumes from. Where epochs complete in order this is
Flink's rule. A checkpoint that is not whole subsumes none that is.
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
    """The snapshots that are left and those that are removed, both in the old order."""

    left: tuple[Snapshot, ...]
    removed: tuple[Snapshot, ...]

    @property
    def deleted(self) -> tuple[Snapshot, ...]:
        """The snapshots whose manifest and unused files are to be deleted: savepoints never are."""
        return tuple(snapshot for snapshot in self.removed if not snapshot.kind.is_savepoint)


def add(snapshots: Sequence[Snapshot], completed: Snapshot, retained: int) -> Subsumed:
    """Add a completed snapshot to `snapshots`, oldest first, and remove those beyond `retained`.

    Raises Internal if its id is not above all others, Misconfigured if `retained` is below 1.
    """
    if snapshots and completed.id <= snapshots[-1].id:
        raise Internal(f"checkpoint {completed.id} is completed after checkpoint {snapshots[-1].id}: ids must ascend")
    return subsume((*snapshots, completed), retained)


def subsume(snapshots: Sequence[Snapshot], retained: int) -> Subsumed:
    """Remove snapshots, oldest first, until at most `retained` are left, as far as the invariant allows.

    Raises Misconfigured if `retained` is below 1.
    """
    if retained < 1:
        raise Misconfigured(f"{retained} checkpoints are to be retained, expected at least 1: raise the number")
    excess = len(snapshots) - retained
    removed = tuple(_removable(snapshots))[: max(0, excess)]
    return Subsumed(tuple(snapshot for snapshot in snapshots if snapshot not in removed), removed)


def _removable(snapshots: Sequence[Snapshot]) -> Iterable[Snapshot]:
    """Yield the snapshots that may be removed, oldest first."""
    newest = snapshots[-1] if snapshots else None
    own = [snapshot for snapshot in snapshots if not snapshot.kind.is_savepoint]
    stopped = newest is not None and newest.kind is SnapshotKind.STOP
    for snapshot in snapshots:
        needed = snapshot == newest or (snapshot in own[-1:] and not stopped)
        if not needed:
            yield snapshot


@dataclass(frozen=True, slots=True)
class CompletedSnapshot:
    """A completed checkpoint or savepoint that is retained, and the epoch whose end it describes."""

    number: int
    kind: SnapshotKind
    epoch: str
    is_whole: bool = True
    """Whether none of its files is known to be gone or damaged."""


def subsumed(completed: Sequence[CompletedSnapshot], retained: int) -> dict[int, int]:
    """Return the numbers of snapshots to subsume so that `retained` are left, with the number that subsumes them.

    A checkpoint is subsumed when a later one of its epoch is complete; of the others the oldest epochs are subsumed
    first, whatever their numbers. Snapshots that are whole are only subsumed by others that are. Raises Misconfigured
    if `retained` is below 1.
    """
    whole = [each for each in completed if each.is_whole]
    by_whole, by_any = _subsumed(whole, retained), _subsumed(completed, retained)
    damaged = {each.number for each in completed if not each.is_whole}
    return by_whole | {number: by for number, by in by_any.items() if number in damaged}


def _subsumed(completed: Sequence[CompletedSnapshot], retained: int) -> dict[int, int]:
    outdated = _completed_again(completed)
    left = [each for each in completed if each.number not in outdated]
    # Flink's list is in the order of ids, and its last snapshot is retained.
    in_order = sorted(left, key=lambda each: (each.epoch, each.number))
    removed = subsume([Snapshot(each.number, each.kind) for each in in_order], retained).removed
    return {**outdated, **{each.id: in_order[-1].number for each in removed}}


def _completed_again(completed: Sequence[CompletedSnapshot]) -> dict[int, int]:
    newest: dict[str, int] = {}
    own = [each for each in completed if not each.kind.is_savepoint]
    for each in own:
        newest[each.epoch] = max(newest.get(each.epoch, each.number), each.number)
    return {each.number: newest[each.epoch] for each in own if each.number != newest[each.epoch]}

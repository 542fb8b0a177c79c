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
from itertools import islice

from weir.errors import Misconfigured
from weir.formats.checkpoint import SnapshotKind


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
    if retained < 1:
        raise Misconfigured.of("state.none_retained", retained=retained)
    whole = [snapshot for snapshot in completed if snapshot.is_whole]
    by_whole, by_any = _subsumed(whole, retained), _subsumed(completed, retained)
    damaged = {snapshot.number for snapshot in completed if not snapshot.is_whole}
    return by_whole | {number: by for number, by in by_any.items() if number in damaged}


def _subsumed(completed: Sequence[CompletedSnapshot], retained: int) -> dict[int, int]:
    outdated = _completed_again(completed)
    left = [snapshot for snapshot in completed if snapshot.number not in outdated]
    # Flink's list is in the order of ids, and its last snapshot is retained.
    in_order = sorted(left, key=lambda snapshot: (snapshot.epoch, snapshot.number))
    removed = islice(_removable(in_order), max(0, len(in_order) - retained))
    return {**outdated, **{snapshot.number: in_order[-1].number for snapshot in removed}}


def _removable(in_order: Sequence[CompletedSnapshot]) -> Iterable[CompletedSnapshot]:
    """Yield the snapshots that may be removed, oldest first."""
    newest = in_order[-1] if in_order else None
    own = [snapshot for snapshot in in_order if not snapshot.kind.is_savepoint]
    stopped = newest is not None and newest.kind is SnapshotKind.STOP
    for snapshot in in_order:
        needed = snapshot == newest or (snapshot in own[-1:] and not stopped)
        if not needed:
            yield snapshot


def _completed_again(completed: Sequence[CompletedSnapshot]) -> dict[int, int]:
    newest: dict[str, int] = {}
    own = [each for each in completed if not each.kind.is_savepoint]
    for each in own:
        newest[each.epoch] = max(newest.get(each.epoch, each.number), each.number)
    return {each.number: newest[each.epoch] for each in own if each.number != newest[each.epoch]}

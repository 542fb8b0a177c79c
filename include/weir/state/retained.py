"""Which checkpoints have to go, where epochs may be completed again.

Invariant: of each epoch the newest checkpoint counts, and the newest epochs stay: an old epoch that is computed again
does not push out the one that the dataflow goes on from. Where epochs come in order this is Flink's rule to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weir.state.retention import Snapshot, SnapshotKind, subsume


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

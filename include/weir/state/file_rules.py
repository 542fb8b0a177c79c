"""Select, cut and order the files that a partition of keyed state consists of.

Invariant: for each key group the files that name it, oldest epoch first, are all of its changes since it was empty; of
two rows of a key the row in the later file counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from weir.dataflow.state import State
from weir.formats.manifest import StateFile, UpdateDigest
from weir.units import time_from_text

KeyGroups = tuple[int, int]
"""An inclusive range of key groups."""

_EPOCH = "%Y%m%dT%H%M%SZ"


def epoch_seconds(epoch: str) -> int:
    """Return the start of an epoch, given as its key, in seconds since 1970."""
    return int(datetime.strptime(epoch, _EPOCH).replace(tzinfo=UTC).timestamp())


def expired_until(state: State, epoch: str) -> int | None:
    """Return the newest update that has expired in an epoch, in seconds since 1970; None where nothing expires."""
    time = None if state.ttl is None else time_from_text("ttl", state.ttl)
    return None if time is None else epoch_seconds(epoch) - int(time.total_seconds())


def assigned_files(
    files: Iterable[StateFile], key_groups: KeyGroups, expired_until: int | None
) -> tuple[StateFile, ...]:
    """Cut files to the key groups that are assigned to a subtask, oldest epoch first: no file is rewritten.

    A file all rows of which have expired is left out: rows that its deletions hide are older, and have expired, too.
    """
    return oldest_first(
        cut(file, key_groups)
        for file in files
        if overlap(file.key_groups, key_groups) and (expired_until is None or epoch_seconds(file.epoch) > expired_until)
    )


def oldest_first(files: Iterable[StateFile]) -> tuple[StateFile, ...]:
    """Order files by epoch, then by key groups and path."""
    return tuple(sorted(files, key=lambda file: (file.epoch, file.key_groups, file.path)))


def cut(file: StateFile, key_groups: KeyGroups) -> StateFile:
    """Return the file with those of its key groups that are also in `key_groups`, which overlap them."""
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    return replace(file, key_groups=(first, last))


def overlap(left: KeyGroups, right: KeyGroups) -> bool:
    """Report whether two inclusive ranges have a key group in common."""
    return left[0] <= right[1] and right[0] <= left[1]


def sorted_runs(files: Sequence[StateFile]) -> int:
    """Count the sorted runs that a reader merges: the most files that name the same key group."""
    starts = {each.key_groups[0] for each in files}
    return max((sum(each.key_groups[0] <= at <= each.key_groups[1] for each in files) for at in starts), default=0)


def visible(tallies: Iterable[UpdateDigest], expired_until: int | None) -> tuple[UpdateDigest, ...]:
    """Return the per-update digests of rows that have not expired, oldest first, without those of no rows."""
    kept = (each for each in tallies if each.rows and (expired_until is None or each.updated > expired_until))
    return tuple(sorted(kept, key=lambda each: each.updated))


def added(
    tallies: Iterable[UpdateDigest], more: Iterable[UpdateDigest], less: Iterable[UpdateDigest]
) -> tuple[UpdateDigest, ...]:
    """Return per-update digests after rows (`more`) were added and others (`less`) were removed."""
    sums: dict[int, list[int]] = {}
    for sign, group in ((1, tallies), (1, more), (-1, less)):
        for each in group:
            known = sums.setdefault(each.updated, [0, 0, 0, 0])
            known[0] += sign * each.rows
            known[1] ^= each.xor
            known[2] += sign * each.low_sum
            known[3] += sign * each.high_sum
    return tuple(UpdateDigest(updated, *sums[updated]) for updated in sorted(sums) if sums[updated] != [0, 0, 0, 0])

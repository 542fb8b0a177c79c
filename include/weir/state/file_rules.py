"""Which files a partition of keyed state consists of.

Invariant: for each key group the files that name it, oldest epoch first, are all of its changes since it was empty; of
two rows of a key the one in the later file counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from weir.dataflow.state import State
from weir.formats.manifest import StateFile, UpdateDigest
from weir.units import time_from_text

_EPOCH = "%Y%m%dT%H%M%SZ"


def epoch_seconds(epoch: str) -> int:
    """The start of an epoch, given as its key, in seconds since 1970."""
    return int(datetime.strptime(epoch, _EPOCH).replace(tzinfo=UTC).timestamp())


def expired_until(state: State, epoch: str) -> int | None:
    """The newest update that is invisible in an epoch, in seconds since 1970; None where nothing expires."""
    time = None if state.ttl is None else time_from_text("ttl", state.ttl)
    return None if time is None else epoch_seconds(epoch) - int(time.total_seconds())


def assigned_files(
    files: Iterable[StateFile], key_groups: tuple[int, int], expired_until: int | None
) -> tuple[StateFile, ...]:
    """What a subtask with these key groups goes on from, oldest epoch first: nothing is rewritten, whoever wrote it.

    A file all rows of which have expired is left out: what its deleted keys hide is older, and has expired, too.
    """
    return tuple(
        sorted(_shared(files, key_groups, expired_until), key=lambda each: (each.epoch, each.key_groups, each.path))
    )


def _shared(files: Iterable[StateFile], key_groups: tuple[int, int], expired_until: int | None) -> Iterator[StateFile]:
    for each in files:
        first, last = max(each.key_groups[0], key_groups[0]), min(each.key_groups[1], key_groups[1])
        is_expired = expired_until is not None and epoch_seconds(each.epoch) <= expired_until
        if first <= last and not is_expired:
            yield StateFile(each.folder, each.file, each.epoch, (first, last))


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two inclusive ranges have a key group in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def sorted_runs(files: Sequence[StateFile]) -> int:
    """The most files that name one key group: how many rows of a key a reader may have to choose from."""
    starts = {each.key_groups[0] for each in files}
    return max((sum(each.key_groups[0] <= at <= each.key_groups[1] for each in files) for at in starts), default=0)


def visible(tallies: Iterable[UpdateDigest], expired_until: int | None) -> tuple[UpdateDigest, ...]:
    """The tallies of rows that have not expired, oldest first; those without rows are left out."""
    kept = (each for each in tallies if each.rows and (expired_until is None or each.updated > expired_until))
    return tuple(sorted(kept, key=lambda each: each.updated))


def added(
    tallies: Iterable[UpdateDigest], more: Iterable[UpdateDigest], less: Iterable[UpdateDigest]
) -> tuple[UpdateDigest, ...]:
    """Tallies to which rows were added and from which rows were taken away."""
    sums: dict[int, list[int]] = {}
    for sign, group in ((1, tallies), (1, more), (-1, less)):
        for each in group:
            known = sums.setdefault(each.updated, [0, 0, 0, 0])
            known[0] += sign * each.rows
            known[1] ^= each.xor
            known[2] += sign * each.low_sum
            known[3] += sign * each.high_sum
    return tuple(UpdateDigest(updated, *sums[updated]) for updated in sorted(sums) if sums[updated] != [0, 0, 0, 0])

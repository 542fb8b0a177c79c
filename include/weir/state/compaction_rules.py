"""Choose which files of keyed state are merged after an epoch, and compute the amplification that results.

Invariant: the files of a merge are, for each key group, neighbours in age, so that newer rows still win over older
rows; and the merges of an epoch write no more than twice what it changed, and the budget.

Sorted runs are merged as by the k-binomial transform (Mathieu, Rajaraman, Young and Yousefi, "Competitive
data-structure dynamization", 2021): with k runs a row is written again at most m times in the first C(k + m, k) epochs.
Where a merge of all key groups would be more than an epoch may write, the key groups are divided into slices that are
merged in different epochs; the other slices take the cheapest merge that keeps their runs few enough. The oldest run is
merged like the others: when the newer runs have grown to its size, or by slices when more rows are overwritten, deleted
or expired than live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb

from weir.formats.manifest import StateFile
from weir.state.file_rules import KeyGroups, cut, oldest_first, overlap, sorted_runs
from weir.topology.ids import Epoch

CHANGED_SHARE = 2
"""Bytes that the compaction of an epoch may write for each byte that the epoch changed, besides the budget."""

GARBAGE_SHARE = 1.0
"""Rows that are no longer visible which may be stored for each live row."""

WORTH_CLEANING = 2**20
"""Bytes of state below which rows that are no longer visible are not removed: a merge would cost more."""

_SLICES_AN_EPOCH = 4
_MOST_SLICES = 512
_MOST_CLASS = 64

_SLACK = 1.5
"""Tolerance for epochs that change unequal numbers of rows."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Files, oldest first and cut to `key_groups`, that become one sorted run of `epoch`.

    `is_bottom` where no older file has any of these key groups: deletions need not be written again.
    """

    files: tuple[StateFile, ...]
    key_groups: KeyGroups
    epoch: Epoch
    is_bottom: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The most sorted runs that the next epoch may have to merge, and the bytes that may be written for that.

    These are the `budget` and CHANGED_SHARE times what the epoch `changed`, both in bytes.
    """

    runs: int
    budget: int
    changed: int

    @property
    def bytes(self) -> int:
        """The most bytes that the merges of the epoch may write."""
        return CHANGED_SHARE * self.changed + self.budget


@dataclass(frozen=True, slots=True)
class Amplification:
    """Read, write and space amplification of keyed state.

    `reading` counts the sorted runs that a reader merges, `writing` the bytes written for each byte that changed (1.0
    where nothing changed), `space` the rows stored for each visible row (1.0 where there are none).
    """

    reading: int
    writing: float
    space: float


@dataclass(slots=True)
class _Slice:
    """Key groups that have the same sorted runs, oldest first; `chosen` are the first and last run to merge."""

    key_groups: KeyGroups
    runs: tuple[tuple[StateFile, ...], ...]
    sizes: tuple[int, ...]
    rows: int
    chosen: tuple[int, int] | None = None

    def cost(self, span: tuple[int, int] | None) -> int:
        return 0 if span is None else sum(self.sizes[span[0] : span[1] + 1])

    @property
    def whole(self) -> tuple[int, int]:
        return 0, len(self.runs) - 1


def merges_of(files: Sequence[StateFile], live_rows: int, limits: Limits) -> tuple[Merge, ...]:
    """Choose the merges of a partition that has `live_rows` visible rows; empty where none is needed."""
    if not files or not limits.bytes:
        return ()
    slices = _slices(files, limits)
    left = _keep_runs_few(slices, limits)
    _remove_garbage(slices, live_rows, left)
    return tuple(_joined(slices))


def after(files: Iterable[StateFile], merges: Sequence[Merge], written: Iterable[StateFile]) -> tuple[StateFile, ...]:
    """Return the files of the partition once the merges are written: key groups that were merged are cut out."""
    kept = [piece for file in files for piece in _without(file, merges)]
    return oldest_first((*kept, *written))


def _without(file: StateFile, merges: Sequence[Merge]) -> Iterator[StateFile]:
    """Yield the pieces of a file that no merge has read."""
    merged = sorted(piece.key_groups for merge in merges for piece in merge.files if piece.path == file.path)
    start, last = file.key_groups
    for first, end in merged:
        if end < start or first > last:
            continue
        if start < first:
            yield replace(file, key_groups=(start, first - 1))
        start = end + 1
    if start <= last:
        yield replace(file, key_groups=(start, last))


def amplification(
    files: Iterable[StateFile], live_rows: int, changed_bytes: int, compacted_bytes: int
) -> Amplification:
    """Compute the amplification of partitions whose `files` hold `live_rows` visible rows.

    `changed_bytes` were written by epochs, `compacted_bytes` by compactions of them.
    """
    known = tuple(files)
    stored = sum({each.path: each.file.rows for each in known}.values())
    return Amplification(
        sorted_runs(known),
        (changed_bytes + compacted_bytes) / changed_bytes if changed_bytes else 1.0,
        stored / live_rows if live_rows else 1.0,
    )


def bytes_of(file: StateFile, key_groups: KeyGroups) -> int:
    """Estimate the bytes that a file has of the key groups, by the ranges that its row groups record."""
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    if first > last:
        return 0
    known = [each for each in file.file.segments if each.key_groups is not None]
    if not known:
        return _part(file.file.bytes, file.key_groups, (first, last))
    data = sum(each.length for each in known)
    found = sum(_part(each.length, each.key_groups, (first, last)) for each in known if each.key_groups is not None)
    return -(-found * file.file.bytes // data) if data else 0


def _part(size: int, of: KeyGroups, wanted: KeyGroups) -> int:
    """Return the part of `size` that `wanted` has if the key groups `of` have equal parts, rounded up."""
    both = min(of[1], wanted[1]) - max(of[0], wanted[0]) + 1
    return -(-size * both // (of[1] - of[0] + 1)) if both > 0 else 0


# Dividing key groups into slices


def _slices(files: Sequence[StateFile], limits: Limits) -> list[_Slice]:
    """Divide the key groups so that all of a slice have the same files, and an epoch may write several slices whole."""
    first, last = min(each.key_groups[0] for each in files), max(each.key_groups[1] for each in files)
    total = sum(bytes_of(each, each.key_groups) for each in files)
    count = 1
    while count <= min(last - first, _MOST_SLICES) and total * _SLICES_AN_EPOCH > max(1, limits.bytes) * count:
        count *= 2
    starts = {first + (last - first + 1) * number // count for number in range(count)}
    starts |= {each.key_groups[0] for each in files}
    starts |= {each.key_groups[1] + 1 for each in files if each.key_groups[1] < last}
    ends = [*sorted(starts), last + 1]
    found = (_slice(files, (start, end - 1)) for start, end in pairwise(ends))
    return [each for each in found if each.runs]


def _slice(files: Sequence[StateFile], key_groups: KeyGroups) -> _Slice:
    in_range = [each for each in files if overlap(each.key_groups, key_groups)]
    by_epoch: dict[str, list[StateFile]] = {each.epoch: [] for each in sorted(in_range, key=lambda file: file.epoch)}
    for each in in_range:
        by_epoch[each.epoch].append(each)
    sizes = tuple(sum(bytes_of(each, key_groups) for each in run) for run in by_epoch.values())
    rows = sum(_rows(each, key_groups) for each in in_range)
    return _Slice(key_groups, tuple(map(tuple, by_epoch.values())), sizes, rows)


def _rows(file: StateFile, key_groups: KeyGroups) -> int:
    """Estimate the rows that a file stores of these key groups, cut out of the partition or not."""
    return file.file.rows * bytes_of(replace(file, key_groups=key_groups), key_groups) // max(1, file.file.bytes)


# Choosing runs to merge


def _keep_runs_few(slices: Sequence[_Slice], limits: Limits) -> int:
    """Choose merges so that no slice has too many runs; return how many bytes may still be written.

    Where the budget does not suffice for all slices, those with the most runs come first.
    """
    left = limits.bytes
    urgent = sorted((each for each in slices if len(each.runs) > limits.runs), key=lambda each: -len(each.runs))
    for each in urgent:
        span = _cheapest(each, limits.runs)
        if each.cost(span) <= left:
            each.chosen = span
            left -= each.cost(span)
    for each in sorted(urgent, key=lambda each: (-each.cost(each.chosen), each.key_groups)):
        span = _binomial(each, limits.runs)
        more = each.cost(span) - each.cost(each.chosen)
        if more <= left:
            each.chosen = span
            left -= more
    return left


def _cheapest(slice_: _Slice, most: int) -> tuple[int, int]:
    """Return the neighbouring runs of the fewest bytes whose merge leaves `most` runs."""
    length = len(slice_.runs) - most
    return min(((start, start + length) for start in range(most)), key=lambda span: (slice_.cost(span), -span[0]))


def _binomial(slice_: _Slice, most: int) -> tuple[int, int]:
    """Return the newest runs, down to the first that was written again less often than the next older run."""
    last = len(slice_.runs) - 1
    older = slice_.sizes[most - 1 :: -1]
    unit = _SLACK * max(1, sum(slice_.sizes[most:]))
    classes = [_class(size, place, unit) for place, size in enumerate(older, start=1)]
    for place in range(most - 1):
        if classes[place] < classes[place + 1]:
            return most - 1 - place, last
    return 0, last


def _class(size: int, place: int, unit: float) -> int:
    """Return how often a run of that size in that place, counted from the newest, was the target of a merge."""
    return next((number for number in range(_MOST_CLASS) if comb(number + place, place) * unit >= size), _MOST_CLASS)


def _remove_garbage(slices: Sequence[_Slice], live_rows: int, left: int) -> None:
    """Choose whole slices while too many invisible rows are stored, those whose oldest run is the oldest first.

    So a file that only some slices still use is soon used by none, and can be deleted.
    """
    if sum(sum(each.sizes) for each in slices) < WORTH_CLEANING:
        return
    own = slices[0].key_groups[0], slices[-1].key_groups[1]
    files = {piece.path: piece for each in slices for run in each.runs for piece in run}
    garbage = sum(_rows(each, own) for each in files.values()) - live_rows
    referenced = sum(each.rows for each in slices)
    for each in sorted(slices, key=lambda each: (each.runs[0][0].epoch, each.key_groups)):
        if garbage <= GARBAGE_SHARE * live_rows:
            return
        more = each.cost(each.whole) - each.cost(each.chosen)
        if len(each.runs) > 1 and more <= left:
            each.chosen = each.whole
            left -= more
            garbage -= each.rows - live_rows * each.rows // max(1, referenced)


# Joining the merges of adjacent slices


def _joined(slices: Iterable[_Slice]) -> Iterator[Merge]:
    """Join the merges of adjacent slices that become runs of the same epoch."""
    open_merge: Merge | None = None
    for each in slices:
        merge = _merge_of(each)
        if open_merge is not None and merge is not None and _can_join(open_merge, merge):
            open_merge = _join(open_merge, merge)
            continue
        if open_merge is not None:
            yield open_merge
        open_merge = merge
    if open_merge is not None:
        yield open_merge


def _merge_of(slice_: _Slice) -> Merge | None:
    if slice_.chosen is None:
        return None
    first, last = slice_.chosen
    files = tuple(cut(file, slice_.key_groups) for run in slice_.runs[first : last + 1] for file in run)
    return Merge(files, slice_.key_groups, files[-1].epoch, first == 0)


def _can_join(left: Merge, right: Merge) -> bool:
    is_adjacent = left.key_groups[1] + 1 == right.key_groups[0]
    return is_adjacent and (left.epoch, left.is_bottom) == (right.epoch, right.is_bottom)


def _join(left: Merge, right: Merge) -> Merge:
    """Return one merge for both; the pieces of a file on both sides of the border become one piece."""
    joined = list(left.files)
    for piece in right.files:
        border = piece.key_groups[0]
        adjacent = [file for file in joined if file.path == piece.path and file.key_groups[1] + 1 == border]
        for file in adjacent:
            joined.remove(file)
        first = adjacent[0].key_groups[0] if adjacent else border
        joined.append(replace(piece, key_groups=(first, piece.key_groups[1])))
    return Merge(oldest_first(joined), (left.key_groups[0], right.key_groups[1]), left.epoch, left.is_bottom)

"""Which files of keyed state are merged after an epoch.

Invariant: what is merged are, for each key group, neighbours in age, so that newer rows still win over what is older;
and no epoch's merges write more than twice what it changed and the budget.

Runs are merged as by the k-binomial transform (Mathieu, Rajaraman, Young and Yousefi, "Competitive data-structure
dynamization", 2021): with k runs a row is written again at most m times in the first C(k + m, k) epochs. Where a merge
of all key groups would be more than an epoch may write, it is done slice by slice, and the other slices do with the
cheapest merge that keeps their runs few enough. The oldest files are a run like the others: they are merged when all
above have grown up to them, or by slices when more rows are kept that nobody sees than rows that somebody does.

What keyed state costs beside what it is: of reading, of writing, and of space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

from weir.formats.manifest import StateFile
from weir.state.file_rules import overlap, runs_to_merge
from weir.topology.ids import Epoch

CHANGED_SHARE = 2
"""How many bytes an epoch's compaction may write for each byte that it changed, besides the budget."""

GARBAGE_SHARE = 1.0
"""How many rows that nobody sees may be kept for each that somebody does."""

WORTH_CLEANING = 2**20
"""Bytes of state below which rows that nobody sees do no harm: a merge would cost more than they do."""

_SLICES_AN_EPOCH = 4
_MOST_SLICES = 512
_MOST_CLASS = 64

_SLACK = 1.5
"""Epochs do not all change the same number of rows."""

KeyGroups = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Merge:
    """Files, oldest first, each cut to the key groups that are meant, that become one run of `epoch`.

    Where `is_bottom` there is nothing older in any of their key groups: deleted keys need not be remembered.
    """

    files: tuple[StateFile, ...]
    key_groups: KeyGroups
    epoch: Epoch
    is_bottom: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How many runs the next epoch may have to merge, and how many bytes may be written for that.

    Beside the `budget` it is twice what was `changed`, both in bytes.
    """

    runs: int
    budget: int
    changed: int

    @property
    def bytes(self) -> int:
        """How many bytes it may write."""
        return CHANGED_SHARE * self.changed + self.budget


@dataclass(slots=True)
class _Slice:
    """Key groups in all of which there are the same files: those by age; `chosen` are the first and last to merge."""

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
    """What to merge of the files of one partition, which has so many visible rows. Empty where all is well."""
    if not files or not limits.bytes:
        return ()
    slices = _slices(files, limits)
    left = _keep_runs_few(slices, limits)
    _remove_garbage(slices, live_rows, left)
    return tuple(_joined(slices))


def after(files: Iterable[StateFile], merges: Sequence[Merge], written: Iterable[StateFile]) -> tuple[StateFile, ...]:
    """The files of the partition once the merges are written: what they have read is cut out of the others."""
    kept = [piece for each in files for piece in _without(each, merges)]
    return tuple(sorted((*kept, *written), key=lambda each: (each.epoch, each.key_groups, each.path)))


def bytes_of(file: StateFile, key_groups: KeyGroups) -> int:
    """About how many bytes of a file are those of the key groups: its row groups say which they have."""
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    if first > last:
        return 0
    known = [each for each in file.file.segments if each.key_groups is not None]
    if not known:
        return _share(file.file.bytes, file.key_groups, (first, last))
    data = sum(each.length for each in known)
    found = sum(_share(each.length, each.key_groups, (first, last)) for each in known if each.key_groups is not None)
    return -(-found * file.file.bytes // data) if data else 0


def _share(size: int, of: KeyGroups, wanted: KeyGroups) -> int:
    both = min(of[1], wanted[1]) - max(of[0], wanted[0]) + 1
    return -(-size * both // (of[1] - of[0] + 1)) if both > 0 else 0


# Slices


def _slices(files: Sequence[StateFile], limits: Limits) -> list[_Slice]:
    """In each all key groups have the same files; they are so small that an epoch may write several of them whole."""
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
    mine = [each for each in files if overlap(each.key_groups, key_groups)]
    by_epoch: dict[str, list[StateFile]] = {each.epoch: [] for each in sorted(mine, key=lambda file: file.epoch)}
    for each in mine:
        by_epoch[each.epoch].append(each)
    sizes = tuple(sum(bytes_of(each, key_groups) for each in run) for run in by_epoch.values())
    rows = sum(_rows(each, key_groups) for each in mine)
    return _Slice(key_groups, tuple(map(tuple, by_epoch.values())), sizes, rows)


def _rows(file: StateFile, key_groups: KeyGroups) -> int:
    """About how many rows of a file have these key groups, whether the partition still means them or not."""
    whole = StateFile(file.folder, file.file, file.epoch, key_groups)
    return file.file.rows * bytes_of(whole, key_groups) // max(1, file.file.bytes)


# What to merge


def _keep_runs_few(slices: Sequence[_Slice], limits: Limits) -> int:
    """Choose what has to be merged so that no slice has too many runs; answers how many bytes may still be written.

    Where the budget does not suffice for all, those with the most runs come first.
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


def _cheapest(found: _Slice, most: int) -> tuple[int, int]:
    """The neighbours that are the fewest bytes."""
    length = len(found.runs) - most
    return min(((start, start + length) for start in range(most)), key=lambda span: (found.cost(span), -span[0]))


def _binomial(found: _Slice, most: int) -> tuple[int, int]:
    """The newest runs, down to the first that has been written again less often than the next older one."""
    last = len(found.runs) - 1
    older = found.sizes[most - 1 :: -1]
    unit = _SLACK * max(1, sum(found.sizes[most:]))
    classes = [_class(size, place, unit) for place, size in enumerate(older, start=1)]
    for place in range(most - 1):
        if classes[place] < classes[place + 1]:
            return most - 1 - place, last
    return 0, last


def _class(size: int, place: int, unit: float) -> int:
    """How often a run of that size in that place, counted from the newest, has been merged into."""
    return next((number for number in range(_MOST_CLASS) if comb(number + place, place) * unit >= size), _MOST_CLASS)


def _remove_garbage(slices: Sequence[_Slice], live_rows: int, left: int) -> None:
    """Merge slices whole while too much is kept, those that were so the longest ago first.

    So a file that is used for some slices only is soon used for none, and its bytes can go.
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


# What comes of it


def _joined(slices: Iterable[_Slice]) -> Iterator[Merge]:
    """Slices side by side that become runs of one epoch become one run."""
    open_merge: Merge | None = None
    for each in slices:
        merge = _merge_of(each)
        if open_merge is not None and merge is not None and _fits(open_merge, merge):
            open_merge = _both(open_merge, merge)
            continue
        if open_merge is not None:
            yield open_merge
        open_merge = merge
    if open_merge is not None:
        yield open_merge


def _merge_of(found: _Slice) -> Merge | None:
    if found.chosen is None:
        return None
    first, last = found.chosen
    files = tuple(_cut(each, found.key_groups) for run in found.runs[first : last + 1] for each in run)
    return Merge(files, found.key_groups, files[-1].epoch, first == 0)


def _cut(file: StateFile, key_groups: KeyGroups) -> StateFile:
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    return StateFile(file.folder, file.file, file.epoch, (first, last))


def _fits(one: Merge, other: Merge) -> bool:
    is_beside = one.key_groups[1] + 1 == other.key_groups[0]
    return is_beside and (one.epoch, one.is_bottom) == (other.epoch, other.is_bottom)


def _both(one: Merge, other: Merge) -> Merge:
    """The pieces of a file on both sides of the border are one again."""
    joined = list(one.files)
    for piece in other.files:
        beside = [each for each in joined if each.path == piece.path and each.key_groups[1] + 1 == piece.key_groups[0]]
        for each in beside:
            joined.remove(each)
        first = beside[0].key_groups[0] if beside else piece.key_groups[0]
        joined.append(StateFile(piece.folder, piece.file, piece.epoch, (first, piece.key_groups[1])))
    files = tuple(sorted(joined, key=lambda each: (each.epoch, each.key_groups, each.path)))
    return Merge(files, (one.key_groups[0], other.key_groups[1]), one.epoch, one.is_bottom)


def _without(file: StateFile, merges: Sequence[Merge]) -> Iterator[StateFile]:
    """What is left of a file: the key groups that no merge has read."""
    gone = sorted(piece.key_groups for merge in merges for piece in merge.files if piece.path == file.path)
    start, last = file.key_groups
    for first, end in gone:
        if end < start or first > last:
            continue
        if start < first:
            yield StateFile(file.folder, file.file, file.epoch, (start, first - 1))
        start = end + 1
    if start <= last:
        yield StateFile(file.folder, file.file, file.epoch, (start, last))


@dataclass(frozen=True, slots=True)
class Amplification:
    """How many runs a reader merges, how many bytes are written for one that changed, how many rows are kept for one.

    Of a state without rows the space is 1.0; of an epoch that changed nothing the writing is 1.0.
    """

    reading: int
    writing: float
    space: float


def amplification(
    files: Iterable[StateFile], live_rows: int, changed_bytes: int, compacted_bytes: int
) -> Amplification:
    """The figures of one partition, or of several together: `files` stand for `live_rows` visible rows.

    `changed_bytes` are what epochs wrote themselves, `compacted_bytes` what compactions of them wrote.
    """
    known = tuple(files)
    stored = sum({each.path: each.file.rows for each in known}.values())
    return Amplification(
        runs_to_merge(known),
        (changed_bytes + compacted_bytes) / changed_bytes if changed_bytes else 1.0,
        stored / live_rows if live_rows else 1.0,
    )

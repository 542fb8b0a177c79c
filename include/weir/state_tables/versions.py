"""Decides what is done next to a table that has the rows of a state as several checkpoints have left them.

The rows of a table are divided into segments: what one checkpoint changed against another one, its parent. A version
names the segments that a checkpoint consists of; of two rows of a key that in the later segment counts.

Invariants: each step leaves every version that stays as it was, and can be stopped after any row that it moves or
deletes. The newest version is replaced by a newer one, and never goes before that. A segment that has been used is not
used again for other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weir.topology.ids import Epoch


@dataclass(frozen=True, slots=True, order=True)
class At:
    """The end of an epoch, as a checkpoint has it; later ones are greater."""

    epoch: Epoch
    checkpoint: int


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A checkpoint that is in a table, its segments from the oldest on, and until when rows have expired in it."""

    at: At
    segments: tuple[int, ...]
    expired_until: int | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Add a checkpoint as a version."""

    at: At


@dataclass(frozen=True, slots=True)
class Forget:
    """Take versions out: nobody asks for them any more."""

    versions: tuple[At, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete rows of segments that no version names."""

    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Move rows of `segment` into the one below it, which every version that names either of them has right below.

    Where that is the lowest of all of these, rows that hide others need not be kept.
    """

    segment: int
    into: int
    is_lowest: bool


Step = Apply | Forget | Delete | Fold


def next_step(
    wanted: Collection[At], versions: Sequence[TableVersion], used: Collection[int], open_epochs: Collection[Epoch] = ()
) -> Step | None:
    """Return the next step to a table of the wanted checkpoints; None where nothing is left to do.

    `used` are the segments that may have rows. A table stays as it is while no checkpoint is wanted: the newest rows
    that there are do not go because the checkpoint of them is lost. Of `open_epochs`, whose checkpoints are not to be
    shown yet, it keeps what it has until another one of them is wanted.
    """
    known = {each.at for each in versions}
    missing = sorted(set(wanted) - known)
    if missing:
        return Apply(missing[0])
    kept = set(open_epochs) - {each.epoch for each in wanted}
    gone = sorted(at for at in known - set(wanted) if at.epoch not in kept) if wanted else []
    if gone:
        return Forget(tuple(gone))
    named = {segment for each in versions for segment in each.segments}
    unused = sorted(set(used) - named)
    if unused:
        return Delete(tuple(unused))
    return _fold(versions)


def _fold(versions: Iterable[TableVersion]) -> Fold | None:
    """Return the first two segments that all versions which name one of them have one upon the other."""
    chains = [each.segments for each in versions]
    for below, segment in sorted({pair for chain in chains for pair in pairwise(chain)}):
        concerned = [chain for chain in chains if below in chain or segment in chain]
        if all((below, segment) in pairwise(chain) for chain in concerned):
            return Fold(segment, below, is_lowest=all(chain[0] == below for chain in concerned))
    return None


def replaced_by(at: At, versions: Iterable[TableVersion]) -> tuple[At, ...]:
    """Return the older checkpoints of the epoch of a new one: readers never see two of an epoch."""
    return tuple(each.at for each in versions if each.at.epoch == at.epoch and each.at < at)


def nearest(at: At, versions: Sequence[TableVersion]) -> TableVersion | None:
    """Return the version that most likely differs least from a new one: the last one before it, else the first."""
    before = [each for each in versions if each.at < at]
    if before:
        return max(before, key=lambda each: each.at)
    return min(versions, key=lambda each: each.at, default=None)


def all_expired_until(versions: Iterable[TableVersion]) -> int | None:
    """Return the update until which rows have expired in every version: nobody can see them any more."""
    ends = [each.expired_until for each in versions]
    return min((each for each in ends if each is not None), default=None) if None not in ends else None


def newest_of_epochs(found: Iterable[At]) -> list[At]:
    """Return of each epoch the newest checkpoint, in order."""
    return sorted({each.epoch: each for each in sorted(found)}.values())


def may_go_on(expired_until: int | None, before: TableVersion) -> bool:
    """Report whether what has expired in a version has expired in a checkpoint that only adds its changes to it.

    Where rows live longer since, those would come back.
    """
    return before.expired_until is None or (expired_until is not None and expired_until >= before.expired_until)

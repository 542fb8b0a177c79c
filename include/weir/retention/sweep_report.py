"""The report of a sweep: what was deleted, what is kept and why, and where ledger and store differ.

Invariant: every listed byte is in one of the report's lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from weir.retention.deletion_rules import ReleaseDecision
from weir.units import format_size


class Garbage(Enum):
    """The kind of a deleted folder or file."""

    RELEASED = "released result"
    ABANDONED = "left by an attempt"
    SUPERSEDED = "superseded result"
    COPY = "copy of a cached stage"
    SOURCE_COPY = "copy of what a source has read"
    STRAY = "file that no manifest names"
    POINTER = "pointer to a version"
    EXPIRED = "expired run"
    CHECKPOINT = "checkpoint that is not retained"
    ARCHIVE = "archive of code"
    POSITION = "position of a source"


@dataclass(frozen=True, slots=True)
class Swept:
    """A folder or file that was deleted, or would be."""

    kind: Garbage
    path: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder or file that stays, and why."""

    path: str
    bytes: int
    reason: str


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """A sweep of one dataflow or of all.

    `to_release` are results that a dry sweep would release; `expired` are runs whose manifests and records are deleted,
    too; `missing` are finished results without their files; `unknown` is what the ledger does not know: it stays.
    """

    is_dry: bool = False
    is_full: bool = False
    runs: int = 0
    deleted: list[Swept] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    to_release: list[ReleaseDecision] = field(default_factory=list)
    expired: list[Kept] = field(default_factory=list)
    missing: list[Kept] = field(default_factory=list)
    unknown: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def deleted_bytes(self) -> int:
        """The bytes that were deleted, or would be, including results that would be released."""
        return sum(each.bytes for each in self.deleted) + sum(each.stored.bytes for each in self.to_release)

    def kept_by_reason(self) -> list[tuple[str, int, int]]:
        """Return what is kept: reason, number of folders or files, and bytes; the most bytes first."""
        return _by_reason((each.reason, each.bytes) for each in self.kept)

    def to_release_by_reason(self) -> list[tuple[str, int, int]]:
        """Return the results that would be released: reason, number, and bytes; the most bytes first."""
        return _by_reason((each.reason, each.stored.bytes) for each in self.to_release)

    def deleted_by_kind(self) -> list[tuple[str, int, int]]:
        """Return what was deleted: kind, number, and bytes; the most bytes first."""
        return _by_reason((each.kind.value, each.bytes) for each in self.deleted)

    def __str__(self) -> str:
        """Return the report as one line."""
        verb = "would be deleted" if self.is_dry else "deleted"
        to_release = sum(each.stored.bytes for each in self.to_release)
        parts = [f"{len(self.to_release)} x result to release, {format_size(to_release)}"] if self.to_release else []
        parts += [f"{count} x {kind}, {format_size(size)}" for kind, count, size in self.deleted_by_kind()]
        what = f"{self.runs} run(s) swept; {verb}: {'; '.join(parts) or 'nothing'}"
        kept = sum(each.bytes for each in self.kept)
        more = [f"{len(self.expired)} run(s) {'would expire' if self.is_dry else 'expired'}"] if self.expired else []
        more += [f"{len(self.missing)} finished result(s) miss files"] if self.missing else []
        more += [f"{len(self.unknown)} thing(s) that the ledger does not know"] if self.unknown else []
        return "; ".join([what, f"kept: {format_size(kept)}", *more, *self.notes])


def _by_reason(found: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for reason, size in found:
        counts[reason] += 1
        sizes[reason] += size
    return [(reason, counts[reason], sizes[reason]) for reason in sorted(counts, key=lambda each: (-sizes[each], each))]

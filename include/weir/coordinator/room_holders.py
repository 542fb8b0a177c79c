"""Who holds the bytes that lie about, for a person who needs room. Invariant: each byte is held by one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weir.coordinator.release import ResultLife
from weir.dataflow.keep import told_size
from weir.ledger.runs import dataflow_of

PUBLISHED = "published, and kept for good; keep_published lets old epochs go"
SHARED = (
    "state that later epochs and checkpoints share, and what it was compacted to; fewer retained_checkpoints need less"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Results that stay for one reason: of these runs of a dataflow, or (none) of all those that are through."""

    dataflow: str
    reason: str
    bytes: int
    runs: frozenset[str]

    def __str__(self) -> str:
        whose = told_runs(self.runs) if self.runs else self.dataflow
        return f"{told_size(self.bytes)} of {whose}: {self.reason}"


def held_by(
    lives: Iterable[Iterable[ResultLife]], published: Mapping[str, int], shared: Mapping[str, int]
) -> list[Holder]:
    """Group what is kept of each run by dataflow and reason, the most bytes first.

    What is `published`, and the `shared` files of state whose runs have released it, is by dataflow.
    """
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    runs: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in (life for of_run in lives for life in of_run if not life.is_released):
        key = (dataflow_of(each.run), each.reason)
        sizes[key] += each.bytes
        runs[key].add(each.run)
    holders = [Holder(*key, size, frozenset(runs[key])) for key, size in sizes.items()]
    for reason, by_dataflow in ((PUBLISHED, published), (SHARED, shared)):
        holders += [Holder(name, reason, size, frozenset()) for name, size in by_dataflow.items() if size]
    return sorted(holders, key=lambda each: (-each.bytes, each.dataflow, each.reason))


def told_runs(runs: Collection[str]) -> str:
    """One run by its name, several by their dataflows and their number."""
    if len(runs) == 1:
        return next(iter(runs))
    names = sorted({dataflow_of(run) for run in runs})
    return f"{len(runs)} runs of {', '.join(names)}"

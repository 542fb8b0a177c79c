"""The report of a restore, or of its dry run, and its text for people.

Invariant: a dry run and a restore have the same report and the same text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from weir.units import format_size

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition of the snapshot: it is restored, or it has the same content already."""

    stage: str
    subtask: int
    layout: str
    digest: str
    is_restored: bool


@dataclass(frozen=True, slots=True)
class StaleTask:
    """A region of a later run that has read other state, and why it runs again."""

    run: str
    region: str
    reason: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.region} of {self.run}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore, or of its dry run.

    `fenced` are attempts that may not commit any more. `stale` are the tasks of later runs that are rerun, with the
    reasons; `later_runs` are all runs after the epoch, oldest first, which are rerun as far as their state changes.
    `dropped_clears` are pending ones that are not needed any more. With `is_in_effect` the dataflow was restored from
    this snapshot last, and nothing has to be changed.
    """

    dataflow: str
    source: str
    epoch: str
    lineage: int
    partitions: tuple[PartitionPlan, ...]
    stale: tuple[StaleTask, ...]
    later_runs: tuple[str, ...]
    is_repinned: bool
    fenced: tuple[str, ...] = ()
    pending_clears: int = 0
    dropped_clears: int = 0
    copied_bytes: int = 0
    is_in_effect: bool = False

    @property
    def hash(self) -> str:
        """That of what is done: the same for a dry run and the restore after it, if nothing has changed meanwhile."""
        partitions = [
            (each.stage, each.subtask, each.layout, each.digest, each.is_restored) for each in self.partitions
        ]
        stale = [(each.run, each.region) for each in self.stale]
        done = [self.dataflow, self.source, self.lineage, partitions, stale, self.later_runs, self.is_repinned]
        return hashlib.sha256(json.dumps(done).encode()).hexdigest()[:16]

    def lines(self, *, is_dry: bool, is_fork: bool) -> list[str]:
        """Return it for people."""
        if self.is_in_effect:
            return [f"{self.source} is restored into {self.dataflow} already: nothing changes"]
        restored = [each for each in self.partitions if each.is_restored]
        same = len(self.partitions) - len(restored)
        verb = "Would restore" if is_dry else "Restored"
        given = (
            (same, f"{same} partition(s) are unchanged since then, and stay"),
            (
                self.is_repinned,
                f"the run of epoch {self.epoch} is pinned to its dataflow of then: its other results become stale",
            ),
            (self.copied_bytes, f"copied: {format_size(self.copied_bytes)}"),
            (restored, "its rows are checked when they are first read, before the next epoch computes anything"),
            (self.fenced, f"fenced, to start again: {', '.join(self.fenced)}"),
            (self.dropped_clears, f"{self.dropped_clears} pending clear(s) of epoch {self.epoch} dropped"),
        )
        return [
            f"{verb} {self.source} into {self.dataflow}, lineage {self.lineage}: {len(restored)} partition(s)",
            *_some([f"{each.stage}[{each.subtask}] ({each.layout})" for each in restored]),
            *(f"  {line}" for is_so, line in given if is_so),
            *self._what_follows(is_dry=is_dry, is_fork=is_fork),
        ]

    def _what_follows(self, *, is_dry: bool, is_fork: bool) -> list[str]:
        if is_fork:
            first = f"Next: a DAG of dataflow {self.dataflow}, whose first run is the one after epoch {self.epoch}."
            return [f"{first} It writes all of its state once; until then these files of the original stay."]
        if self.stale:
            will = "would run again" if is_dry else "run again"
            return [
                f"Read other state, and {will}:",
                *_some([str(each) for each in self.stale]),
                f"  then, one epoch after the other while the state differs: {', '.join(self.later_runs)}",
            ]
        if self.later_runs:
            return [f"No run after epoch {self.epoch} has read other state: nothing runs again"]
        return [f"The next epoch after {self.epoch} continues from it"]


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _SHOWN} more, which --json lists"] if len(lines) > _SHOWN else []
    return [f"  {line}" for line in (*lines[:_SHOWN], *more)]

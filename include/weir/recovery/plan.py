"""A recovery plan: one list of steps, which is printed, recorded and carried out.

Invariant 5: every region that must run again is a step; one that need not is in it only as "if X changes" or "spared".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.topology.regions import RegionId


class StepKind(Enum):
    """What becomes of a region."""

    RERUN = "will re-run"
    JOINED = "is under repair already"
    IF_CHANGED = "will re-run if its input changes"
    SPARED = "spared"


@dataclass(frozen=True, slots=True)
class Step:
    """One region and what becomes of it; `after_try` is the try that a clear of it must find."""

    kind: StepKind
    region: RegionId
    after_try: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to one failure. `failed` is retried by Airflow itself and needs no clear."""

    failed: RegionId
    cause: str
    steps: tuple[Step, ...]

    def of(self, kind: StepKind) -> tuple[Step, ...]:
        """The steps of one kind, in topological order."""
        return tuple(step for step in self.steps if step.kind is kind)

    def to_json(self) -> dict[str, Any]:
        """The plan as it is recorded in the ledger."""
        return {
            "version": 1,
            "failed": str(self.failed),
            "cause": self.cause,
            "steps": [
                {
                    "kind": step.kind.value,
                    "region": str(step.region),
                    "after_try": step.after_try,
                    "reason": step.reason,
                }
                for step in self.steps
            ],
        }

    def summary(self) -> str:
        """One sentence for a log or a note."""
        counts = Counter(step.kind for step in self.steps)
        named = ", ".join(str(step.region) for step in self.of(StepKind.RERUN)) or "nothing"
        joined = f", {counts[StepKind.JOINED]} under repair already" if counts[StepKind.JOINED] else ""
        return f"re-running {named}{joined}; {counts[StepKind.SPARED]} region(s) spared"

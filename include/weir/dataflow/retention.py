"""The retention policy of intermediate results that no task needs.

Invariant: a policy only keeps results longer. A result that is needed (by a consumer that has not read it, a running
reader, a published version) is kept under every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from weir.errors import Misconfigured
from weir.units import AMOUNT, format_duration, plain_time

KEEP_EXPECTED = '"on_consumed", "end_of_run", "2 runs" or a time such as "12 hours" or "7 days"'


class RetainUntil(Enum):
    """The earliest time at which an intermediate result may be deleted."""

    CONSUMED = "on_consumed"
    """When every consumer has committed a result computed from it (Flink's rule)."""
    END_OF_RUN = "end_of_run"
    """When its run has ended."""
    RUNS = "runs"
    """When a number of runs of later epochs are closed, whenever they were closed."""
    TIME = "time"
    """A duration after its run was closed."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The retention of intermediate results; `runs` belongs to RetainUntil.RUNS, `time` to RetainUntil.TIME."""

    until: RetainUntil
    runs: int = 0
    time: timedelta = timedelta()

    @staticmethod
    def from_text(text: str) -> RetentionPolicy:
        """Read "on_consumed", "end_of_run", "2 runs" or "7 days". Raises Misconfigured."""
        plain = str(text).strip().lower()
        for until in (RetainUntil.CONSUMED, RetainUntil.END_OF_RUN):
            if plain == until.value:
                return RetentionPolicy(until)
        found = AMOUNT.fullmatch(plain)
        if found and found[2] == "run" and int(found[1]) > 0:
            return RetentionPolicy(RetainUntil.RUNS, runs=int(found[1]))
        time = plain_time(plain)
        if time is None:
            raise Misconfigured.of("dataflow.keep_malformed", text=text, keep_expected=KEEP_EXPECTED)
        return RetentionPolicy(RetainUntil.TIME, time=time)

    def __str__(self) -> str:
        if self.until is RetainUntil.RUNS:
            return f"{self.runs} run{'s' if self.runs > 1 else ''}"
        return format_duration(self.time) if self.until is RetainUntil.TIME else self.until.value

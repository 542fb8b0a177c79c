"""A check: what is asked of rows, and what was found. Invariant: a report says all that its verdict is made from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.dataflow.quality import Policy
from weir.formats.suite import Severity, Suite

BUILT_IN = "weir"
"""The suite of the checks that only a restored result can fail; no suite of a user's may have this name."""


class Why(Enum):
    """Why a check is made."""

    FRESH = "fresh"
    RECOMPUTED = "recomputed"
    """A failover or a person had a committed result made again."""
    RESTORED = "restored"
    """It was taken out of a checkpoint or savepoint."""
    ADOPTED = "adopted"
    """A later try took over what an earlier one had committed."""
    BACKFILL = "backfill"
    RESTORE_TEST = "drill"
    """A checkpoint or savepoint was restored to a scratch place, to see whether it can be."""
    ASKED = "asked"
    """A person had a committed result looked at."""
    REBUILT = "rebuilt"
    """Found in a manifest when the ledger was built again: nobody knows any more."""


class Outcome(Enum):
    """What a check came to."""

    PASSED = "passed"
    WARNED = "warned"
    """Nothing is violated but what only warns, by its severity or by the gate's policy."""
    FAILED = "failed"
    SAME = "same"
    """Not checked: rows with the same digest have passed before."""


@dataclass(frozen=True, slots=True)
class CheckToRun:
    """A suite that the rows of a stage are checked by, once they are written; `passed` are digests that have passed."""

    suite: Suite
    policy: Policy
    why: Why
    passed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """What became of one expectation.

    `observed` is what GX calls so: an aggregate, or None. `rows` were looked at (without nulls where GX leaves them
    out), of which `unexpected` violate it (None: it is not about single rows); `examples` are up to 20 of their values.
    `error` says why it could not be computed, which counts as a violation.
    """

    type: str
    kwargs: dict[str, Any]
    severity: Severity
    success: bool
    observed: Any = None
    rows: int | None = None
    unexpected: int | None = None
    examples: tuple[Any, ...] = ()
    blames: tuple[str, ...] = ()
    error: str = ""

    def __str__(self) -> str:
        column = self.kwargs.get("column") or self.kwargs.get("column_list") or ""
        found = f"{self.unexpected} of {self.rows} rows" if self.unexpected is not None else f"found {self.observed}"
        return f"{self.type}({column}): {self.error or found}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a suite has found in the rows of a stage or of an input.

    `stage` and `subtask` name the partition. Of an input also `argument`, and the `run`, `layout` and `attempt` of what
    was read; these are empty for what the attempt itself has written. `digest` is that of the rows that were looked at.
    """

    stage: str
    subtask: int
    suite: str
    fingerprint: str
    policy: Policy
    why: Why
    digest: str
    rows: int
    results: tuple[ExpectationResult, ...]
    seconds: float
    is_same: bool = False
    argument: str = ""
    run: str = ""
    layout: str = ""
    attempt: str = ""

    @classmethod
    def built_in(
        cls,
        stage: str,
        subtask: int,
        why: Why,
        digest: str,
        rows: int,
        result: ExpectationResult,
        *,
        run: str = "",
        layout: str = "",
        attempt: str = "",
    ) -> CheckReport:
        """What a check has found that needs no suite, and no more time than it took to know of it."""
        about = (stage, subtask, BUILT_IN, "", Policy.FAIL, why, digest, rows)
        return cls(*about, (result,), 0.0, run=run, layout=layout, attempt=attempt)

    @property
    def violated(self) -> tuple[ExpectationResult, ...]:
        """The expectations that are violated and do not only warn."""
        if self.policy is Policy.WARN:
            return ()
        return tuple(each for each in self.results if not each.success and each.severity is Severity.FAIL)

    @property
    def outcome(self) -> Outcome:
        """What it came to."""
        if self.is_same:
            return Outcome.SAME
        if self.violated:
            return Outcome.FAILED
        return Outcome.PASSED if all(each.success for each in self.results) else Outcome.WARNED


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a manifest says of a check of its rows; a result with one that `failed` is in quarantine."""

    suite: str
    fingerprint: str
    outcome: Outcome

"""Checks of rows by suites, and their reports. Invariant: a report contains everything that its outcome depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.dataflow.quality import Policy
from weir.formats.suite import Severity, Suite

BUILT_IN = "weir"
"""The name of the suite of the built-in checks, which only restored results can fail; it is reserved."""


class CheckReason(Enum):
    """The reasons for a check. The values are stored in the ledger."""

    FRESH = "fresh"
    RECOMPUTED = "recomputed"
    """A failover or a person had a committed result recomputed."""
    RESTORED = "restored"
    """The result was restored from a checkpoint or savepoint."""
    ADOPTED = "adopted"
    """A later try adopted the result that an earlier try had committed."""
    BACKFILL = "backfill"
    RESTORE_TEST = "drill"
    """A checkpoint or savepoint was restored to a scratch place, to see whether it can be."""
    ASKED = "asked"
    """A person requested the check of a committed result."""
    REBUILT = "rebuilt"
    """The check was found in a manifest when the ledger was rebuilt, where the reason is not recorded."""


class CheckOutcome(Enum):
    """The outcomes of a check."""

    PASSED = "passed"
    WARNED = "warned"
    """Only expectations that warn are violated, by their severity or by the gate's policy."""
    FAILED = "failed"
    SAME = "same"
    """Not checked: rows with the same digest have passed before."""


@dataclass(frozen=True, slots=True)
class CheckToRun:
    """A suite that checks the rows of a stage after they are written; `passed` are digests that have passed before."""

    suite: Suite
    policy: Policy
    why: CheckReason
    passed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """The result of one expectation.

    `observed` is GX's observed value: an aggregate, or None. `rows` were checked (without nulls where GX leaves them
    out), of which `unexpected` violate it (None: it is not about single rows); `examples` are up to 20 of their values.
    `blames` are the inputs that become suspected. `error` is the reason why it could not be computed, which counts as a
    violation.
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
    """The results of a suite for the rows of a stage or of an input.

    `stage` and `subtask` name the partition. For an input, `argument` and the `run`, `layout` and `attempt` of its
    result are set; they are empty for rows that the attempt itself has written. `digest` is that of the checked rows.
    """

    stage: str
    subtask: int
    suite: str
    fingerprint: str
    policy: Policy
    why: CheckReason
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
        why: CheckReason,
        digest: str,
        rows: int,
        result: ExpectationResult,
        *,
        run: str = "",
        layout: str = "",
        attempt: str = "",
    ) -> CheckReport:
        """Return the report of a built-in check, which needs no suite and whose duration is not measured."""
        about = (stage, subtask, BUILT_IN, "", Policy.FAIL, why, digest, rows)
        return cls(*about, (result,), 0.0, run=run, layout=layout, attempt=attempt)

    @property
    def violated(self) -> tuple[ExpectationResult, ...]:
        """The violated expectations that do not only warn."""
        if self.policy is Policy.WARN:
            return ()
        return tuple(each for each in self.results if not each.success and each.severity is Severity.FAIL)

    @property
    def outcome(self) -> CheckOutcome:
        """The outcome of the check."""
        if self.is_same:
            return CheckOutcome.SAME
        if self.violated:
            return CheckOutcome.FAILED
        return CheckOutcome.PASSED if all(each.success for each in self.results) else CheckOutcome.WARNED


@dataclass(frozen=True, slots=True)
class GateResult:
    """The outcome of a check as the manifest records it; a result with a FAILED check is in quarantine."""

    suite: str
    fingerprint: str
    outcome: CheckOutcome


def gate_results(reports: Iterable[CheckReport], stage: str) -> tuple[GateResult, ...]:
    """Return the checks for a stage's manifest: those of its own rows, and failed ones elsewhere in its region."""
    own = [each for each in reports if not each.attempt and each.stage == stage]
    others = [each for each in reports if each not in own and each.outcome is CheckOutcome.FAILED]
    found: dict[str, GateResult] = {}
    for report in (*own, *others):
        known = found.get(report.suite)
        if known is None or known.outcome is not CheckOutcome.FAILED:
            found[report.suite] = GateResult(report.suite, report.fingerprint, report.outcome)
    return tuple(found.values())

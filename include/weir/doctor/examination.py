"""Findings of `weir doctor`, and the runner of its checks.

Invariants: a finding that is not ok says what was expected and what to do. A check ends in a finding within its time
limit, whether it answers, hangs or fails. A cleaned finding contains no known secret and no password of a URL.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from weir.errors import WeirError
from weir.secrecy import without_secrets
from weir.typed_json import AsJson
from weir.wording import shortened


class Status(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """Weir works, but slower or less safely than it could."""
    PROBLEM = "problem"
    """A part of Weir does not work."""
    UNKNOWN = "unknown"
    """The check could not run, for a reason outside of what it checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(AsJson):
    """One line of the report. `mend` is what to do next, as a command or a setting where there is one."""

    area: str
    name: str
    status: Status
    found: str
    expected: str = ""
    mend: str = ""


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status: a problem, else a warning, else unknown, else ok."""
    found = {each.status for each in findings}
    return next((each for each in (Status.PROBLEM, Status.WARNING, Status.UNKNOWN) if each in found), Status.OK)


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the report: its check, and what is said where it is not ok. A gate closes the rest of its area."""

    area: str
    name: str
    expected: str = ""
    mend: str = ""
    seconds: float = 20.0
    is_gate: bool = False

    def of(self, area: str = "", name: str = "") -> Item:
        """Return the same about one of several areas, such as connections, or names, such as packages."""
        return replace(self, area=area or self.area, name=name or self.name)

    def check(self, ask: Callable[[], Iterable[Finding]]) -> Check:
        """Return the check that is asked so."""
        return Check(self, ask)

    def ok(self, found: str) -> Finding:
        """Return the finding that nothing is wrong."""
        return Finding(area=self.area, name=self.name, status=Status.OK, found=found)

    def problem(self, found: str, **values: object) -> Finding:
        """Return the finding that it does not work."""
        return self._finding(Status.PROBLEM, found, values)

    def warning(self, found: str, **values: object) -> Finding:
        """Return the finding that it works, but not as it should."""
        return self._finding(Status.WARNING, found, values)

    def unknown(self, found: str, mend: str = "") -> Finding:
        """Return the finding that it could not be checked, and what to do first."""
        return Finding(area=self.area, name=self.name, status=Status.UNKNOWN, found=found, mend=mend)

    def _finding(self, status: Status, found: str, values: dict[str, object]) -> Finding:
        expected, mend = self.expected.format(**values), self.mend.format(**values)
        return Finding(area=self.area, name=self.name, status=status, found=found, expected=expected, mend=mend)


@dataclass(frozen=True, slots=True)
class Check:
    """A check of an item. After a gate with a problem, the remaining checks of its area are skipped."""

    item: Item
    ask: Callable[[], Iterable[Finding]]

    def failed(self, found: str, mend: str) -> Finding:
        """Return the finding about a check that failed."""
        return replace(self.item, expected="an answer", mend=mend).problem(found)


class Enough(Exception):
    """Raised by a check after its findings: the remaining checks of the area do not apply, and nothing is wrong."""


@dataclass(slots=True)
class _Answer:
    findings: list[Finding] = field(default_factory=list)
    is_enough: bool = False
    is_complete: threading.Event = field(default_factory=threading.Event)


def examine(areas: Sequence[Sequence[Check]]) -> Iterator[Finding]:
    """Run the checks and yield findings as they come: areas in parallel, the checks of an area one after the other.

    A check that hangs is abandoned in a daemon thread.
    """
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    for area in areas:
        threading.Thread(target=_examine_area, args=(area, found.put), daemon=True).start()
    for _ in areas:
        while (finding := found.get()) is not None:
            yield finding


def _examine_area(checks: Sequence[Check], report: Callable[[Finding | None], None]) -> None:
    try:
        for position, check in enumerate(checks, start=1):
            answer = _Answer()
            threading.Thread(target=_run, args=(check, answer), daemon=True).start()
            is_complete = answer.is_complete.wait(check.item.seconds)
            found = list(answer.findings)
            if not is_complete:
                mend = "see whether the target hangs: a mount, a server, a firewall that drops packets"
                found.append(check.failed(f"no answer within {check.item.seconds:g} seconds", mend))
            for finding in found:
                report(finding)
            is_closed = check.item.is_gate and any(each.status in {Status.PROBLEM, Status.UNKNOWN} for each in found)
            if (is_closed or not is_complete) and checks[position:]:
                rest = ", ".join(each.item.name for each in checks[position:])
                skipped = f"not checked, since it needs {check.item.name}: {rest}"
                report(check.item.of(name="the rest").unknown(skipped))
            if is_closed or not is_complete or answer.is_enough:
                return
    finally:
        report(None)


def _run(check: Check, answer: _Answer) -> None:
    try:
        for finding in check.ask():
            answer.findings.append(finding)
    except Enough:
        answer.is_enough = True
    except WeirError as error:
        answer.findings.append(check.failed(str(error), "do as the message says"))
    except BaseException as error:  # noqa: BLE001  reported as a finding
        text = f"the check itself failed: {type(error).__name__}: {shortened(' '.join(str(error).split()), 500)}"
        answer.findings.append(check.failed(text, "correct what the error names, or report it"))
    finally:
        answer.is_complete.set()


def cleaned(finding: Finding) -> Finding:
    """Return the finding without secrets: those that were handed to `weir.secrecy`, and what looks like one."""
    found, expected, mend = map(without_secrets, (finding.found, finding.expected, finding.mend))
    return replace(finding, found=found, expected=expected, mend=mend)

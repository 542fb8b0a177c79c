"""Asking many things at once, none of which may hold up the others.

Invariant: every check ends in a finding within its time, whether it answers, hangs or crashes; of an area nothing more
is asked once what the rest needs is not there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from weir.doctor.finding import Finding, Status, problem, unknown
from weir.errors import WeirError

SECONDS = 20.0
"""How long a check may take unless it says otherwise."""

_CLOSING = {Status.PROBLEM, Status.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its time limit. After a gate that found a problem, the rest of its area is not asked."""

    area: str
    name: str
    ask: Callable[[], Iterable[Finding]]
    seconds: float = SECONDS
    is_gate: bool = False


class Enough(Exception):
    """Raised by a check, after its findings: there is nothing yet that more could be asked of, and nothing is wrong."""


@dataclass(slots=True)
class _Answer:
    findings: list[Finding] = field(default_factory=list)
    is_enough: bool = False
    is_hanging: bool = False
    is_there: threading.Event = field(default_factory=threading.Event)


def examine(areas: Sequence[Sequence[Check]]) -> Iterator[Finding]:
    """Answer the findings as they come. Areas are asked at once, the checks of one area one after the other.

    A check that hangs is left behind in a daemon thread.
    """
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    for area in areas:
        threading.Thread(target=_examine_area, args=(area, found.put), daemon=True).start()
    for _ in areas:
        while (finding := found.get()) is not None:
            yield finding


def _examine_area(checks: Sequence[Check], tell: Callable[[Finding | None], None]) -> None:
    try:
        for position, check in enumerate(checks):
            answer = _asked(check)
            for finding in answer.findings:
                tell(finding)
            if answer.is_enough:
                return
            if answer.is_hanging or (check.is_gate and any(each.status in _CLOSING for each in answer.findings)):
                _tell_rest(check, checks[position + 1 :], tell)
                return
    finally:
        tell(None)


def _tell_rest(needed: Check, rest: Sequence[Check], tell: Callable[[Finding | None], None]) -> None:
    if rest:
        names = ", ".join(each.name for each in rest)
        tell(unknown(needed.area, "the rest", f"not asked, since it needs {needed.name}: {names}"))


def _asked(check: Check) -> _Answer:
    answer = _Answer()
    threading.Thread(target=_ask, args=(check, answer), daemon=True).start()
    if answer.is_there.wait(check.seconds):
        return answer
    return _Answer([*answer.findings, _hanging(check)], is_hanging=True)


def _ask(check: Check, answer: _Answer) -> None:
    try:
        for finding in check.ask():
            answer.findings.append(finding)
    except Enough:
        answer.is_enough = True
    except WeirError as error:
        answer.findings.append(_failed(check, error))
    except BaseException as error:  # noqa: BLE001  whatever it is, it is what was found
        answer.findings.append(_crashed(check, error))
    finally:
        answer.is_there.set()


def _failed(check: Check, error: WeirError) -> Finding:
    """Weir's own errors say what was expected and what to do."""
    return problem(check.area, check.name, str(error), expected="an answer", mend="do as the message says")


def _crashed(check: Check, error: BaseException) -> Finding:
    found = f"the check itself failed: {type(error).__name__}: {_first_lines(error)}"
    return problem(check.area, check.name, found, expected="an answer", mend="mend what the error names, or report it")


def _hanging(check: Check) -> Finding:
    return problem(
        check.area,
        check.name,
        f"no answer within {check.seconds:g} seconds",
        expected="an answer",
        mend="see whether what was asked hangs: a mount, a server, a firewall that drops packets",
    )


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[:3])[:500]

"""What a check found, as data.

Invariant: whatever is not ok says what was expected and what to do next.

Asking many things at once, none of which may hold up the others.

Invariant: every check ends in a finding within its time, whether it answers, hangs or crashes; of an area nothing more
is asked once what the rest needs is not there.

Keeping secrets out of what is shown.

Invariant: a text that passed through here holds no password of a URL and none of the secrets that were named.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote

from weir.errors import WeirError


class Status(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """Weir works, but slower or less safely than it could."""
    PROBLEM = "problem"
    """Something of Weir does not work."""
    UNKNOWN = "unknown"
    """It could not be asked, for a reason that is no fault of what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. `mend` is what to do next, in the words to type where there are such."""

    area: str
    name: str
    status: Status
    found: str
    expected: str = ""
    mend: str = ""

    def to_json(self) -> dict[str, Any]:
        """A flat object of texts."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        """Read what `to_json` made. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**values, "status": Status(values["status"])})


def ok(area: str, name: str, found: str) -> Finding:
    """All is well."""
    return Finding(area=area, name=name, status=Status.OK, found=found)


def warning(area: str, name: str, found: str, *, expected: str, mend: str) -> Finding:
    """It works, but."""
    return Finding(area=area, name=name, status=Status.WARNING, found=found, expected=expected, mend=mend)


def problem(area: str, name: str, found: str, *, expected: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(area=area, name=name, status=Status.PROBLEM, found=found, expected=expected, mend=mend)


def unknown(area: str, name: str, found: str, *, mend: str = "") -> Finding:
    """Nobody can tell, from here."""
    return Finding(area=area, name=name, status=Status.UNKNOWN, found=found, mend=mend)


def worst(findings: Iterable[Finding]) -> Status:
    """The status of all together: a problem if there is one, else a warning, else what is unknown."""
    found = {each.status for each in findings}
    return next((each for each in (Status.PROBLEM, Status.WARNING, Status.UNKNOWN) if each in found), Status.OK)


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


HIDDEN = "***"

_LEAST_LENGTH = 6
"""A shorter secret is a part of too many words to be blackened wherever it stands."""

_IN_URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/@'\"]+(?P<after>@)", re.IGNORECASE)
_NAMED = re.compile(
    r"(?P<before>\b[\w-]*(?:password|passwd|token|secret|secret_key|access_key|authorization)"
    r"['\"]?\s*[=:]\s*(?:bearer\s+)?['\"]?)[^\s'\",;&]+",
    re.IGNORECASE,
)


class Secrecy:
    """Knows secrets and blackens them."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        self._secrets: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str | None) -> None:
        """Hide this from now on."""
        if secret is not None and len(secret) >= _LEAST_LENGTH:
            self._secrets.add(secret)

    def learn_url(self, url: str | None) -> None:
        """Hide the password of a URL."""
        account = (url or "").partition("://")[2].partition("/")[0].rpartition("@")[0]
        password = account.partition(":")[2]
        for spelling in (password, unquote(password)):
            self.learn(spelling)

    def learn_all(self, values: Mapping[str, Any]) -> None:
        """Hide every text in these options, however deep, but those that say where or how."""
        for key, value in values.items():
            if isinstance(value, Mapping):
                self.learn_all(value)
            elif isinstance(value, str) and _may_be_secret(key):
                self.learn(value)

    def clean(self, text: str) -> str:
        """The text without secrets."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = _IN_URL.sub(rf"\g<before>{HIDDEN}\g<after>", text)
        return _NAMED.sub(rf"\g<before>{HIDDEN}", text)

    def cleaned(self, finding: Finding) -> Finding:
        """The finding without secrets."""
        return replace(
            finding,
            found=self.clean(finding.found),
            expected=self.clean(finding.expected),
            mend=self.clean(finding.mend),
        )


def _may_be_secret(key: str) -> bool:
    return not any(word in key.lower() for word in ("url", "region", "host", "version", "timeout", "profile"))

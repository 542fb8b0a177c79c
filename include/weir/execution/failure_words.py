"""Says in a person's words what has happened to a task, for its note.

Invariant: what happened, and what follows, is within the characters of a note that Airflow's lists show. How it was
decided comes after that, and labels last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from weir.execution.failure_class import FailureClass
from weir.execution.labels import BUILT_IN, TYPE, shown
from weir.secrecy import without_secrets
from weir.wording import first_few, shortened

SAYS: Final = "Weir: "
"""How the notes begin that a task leaves at its own task instance. Those of clears do not."""

CLEARS: Final = "weir: "
"""How the notes of clears begin: why the task runs again."""

VISIBLE: Final = 100
"""The characters of a note that Airflow's lists show."""

NOTE_LENGTH: Final = 1000
"""Airflow's limit of a note, in characters."""

_GAP: Final = "\n\n"
"""Between Weir's words, which have no empty line, and the note of a person's below them."""

_NOT_TRIED: Final = "not tried again"
_AFTER_OTHERS: Final = "it runs again after what is missing"
_TRIED: Final = "tried again"
_FAILED: Final = re.compile(rf"{SAYS}(?P<what>.+?); (?:{_NOT_TRIED}|{_AFTER_OTHERS}|{_TRIED}(?: in \d+ s)?)\.(?: |$)")
"""The note of a failed try, as `note_of_failure` composes it."""

_STORY: Final = "`weir why` shows all tries"

HEALED: Final = f"{SAYS}healed: "
_AGAIN: Final = f"{SAYS}it ran again"
_WAITED: Final = f"{SAYS}it has waited for others"
WARNED: Final = f"{SAYS}committed, with a warning: "
_OVER: Final = (HEALED, _AGAIN, _WAITED, WARNED)
"""How the notes begin that say what is over, and stay right while nothing else happens."""

BY_PERSON: Final = f"{SAYS}it runs again after a clear by hand"
"""The note of a try that a person has asked for, in place of what an earlier one has noted."""

_OWN_KIND: Final = re.compile(
    r"(?:Misconfigured|Retryable|ResultUnavailable|Corrupt|Conflict|EngineLost|InputUnreadable|QualityFailed|Internal|"
    r"DiskFull|StoreFull|QuotaExceeded|LedgerBehind|Target\w+|CatalogAway|SuppressRestarts): "
)
"""The classes of Weir's own errors, whose messages say what happened; those of others say it with their class."""

_UNAVAILABLE: Final = re.compile(
    r"(?P<count>\d+) result partition\(s\) unavailable: (?P<first>\S+).*?: "
    r"(?P<fault>missing, it was released|[\w ]+(?=,))"
)

_CLEARED_FOR_LOSS: Final = re.compile(
    r"(?P<first>\S+) \([^()]*\) of \S+: (?P<fault>missing, it was released|[\w ]+(?=,))"
)
_CLEARED_FOR_FAILURE: Final = re.compile(r"(?P<first>\S+\[\d+\]) has failed for good")
_CLEARED_FOR_FILES: Final = re.compile(
    r"the published files of (?P<first>\S+) (?:are|were) (?P<fault>[\w ]+?)(?: and |$)"
)

_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.<>]+(?::[^\n]*)?)")
_ABORTED: Final = "Job aborted due to stage failure"
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")

_AT_ITS_REGION: Final = re.compile(r"^region \S+: ")
_OF_A_QUERY: Final = re.compile(
    r"(?s)^(?:stage \S+: )?(?P<place>[^\s:]+, line \d+): .*?\n\[[A-Z][A-Z0-9_.]+\] (?P<text>.+)"
)
_TOO_LONG: Final = (
    (re.compile(r"connection to server at \S+(?: \([^)]*\))?, port \d+ failed: (?:FATAL: +)?"), ""),
    (re.compile(r"the rows of \S+ violate (\S+): (\w+)\(([^)]*)\): (\d+ of \d+ rows)"), r"\4 violate \1: \2(\3)"),
    (re.compile("A column, variable, or function parameter with name"), "column"),
)
"""What drivers say before the cause, and what stands for it."""

_FAULTS: Final = {
    "missing": "had been deleted",
    "missing, it was released": "had been released",
    "damaged": "had been damaged",
    "never committed": "had never been computed",
    "stale": "had been made from inputs that have changed",
    "distrusted": "had suspicious rows",
}
"""What had become of an input, by the value of its Fault."""

_LOST: Final = "Spark was lost: "

_NAMED: Final = 3
"""The most results that a sentence names."""

_PAST: Final[Mapping[str, str]] = {
    FailureClass.KILLED.value: "its process was killed",
    FailureClass.CONFLICT.value: "its inputs changed while it computed",
    FailureClass.ENGINE.value: "Spark was lost",
}
"""What is said of a failure that is over, by the value of its FailureClass; of others, their message is told."""


def message_of(error: BaseException) -> str:
    """Describe an error, with its notes, for ledger and logs; the message of a user's function may have a secret."""
    return without_secrets(". ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))


def own_part(note: str) -> str:
    """Return Weir's words of a note; empty where a person has written all of it."""
    return note.partition(_GAP)[0] if note.startswith((SAYS, CLEARS)) else ""


def noted(own: str, seen: str) -> str:
    """Return the note that has `own` in place of Weir's words in `seen`; what a person has noted stays below it.

    Where there is no place for both, that of the person's stays alone.
    """
    person = seen.removeprefix(own_part(seen)).strip("\n") if own_part(seen) else seen
    own = re.sub(r"\n\s*\n", "\n", own)
    if not person or not own:
        return (own or person)[:NOTE_LENGTH]
    room = NOTE_LENGTH - len(person) - len(_GAP)
    return person if room < VISIBLE else f"{own[:room]}{_GAP}{person}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """A failed try before one that has succeeded; `again` is how many tasks its recovery has run again."""

    failure: str
    error: str
    again: int = 0


@dataclass(frozen=True, slots=True)
class PastTries:
    """The failed tries of a task since it last committed, and whether a person has cleared it since then."""

    failures: tuple[PastFailure, ...] = ()
    is_by_person: bool = False


def note_of_failure(
    message: str, reason: str, labels: Mapping[str, str], *, delay: float | None, kind: str = ""
) -> str:
    """Compose the note of a failed try: what happened, what follows, how that was decided, and the labels.

    `message` is `message_of` the error, `reason` the decision's, `delay` the seconds to the next try (None: there is
    none), `kind` the value of the FailureClass, if it is known.
    """
    happened = happened_in(kind, message)
    if delay is None:
        follows = _NOT_TRIED
    elif kind == FailureClass.BACKTRACK.value:
        follows = _AFTER_OTHERS
    else:
        follows = _TRIED if delay < 1 else f"{_TRIED} in {delay:.0f} s"
    what = shortened(happened, VISIBLE - len(f"{SAYS}; {follows}."))
    told = what == happened and message.endswith(what.removeprefix(_LOST))
    decided = reason.replace(message, "").strip().rstrip(":").strip() if told else reason
    named = ", ".join(each for each in (kind or labels.get(TYPE, ""), _own(labels)) if each)
    head, tail = f"{SAYS}{what}; {follows}.", f" ({named})" if named else ""
    return f"{head}{shortened(f' {decided}', NOTE_LENGTH - len(head + tail)) if decided else ''}{tail}"


def succeeded(own: str, past: PastTries) -> str:
    """Compose the note of a try that has succeeded: what had gone wrong before it, or why it ran again.

    `own` are Weir's words of the note that stands there. Empty where nothing is to be said.
    """
    if past.failures:
        return healed(past)
    if own.startswith(CLEARS):
        return _ran_after_clear(own)
    if failed := _FAILED.match(own):  # the ledger has no attempt of it: it did not answer, or the try had not begun
        return f"{HEALED}{failed['what']}. {_STORY}"
    if own.startswith(_OVER) and not past.is_by_person:
        return own
    return f"{_AGAIN} after a clear by hand" if own and past.is_by_person else ""


def healed(past: PastTries) -> str:
    """Compose the note of a try that has succeeded after failures: what had happened, and what it took."""
    counted: dict[str, int] = {}
    for each in past.failures:
        text = _past(each)
        counted[text] = counted.get(text, 0) + 1
    texts = "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in counted.items())
    return f"{HEALED}{texts}{', and cleared by hand' if past.is_by_person else ''}. {_STORY}"


def waited(at: datetime) -> str:
    """Compose the note of a task that has waited, and does not any more."""
    return f"{_WAITED} until {at:%Y-%m-%d %H:%M:%S} UTC"


def _ran_after_clear(note: str) -> str:
    """Compose the note of a task that Weir has cleared with `note`, and that has succeeded since."""
    if lost := _CLEARED_FOR_LOSS.search(note):
        return f"{HEALED}{lost['first']} {_fault(lost)}, and was computed again. {_STORY}"
    if failed := _CLEARED_FOR_FAILURE.search(note):
        return f"{HEALED}{failed['first']} had failed. {_STORY}"
    if files := _CLEARED_FOR_FILES.search(note):
        return f"{HEALED}the published files of {files['first']} were {files['fault']}. {_STORY}"
    return f"{_AGAIN}: {note.removeprefix(CLEARS)}"


def cause_in_short(cause: str) -> str:
    """Return a failover's cause as a part of a sentence: results and what had become of them, or what a task raised."""
    by_fault: dict[str, list[str]] = {}
    for lost in _CLEARED_FOR_LOSS.finditer(cause):
        by_fault.setdefault(_fault(lost), []).append(lost["first"])
    losses = (f"{first_few([*dict.fromkeys(names)], _NAMED)} {fault}" for fault, names in by_fault.items())
    return "; ".join(losses) or shortened(happened_in("", cause), 2 * VISIBLE)


def happened_in(kind: str, message: str) -> str:
    """Return in one line what has happened, its cause as near to the beginning as it goes.

    `message` is `message_of` the error, `kind` the value of the FailureClass; empty if it is not known.
    """
    if found := _UNAVAILABLE.search(message):
        return _inputs(found)
    inner = _innermost(message)
    own = _OWN_KIND.match(inner)
    text = _cause_first(inner if own is None else inner[own.end() :])
    if kind == FailureClass.ENGINE.value and "lost" not in text[:VISIBLE].lower():
        return f"{_LOST}{text}"
    return text or "it failed without a message"


def _cause_first(text: str) -> str:
    """Leave out the region, which the note stands at, and the text of a query before what is wrong with it."""
    text = _AT_ITS_REGION.sub("", text)
    if query := _OF_A_QUERY.match(text):
        text = f"{query['place']}: {query['text']}"
    for what, instead in _TOO_LONG:
        text = what.sub(instead, text)
    return " ".join(text.split())


def _innermost(message: str) -> str:
    """Return what a Python worker or an executor of Spark has raised, without what Spark says around it."""
    if raised := _RAISED.findall(message):
        return str(raised[-1])
    if _ABORTED in message and (conditions := _CONDITION.findall(message)):
        return str(conditions[-1])
    return message


def _past(failed: PastFailure) -> str:
    found = _UNAVAILABLE.search(failed.error)
    if found:
        text = _inputs(found)
    elif failed.failure in _PAST:
        text = _PAST[failed.failure]
    else:
        text = shortened(happened_in(failed.failure, failed.error), VISIBLE)
    if not failed.again:
        return text
    return f"{text}, {'a task' if failed.again == 1 else f'{failed.again} tasks'} ran again"


def _inputs(found: re.Match[str]) -> str:
    count, fault = int(found["count"]), _fault(found)
    return f"the input {found['first']} {fault}" if count == 1 else f"{count} inputs {fault}"


def _fault(found: re.Match[str]) -> str:
    return _FAULTS.get(found["fault"], f"were {found['fault']}")


def _own(labels: Mapping[str, str]) -> str:
    return shown({key: value for key, value in labels.items() if key not in BUILT_IN})

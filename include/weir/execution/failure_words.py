"""Says in a person's words what has happened to a task, for its note.

Invariant: what happened, and what follows, is within the characters of a note that Airflow's lists show. How it was
decided comes after that, and labels last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weir.execution.failure_class import FailureClass
from weir.execution.labels import BUILT_IN, TYPE, shown
from weir.secrecy import without_secrets
from weir.wording import shortened

SAYS: Final = "Weir: "
"""How the notes begin that a task leaves at its own task instance. Those of clears do not."""

CLEARS: Final = "weir: "
"""How the notes of clears begin: why the task runs again."""

VISIBLE: Final = 100
"""The characters of a note that Airflow's lists show."""

NOTE_LENGTH: Final = 1000
"""Airflow's limit of a note, in characters."""

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

_PAST: Final[Mapping[str, str]] = {
    FailureClass.KILLED.value: "its process was killed",
    FailureClass.CONFLICT.value: "its inputs changed while it computed",
    FailureClass.ENGINE.value: "Spark was lost",
}
"""What is said of a failure that is over, by the value of its FailureClass; of others, their message is told."""


def message_of(error: BaseException) -> str:
    """Describe an error, with its notes, for ledger and logs; the message of a user's function may have a secret."""
    return without_secrets(". ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """A failed try before one that has succeeded; `again` is how many tasks its recovery has run again."""

    failure: str
    error: str
    again: int = 0


def note_of_failure(
    message: str, reason: str, labels: Mapping[str, str], *, delay: float | None, kind: str = ""
) -> str:
    """Compose the note of a failed try: what happened, what follows, how that was decided, and the labels.

    `message` is `message_of` the error, `reason` the decision's, `delay` the seconds to the next try (None: there is
    none), `kind` the value of the FailureClass, if it is known.
    """
    happened = happened_in(kind, message)
    if delay is None:
        follows = "not tried again"
    elif kind == FailureClass.BACKTRACK.value:
        follows = "it runs again after what is missing"
    else:
        follows = "tried again" if delay < 1 else f"tried again in {delay:.0f} s"
    what = shortened(happened, VISIBLE - len(f"{SAYS}; {follows}."))
    told = what == happened and message.endswith(what.removeprefix(_LOST))
    decided = reason.replace(message, "").strip().rstrip(":").strip() if told else reason
    named = ", ".join(each for each in (kind or labels.get(TYPE, ""), _own(labels)) if each)
    head, tail = f"{SAYS}{what}; {follows}.", f" ({named})" if named else ""
    return f"{head}{shortened(f' {decided}', NOTE_LENGTH - len(head + tail)) if decided else ''}{tail}"


def healed(failures: Sequence[PastFailure], try_number: int) -> str:
    """Compose the note of a try that has succeeded after failures: what had happened, and what it took."""
    if not failures:
        return f"{SAYS}try {try_number} has succeeded{'; `weir why` shows the earlier ones' if try_number > 1 else ''}"
    told: dict[str, int] = {}
    for each in failures:
        text = _past(each)
        told[text] = told.get(text, 0) + 1
    texts = (text if count == 1 else f"{text} ({count} times)" for text, count in told.items())
    return f"{SAYS}healed: {'; '.join(texts)}. `weir why` shows all tries"


def healed_by_clear(note: str) -> str:
    """Compose the note of a task that was cleared with `note`, and has succeeded; empty where nothing had gone wrong.

    A task that runs again since its input has changed has nothing to heal: the note of its clear says why it ran.
    """
    if lost := _CLEARED_FOR_LOSS.search(note):
        return f"{SAYS}healed: {lost['first']} {_fault(lost)}, and was computed again. `weir why` shows all tries"
    if failed := _CLEARED_FOR_FAILURE.search(note):
        return f"{SAYS}healed: {failed['first']} had failed. `weir why` shows all tries"
    if files := _CLEARED_FOR_FILES.search(note):
        return (
            f"{SAYS}healed: the published files of {files['first']} were {files['fault']}. `weir why` shows all tries"
        )
    return ""


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

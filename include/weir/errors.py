"""The errors that Weir raises: the kind says what the caller must do.

Invariants: a message names the object, what was expected, what was found and the next command or setting. The text of
each kind of message stands in messages.toml, where all are read as a whole; code and tests know its kind and names.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Self, TypeGuard


class Message(str):
    """The text of a kind with the values of its names: a str, wherever a text is wanted."""

    __slots__ = ("kind", "names")

    kind: str
    """Its section and name in messages.toml, as in "store.marker_missing"."""
    names: Mapping[str, object]

    def __new__(cls, kind: str, /, **names: object) -> Self:
        """Make the message of a kind. A KeyError says that there is no such kind, or that its text has another name.

        The parts of a list, set or dictionary are joined by what follows the colon of `{name:, }`.
        """
        shown = {name: _Listed(value) if _has_parts(value) else value for name, value in names.items()}
        return cls._of(texts()[kind].format(**shown), kind, names)

    def with_text(self, text: str) -> Self:
        """Return it with another text, such as one that has its place, too."""
        return self._of(text, self.kind, self.names)

    @classmethod
    def _of(cls, text: str, kind: str, names: Mapping[str, object]) -> Self:
        message = super().__new__(cls, text)
        message.kind, message.names = kind, names
        return message

    def __reduce__(self) -> tuple[object, ...]:
        """Let it be copied, and travel to another process, as its text: the values of its names may not."""
        return str, (str(self),)


class _Listed:
    __slots__ = ("value",)

    def __init__(self, value: Iterable[object]) -> None:
        self.value = value

    def __format__(self, between: str) -> str:
        return between.join(map(str, self.value)) if between else str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _has_parts(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, str)


@cache
def texts() -> Mapping[str, str]:
    """Return the text of each kind of message."""
    import tomllib  # noqa: PLC0415  a DAG file has none to say
    from importlib.resources import files  # noqa: PLC0415

    rooms = tomllib.loads(files("weir").joinpath("messages.toml").read_text("utf-8"))
    return {f"{room}.{name}": text for room, kinds in rooms.items() for name, text in kinds.items()}


def at(place: str, problem: str) -> str:
    """Return a problem with its place before it; a message stays of its kind."""
    text = f"{place}: {problem}"
    return problem.with_text(text) if isinstance(problem, Message) else text


def said_by(error: BaseException) -> str:
    """Return the text of an error: its message, where it has one of a kind."""
    return next((argument for argument in error.args if isinstance(argument, Message)), str(error))


class WeirError(Exception):
    """The root of all errors of Weir."""

    @classmethod
    def of(cls, kind: str, /, **names: object) -> Self:
        """Make the error whose message is of a kind, as `Message` does. Raises KeyError likewise."""
        return cls(Message(kind, **names))


class Retryable(WeirError):
    """Try the same operation again later; nothing is known to be wrong with the data, and nothing is marked lost.

    The store, the ledger or the Spark server did not answer, or answered with an internal error.
    """


class LedgerBehind(Retryable):
    """The ledger has lost commits of a dataflow: nothing of it is committed or deleted until the ledger caught up.

    A replica without the last commits was promoted, or a backup was restored. The next task that begins, upkeep or
    `weir ledger rebuild` has it catch up with the store.
    """

    @property
    def dataflow(self) -> str:
        """The dataflow whose commits are lost: one that reads another's data sets may find it out of that one."""
        return str(self.args[0].names["dataflow"])


class DiskFull(Retryable):
    """A disk is full: free space on it. The caller removes what it has partly written; the task retries by itself."""


class StoreFull(DiskFull):
    """The store's disk is full: the attempt needs more space than there was. Free space there; the task retries."""


class QuotaExceeded(DiskFull):
    """A dataflow has reached its quota: shorten its retention, or raise the quota. The task retries by itself."""


class EngineLost(Retryable):
    """A Spark Connect server, a cluster or a driver was lost or does not answer: try again on a new one."""


class InputUnreadable(Retryable):
    """The engine could not read an input, whose partition and attempt the message names: probe the store for it."""


def first_line(error: BaseException) -> str:
    """Return the first line of a message: what follows in a database's shows rows."""
    return str(error).strip().partition("\n")[0]


def reached(error: BaseException, behind: Callable[[BaseException], Iterable[Any]]) -> Iterator[BaseException]:
    """Yield an error, and once each the errors among what is `behind` each of them, such as its cause."""
    seen: set[int] = set()
    left: list[Any] = [error]
    while left:
        found = left.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            left += behind(found)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    return reached(error, lambda found: (found.__cause__,))


def is_disk_full(error: BaseException) -> bool:
    """Report whether a file system refused a write because it, or the user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


_OF_PEOPLE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENODEV),
        *(errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP),
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    }
)


def is_for_person(error: OSError) -> bool:
    """Report whether a file system has refused something that it refuses again: a right, a name, what is in the way.

    An object store that says of an answer that it `is_final` is taken at its word.
    """
    return error.errno in _OF_PEOPLE or getattr(error, "is_final", False) is True


class Conflict(WeirError):
    """The inputs or the run have changed since the attempt began: begin a new one. Costs no restart budget."""


class Fenced(WeirError):
    """A newer attempt of the same region is registered: stop, and write nothing more."""


class Misconfigured(WeirError):
    """A person has to change something (code, settings, a folder's permissions) before a retry can help."""


class OtherBuild(Misconfigured):
    """The tables of the ledger, or the files in the store, are those of another build of Weir (docs/upgrading.md)."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}: another build of Weir has made it. Install that build; or copy what is published by `weir "
            "export FOLDER`, and begin with an empty ledger and an empty store"
        )


class SuppressRestarts(WeirError):
    """A stage, or a user function on an executor, raises this to fail the region without another try.

    As Flink's SuppressRestartsException. Where executors have no Weir, any exception class of this name does so.
    """


class QualityFailed(WeirError):
    """The rows that an attempt has written violate an expectation and are in quarantine.

    `is_final` means that no other try is made.
    """

    def __init__(self, message: str, *, is_final: bool) -> None:
        self.is_final = is_final
        super().__init__(message)


class Internal(WeirError):
    """A bug in Weir: an invariant does not hold. Report it with the message."""


class Fault(Enum):
    """The kinds of loss of a result partition. The values are stored in the ledger."""

    MISSING = "missing"
    """A file or the manifest does not exist."""
    DAMAGED = "damaged"
    """All files exist, but a size or a digest is not the recorded one."""
    NEVER_COMMITTED = "never committed"
    """The producer has succeeded in Airflow (a person marked it, for example) but has committed nothing."""
    STALE = "stale"
    """The producer's current result was computed from inputs that have changed since."""
    SUSPECTED = "distrusted"
    """The files are whole, but the rows, or rows computed from them, violate an expectation that blames them."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A result partition that cannot be read, and the reason.

    `attempt` is the attempt that committed it; empty where nothing was committed.
    """

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] ({self.layout}) of {self.run}: {self.fault.value}, {self.detail}"


class ResultUnavailable(WeirError):
    """Inputs are lost: their producers have to run again. `losses` are all losses that one probe has found."""

    def __init__(self, losses: tuple[Loss, ...]) -> None:
        self.losses = losses
        shown = "; ".join(str(loss) for loss in losses[:10])
        more = f" (and {len(losses) - 10} more)" if len(losses) > 10 else ""
        super().__init__(f"{len(losses)} result partition(s) unavailable: {shown}{more}")


class Corrupt(ResultUnavailable):
    """Bytes that were read do not match their recorded digests: their producers have to run again."""

"""What kind of failure an error is. Invariant: what no retry can help is not retried.

Errors of Spark and of Python's import are told by their class names along the chain of causes, as Flink tells
non-recoverable errors by an annotation (ThrowableClassifier); the core imports neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from weir.errors import (
    Conflict,
    EngineLost,
    Fenced,
    Misconfigured,
    ResultUnavailable,
    Retryable,
    SuppressRestarts,
    is_out_of_room,
)

HOPELESS = frozenset(
    {"AnalysisException", "ParseException", "ImportError", "ModuleNotFoundError", "SyntaxError", "SuppressRestarts"}
)
"""Class names of errors that the same code meets again, whenever it runs."""


class FailureClass(Enum):
    """What a failure counts against: each has a budget of its own."""

    APPLICATION = "application"
    KILLED = "killed"
    BACKTRACK = "backtrack"
    CONFLICT = "conflict"
    ENGINE = "engine"
    """A Spark Connect server or a cluster was lost."""
    ENVIRONMENT = "environment"
    """The ledger, the store or Airflow does not answer, or a disk is full."""
    FATAL = "fatal"
    FENCED = "fenced"


_KINDS: tuple[tuple[type[BaseException], FailureClass], ...] = (
    (Fenced, FailureClass.FENCED),
    (ResultUnavailable, FailureClass.BACKTRACK),
    (Conflict, FailureClass.CONFLICT),
    (EngineLost, FailureClass.ENGINE),
    (Retryable, FailureClass.ENVIRONMENT),
    (Misconfigured, FailureClass.FATAL),
    (SuppressRestarts, FailureClass.FATAL),
)


def classify(error: BaseException) -> FailureClass:
    """The class of `error`; what Weir does not know is the application's own failure."""
    for kind, failure in _KINDS:
        if isinstance(error, kind):
            return failure
    if any(is_out_of_room(cause) for cause in _chain(error)):
        return FailureClass.ENVIRONMENT  # of whatever disk: a stage may write files of its own
    names = {base.__name__ for cause in _chain(error) for base in type(cause).__mro__}
    return FailureClass.FATAL if names & HOPELESS else FailureClass.APPLICATION


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__

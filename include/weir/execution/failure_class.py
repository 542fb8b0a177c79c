"""What kind of failure an error is. Invariant: what no retry can help is not retried.

Errors of Spark and of Python's import are told by their class names along the chain of causes, as Flink tells
non-recoverable errors by an annotation (ThrowableClassifier); the core imports neither. What a Python worker of Spark
has raised is known by the text of its traceback only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from weir.errors import (
    Conflict,
    EngineLost,
    Fenced,
    Misconfigured,
    QualityFailed,
    ResultUnavailable,
    Retryable,
    StoreFull,
    SuppressRestarts,
    is_disk_full,
)

HOPELESS = frozenset(
    {"AnalysisException", "ParseException", "ImportError", "ModuleNotFoundError", "SyntaxError", "SuppressRestarts"}
)
"""Class names of errors that the same code meets again, whenever it runs."""

READ_FAILED = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
"""Spark's conditions of analysis errors that are about data, which may come: no fault of the code."""

_OF_SPARK = frozenset({"PySparkException", "PythonException", "Py4JJavaError"})
"""Names among an error's bases: the last two are alone where it comes from another process, or from the JVM as is."""

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<name>[\w.<>]+)(?::|$)", re.MULTILINE)
_HANDLED = "During handling of the above exception, another exception occurred:"


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


class FailureCause(Enum):
    """A cause of a failure on which later decisions depend. The ledger keeps it beside the failure's class."""

    REFUSED = "refused"
    """Rows that the attempt has written failed a check of quality."""
    STORE_FULL = "store full"
    """The store's disk filled up while the attempt wrote."""


_CAUSES: tuple[tuple[type[BaseException], FailureCause], ...] = (
    (QualityFailed, FailureCause.REFUSED),
    (StoreFull, FailureCause.STORE_FULL),
)

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
    """The class of `error`; what Weir does not know is the application's own failure.

    An error that was classified in another process has the class as its attribute `failure_class`.
    """
    told = getattr(error, "failure_class", None)
    if isinstance(told, FailureClass):
        return told
    if isinstance(error, QualityFailed):
        return FailureClass.FATAL if error.is_final else FailureClass.APPLICATION
    for kind, failure in _KINDS:
        if isinstance(error, kind):
            return failure
    if any(is_disk_full(cause) for cause in _chain(error)):
        return FailureClass.ENVIRONMENT  # of whatever disk: a stage may write files of its own
    return FailureClass.APPLICATION if hopeless_cause(error) is None else FailureClass.FATAL


def cause_of(error: BaseException) -> FailureCause | None:
    """Return the cause that later decisions depend on; None for all other errors."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), None)


def hopeless_cause(error: BaseException) -> str | None:
    """The class name, of `error` or a cause of it, for which no other try can help; None if there is none."""
    names = (name for cause in _chain(error) for name in _names(cause))
    return next((name for name in names if name in HOPELESS), None)


def raised_by_worker(error: BaseException) -> str | None:
    """The class name of what a Python worker of Spark has raised, if that is what `error` is about."""
    found = _of_worker(error)
    return found[-1] if found else None


def _names(error: BaseException) -> Iterator[str]:
    own = [base.__name__ for base in type(error).__mro__]
    if _condition(error) not in READ_FAILED:
        yield from own
    yield from _of_worker(error)


def _of_worker(error: BaseException) -> list[str]:
    """The classes of an exception in a Python worker and of its causes, the exception last."""
    if not any(base.__name__ in _OF_SPARK for base in type(error).__mro__):
        return []
    own = str(error).rpartition(_HANDLED)[2]
    return [match["name"].rpartition(".")[2] for match in _RAISED.finditer(own)]


def _condition(error: BaseException) -> object:
    ask = getattr(error, "getCondition", None)
    return ask() if callable(ask) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__

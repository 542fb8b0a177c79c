"""Classifies errors. Invariant: a failure that no retry can help is not retried.

Errors of Spark and of Python's import are recognised by their class names along the chain of causes, as Flink
recognises non-recoverable errors by an annotation (ThrowableClassifier), so that nothing of Spark is imported here.
The errors of a Python worker of Spark are known by the text of its traceback only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType

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
    causes_of,
    is_disk_full,
)

HOPELESS = frozenset(
    {
        *("AnalysisException", "ParseException", "PySparkAttributeError"),
        *("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "SuppressRestarts"),
    }
)
"""Class names of errors that the same code raises again in each run.

An AttributeError is one only of a module, which has no such name: the attribute of a value depends on the data, and so
does UnboundLocalError, Python's NameError of a variable that no row has set.
"""

READ_FAILED = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
"""Spark's conditions of analysis errors about missing data, which may arrive later: the code is not at fault."""

_OF_SPARK = frozenset({"PySparkException", "PythonException", "Py4JJavaError"})
"""Names of base classes of Spark's errors; errors of a worker process or of the JVM may have the last two only."""

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<name>[\w.<>]+)(?::|$)", re.MULTILINE)
_HANDLED = "During handling of the above exception, another exception occurred:"


class FailureClass(Enum):
    """The class of a failure, which decides the budget or strategy that it counts against."""

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
    """A cause of a failure on which later decisions depend; the ledger records it with the failure's class."""

    REFUSED = "refused"
    """Rows that the attempt has written failed a quality check."""
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
    """Return the class of `error`; an unknown error is a failure of the application.

    An error that was classified in another process has the class as its attribute `failure_class`.
    """
    known = getattr(error, "failure_class", None)
    if isinstance(known, FailureClass):
        return known
    if isinstance(error, QualityFailed):
        return FailureClass.FATAL if error.is_final else FailureClass.APPLICATION
    for kind, failure in _KINDS:
        if isinstance(error, kind):
            return failure
    if any(is_disk_full(cause) for cause in causes_of(error)):
        return FailureClass.ENVIRONMENT  # of any disk: a stage may write files of its own
    return FailureClass.APPLICATION if hopeless_cause(error) is None else FailureClass.FATAL


def cause_of(error: BaseException) -> FailureCause | None:
    """Return the cause that later decisions depend on; None for all other errors."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), None)


def hopeless_cause(error: BaseException) -> str | None:
    """Return the class name, of `error` or a cause of it, that no other try can help; None if there is none."""
    for cause in causes_of(error):
        if isinstance(cause, AttributeError) and isinstance(cause.obj, ModuleType):
            return type(cause).__name__
        found = next((name for name in _names(cause) if name in HOPELESS), None)
        if found is not None:
            return found
    return None


def raised_by_worker(error: BaseException) -> str | None:
    """Return the class name of the error of a Python worker of Spark that `error` wraps; None if it wraps none."""
    found = _of_worker(error)
    return found[-1] if found else None


def _names(error: BaseException) -> Iterator[str]:
    own = [base.__name__ for base in type(error).__mro__]
    if _condition(error) not in READ_FAILED and not isinstance(error, UnboundLocalError):
        yield from own
    yield from _of_worker(error)


def _of_worker(error: BaseException) -> list[str]:
    """Return the class names of an exception in a Python worker and of its causes, the exception last."""
    if not any(base.__name__ in _OF_SPARK for base in type(error).__mro__):
        return []
    own = str(error).rpartition(_HANDLED)[2]
    return [match["name"].rpartition(".")[2] for match in _RAISED.finditer(own)]


def _condition(error: BaseException) -> object:
    ask = getattr(error, "getCondition", None)
    return ask() if callable(ask) else None

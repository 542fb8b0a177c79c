"""How a Spark job that runs in a process of its own tells its task why it failed.

Invariant: the task raises what the job would have raised in its own process, as far as the restart strategy can tell.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weir.errors import (
    Conflict,
    DiskFull,
    EngineLost,
    Fenced,
    InputUnreadable,
    Internal,
    Misconfigured,
    Retryable,
    StoreFull,
)
from weir.execution.failure_class import FailureClass, classify
from weir.topology.ids import AttemptId

_MESSAGE_CHARACTERS = 4_000
_TRACEBACK_LINES = 25
_KINDS = (Fenced, Conflict, Retryable, DiskFull, StoreFull, EngineLost, InputUnreadable, Misconfigured, Internal)
_OWN: Mapping[str, type[Exception]] = MappingProxyType({kind.__name__: kind for kind in _KINDS})


@dataclass(frozen=True, slots=True)
class RegionFailure:
    """What became of a job that has no report: the value of a FailureClass, and the error's class, text and origin.

    `traceback` holds its last lines.
    """

    attempt: AttemptId
    kind: str
    error: str
    message: str
    traceback: str


class JobFailed(Exception):
    """The stages' own failure, in another process; its subclasses are named as the original errors."""

    failure_class = FailureClass.APPLICATION
    """As it was told where the error itself was at hand."""


def failure_of(error: BaseException, attempt: AttemptId) -> RegionFailure:
    """Describe an error for another process."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return RegionFailure(
        attempt=attempt,
        kind=classify(error).value,
        error=type(error).__name__,
        message=_shortened(str(error)),
        traceback=_shortened("\n".join(lines[-_TRACEBACK_LINES:])),
    )


def error_of(failure: RegionFailure) -> Exception:
    """Make the error that the task raises in the place of the job's own."""
    if failure.error in _OWN:
        return _OWN[failure.error](failure.message)
    told = f"{failure.message}\nIts traceback in the Spark driver ends:\n{failure.traceback}"
    if failure.kind == FailureClass.ENVIRONMENT.value:
        return Retryable(f"{failure.error}: {failure.message}")
    base: type[Exception] = Misconfigured if failure.kind == FailureClass.FATAL.value else JobFailed
    named: type[Exception] = type(failure.error, (base,), {"__doc__": JobFailed.__doc__})
    return named(told)


def _shortened(text: str) -> str:
    """The head and the end: Java's traces are long, and say what happened in their first line and at the last cause."""
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    half = _MESSAGE_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"

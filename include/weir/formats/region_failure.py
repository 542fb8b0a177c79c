"""The failure of a Spark job in a process of its own, as the job reports it to its task.

Invariant: for the restart strategy, the task raises the same error as if the job had run in the task's process.
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
from weir.execution.tracebacks import with_users_frames
from weir.secrecy import without_secrets
from weir.topology.ids import AttemptId

_MESSAGE_CHARACTERS = 4_000
_TRACEBACK_LINES = 25
_KINDS = (Fenced, Conflict, Retryable, DiskFull, StoreFull, EngineLost, InputUnreadable, Misconfigured, Internal)
_OWN: Mapping[str, type[Exception]] = MappingProxyType({kind.__name__: kind for kind in _KINDS})


@dataclass(frozen=True, slots=True)
class RegionFailure:
    """The failure of a job: the value of a FailureClass, and the error's class, message and origin.

    `traceback` holds its last lines.
    """

    attempt: AttemptId
    kind: str
    error: str
    message: str
    traceback: str


class JobFailed(Exception):
    """A failure of user code in another process; its subclasses have the names of the original errors."""

    failure_class = FailureClass.APPLICATION
    """The class that the driver found, where the error itself was available."""


def failure_of(error: BaseException, attempt: AttemptId) -> RegionFailure:
    """Describe an error for another process."""
    lines = "".join(traceback.format_exception(with_users_frames(error))).splitlines()
    return RegionFailure(
        attempt=attempt,
        kind=classify(error).value,
        error=type(error).__name__,
        message=_shortened(without_secrets(". ".join([str(error), *getattr(error, "__notes__", ())]))),
        traceback=_shortened(without_secrets("\n".join(lines[-_TRACEBACK_LINES:]))),
    )


def error_of(failure: RegionFailure) -> Exception:
    """Return the error that the task raises for the job's failure."""
    if failure.error in _OWN:
        return _OWN[failure.error](failure.message)
    message = f"{failure.message}\nIts traceback in the Spark driver ends:\n{failure.traceback}"
    if failure.kind == FailureClass.ENVIRONMENT.value:
        return Retryable.of("formats.job_failed", error=failure.error, message=failure.message)
    base: type[Exception] = Misconfigured if failure.kind == FailureClass.FATAL.value else JobFailed
    named: type[Exception] = type(failure.error, (base,), {"__doc__": JobFailed.__doc__})
    return named(message)


def _shortened(text: str) -> str:
    """Keep the head and the end of a text: Java's long traces have the error in the first line and the cause last."""
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    half = _MESSAGE_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"

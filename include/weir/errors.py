"""Every error Weir raises; its kind says what the caller must do.

A message names the object, what was expected, what was found and what to do next.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum


class WeirError(Exception):
    """The root of all errors of Weir."""


class Retryable(WeirError):
    """Nothing is known to be wrong with the data: try the same thing again later.

    The store or the Spark server did not answer, or answered with an error of its own. Nothing is marked lost.
    """


class DiskFull(Retryable):
    """A disk is full: make room on it. What was half written is to be removed, and the task tries again by itself."""


class StoreFull(DiskFull):
    """The store's disk has filled up in the middle of a write: the attempt needs more room than there was."""


class QuotaExceeded(DiskFull):
    """A dataflow may not keep more than it has: let it keep less, or allow it more. The task tries again by itself."""


class EngineLost(Retryable):
    """A Spark Connect server, a cluster or a driver went away, or does not answer: another one may be there soon."""


class InputUnreadable(Retryable):
    """The engine could not read an input for a moment: names the partition and the attempt. Ask the store about it."""


def is_disk_full(error: BaseException) -> bool:
    """Tell whether a file system refused to write because it, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class Conflict(WeirError):
    """The attempt was right when it began, but the world has moved on: begin anew. Costs no restart budget."""


class Fenced(WeirError):
    """A newer attempt of the same region is registered: stop, and change nothing."""


class Misconfigured(WeirError):
    """A person has to change something (code, settings, a folder's permissions) before a retry can help."""


class SuppressRestarts(WeirError):
    """Raised by a stage, or by a function of its own on an executor: no other try can help, so make none.

    As Flink's SuppressRestartsException. Where executors have no Weir, any exception class of this name will do.
    """


class QualityFailed(WeirError):
    """The rows that an attempt has written violate what is expected of them: they are in quarantine.

    `is_final` says that another try cannot help, or must not be made.
    """

    def __init__(self, message: str, *, is_final: bool) -> None:
        self.is_final = is_final
        super().__init__(message)


class Internal(WeirError):
    """Weir broke one of its own rules: please report it."""


class Fault(Enum):
    """What is wrong with a result partition."""

    MISSING = "missing"
    """A file or the manifest is not there, or a file has not the recorded size."""
    DAMAGED = "damaged"
    """All files are there with their sizes, but a digest does not match."""
    NEVER_COMMITTED = "never committed"
    """The producer is finished in Airflow (marked success by hand, say) but has committed nothing."""
    STALE = "stale"
    """The producer's current result was made from inputs that have changed since."""
    SUSPECTED = "distrusted"
    """Its bytes are there, but what was made from it, or it itself, violates what is expected of it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One result partition that cannot be read, and why.

    `attempt` is the attempt whose result it is; empty where nothing was ever committed.
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
    """Inputs are definitely gone or damaged: their producers have to run again. Carries all losses of one probe."""

    def __init__(self, losses: tuple[Loss, ...]) -> None:
        self.losses = losses
        shown = "; ".join(str(loss) for loss in losses[:10])
        more = f" (and {len(losses) - 10} more)" if len(losses) > 10 else ""
        super().__init__(f"{len(losses)} result partition(s) unavailable: {shown}{more}")


class Corrupt(ResultUnavailable):
    """Bytes that were read do not match their recorded digests."""

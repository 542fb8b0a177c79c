"""What delta-rs says when it fails, for sinks and sources.

Invariant: only what may pass is taken for silence: an object store or file system that does not answer, load, and
somebody else's commit. All else is refused again by the next try.
"""

from __future__ import annotations

import re
from typing import Final

from weir.errors import WeirError, is_for_person
from weir.refusals import Verdict, verdict
from weir.secrecy import without_secrets

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES: Final = re.compile(r"\s0: (<unknown>|std|core|[\w:]+::).*")
_NUMBER: Final = re.compile(r"os error (\d+)|Os \{ code: (\d+)")
_STATUS: Final = re.compile(r"status code\D{0,20}([45]\d\d) [A-Z]")
_PASSING: Final = frozenset({408, 409, 412, 425, 429})
_PANIC: Final = "PanicException"
"""The class of what Rust could not handle, which is no Exception in Python."""


def is_refusal(error: BaseException) -> bool:
    """Report whether an error is one that a later try meets again. CommitFailedError is for the caller."""
    if isinstance(error, WeirError):
        return False
    text = said(error)
    number, status = _NUMBER.search(text), _STATUS.search(text)
    if verdict(error) is Verdict.REFUSED:
        return True
    if number:
        return is_for_person(OSError(int(number[1] or number[2]), ""))
    if isinstance(error, OSError):
        code = int(status[1]) if status else 0
        return is_for_person(error) or (400 <= code < 500 and code not in _PASSING)
    return isinstance(error, (ValueError, TypeError, LookupError, ArithmeticError)) or is_of_library(error)


def is_of_library(error: BaseException) -> bool:
    """Report whether an error is one that only delta-rs raises, its panics included."""
    return any(each.__name__ in ("DeltaError", _PANIC) for each in type(error).__mro__)


def said(error: BaseException) -> str:
    """Return the message of the Rust library on one line, without its colours and frames, and without secrets."""
    line = " ".join(_COLOURS.sub("", str(error)).split())
    return without_secrets(_FRAMES.sub("", line))

"""Leaves Weir's frames out of the traceback of an error, so that people see theirs.

Invariant: what may be a bug of Weir's keeps all frames: `Internal`, and an error of another library or of Python whose
innermost frame is Weir's own. The message of any other error of Weir's says all that its frames could.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, TypeVar

from weir.errors import Internal, WeirError, reached

E = TypeVar("E", bound=BaseException)

_OURS: Final = frozenset({"weir", "weir_airflow", "weir_spark", "contextlib"})
"""Top-level modules whose frames tell a user nothing; contextlib's are between ours."""


def with_users_frames(error: E) -> E:
    """Shorten the tracebacks of an error and of what it was raised from, and return it."""
    for found in reached(error, lambda each: (each.__cause__, each.__context__)):
        if not _is_ours(found):
            found.__traceback__ = _without_ours(found.__traceback__)
    return error


def _is_ours(error: BaseException) -> bool:
    """Report whether our frames are needed to understand an error."""
    if isinstance(error, Internal):
        return True
    return not isinstance(error, WeirError) and _is_of_weir(_last(error.__traceback__))


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        if not _is_of_weir(traceback):
            kept.append(traceback)
        traceback = traceback.tb_next
    made: TracebackType | None = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def _is_of_weir(traceback: TracebackType | None) -> bool:
    if traceback is None:
        return False
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS

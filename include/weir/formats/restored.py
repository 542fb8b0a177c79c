"""Results that a restore has put there. Invariant: their attempts are of no try of a task, which their ids tell."""

from __future__ import annotations

from typing import Final

RESTORED: Final = "t0000-"
"""How the ids of attempts begin that no task has made."""


def is_of_restore(attempt: str) -> bool:
    """Whether the results of an attempt were restored."""
    return attempt.startswith(RESTORED)

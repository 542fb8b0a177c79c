"""What the transactions of the ledger count: told once they are committed, to who exports it.

Invariant: what was rolled back is never told, and what was committed once: where the connection breaks at the commit, a
count may be lost, and none is told twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy.orm import Session

from weir.execution.metrics import Measurement

Counted = Callable[[Sequence[Measurement]], None]
"""Gets the counts of a committed transaction. It must not raise: the transaction cannot be undone any more."""

_COUNTS: Final = "weir_counts"
"""In a session's `info`: what its transaction has counted."""


def count(session: Session, *counts: Measurement) -> None:
    """Have something counted once the transaction is committed."""
    session.info.setdefault(_COUNTS, []).extend(counts)


def counts_of(session: Session) -> Sequence[Measurement]:
    """Return what a transaction has counted."""
    return tuple(session.info.get(_COUNTS, ()))


def forget(counts: Sequence[Measurement]) -> None:
    """Forget the counts: only tasks of Airflow export them."""

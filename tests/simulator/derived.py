"""Derives anew what has to run again, after transactions of every kind.

Only some transactions end by deriving it (`weir.recovery.reconcile`). Where none of the others may change what is due,
the end of a transaction would add nothing after any of them, in any run: a process that is killed leaves no clear that
is due by the ledger and is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.ledger.database.tables import PendingClearRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.reconcile import reconcile

WHAT_IS_DUE_IS_DECIDED: Final = "what_is_due_is_decided"


def undecided(session: Session, services: Services) -> Iterator[str]:
    """Yield the clears that are due in the runs of a ledger and are not decided; it adds them."""
    newest = session.scalar(select(func.max(PendingClearRow.id))) or 0
    for number in session.scalars(select(RunRow.id).where(RunRow.is_pinned).order_by(RunRow.id)).all():
        run = run_by_id(session, number)
        state = run_state(session, run)
        own = [each for each in state.results if each.is_of_own_run]
        if reconcile(session, services, run, state, own, is_as_restored=True):
            added = session.scalars(select(PendingClearRow).where(PendingClearRow.id > newest)).all()
            yield from (f"{row.region}[{row.subtask}] of {row.run}: {row.reason}" for row in added)
            if not added:
                yield f"what is decided in {number} is older than what it is due to"

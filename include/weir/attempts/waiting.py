"""Tells which of the attempts that wait may go on, by what the ledger shows.

Invariant: no change is missed. The question is whether a begin would wait again, not what has happened since the last
one: it does not matter how long after the wait was decided it is first asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any, Final

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.errors import WeirError
from weir.execution.run_state import CLOSE, AttemptState, RunState
from weir.ledger.database.tables import AttemptRow, DataflowRow, RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import Run, run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.datasets import awaits_dataset
from weir.recovery.inputs import sort_inputs
from weir.recovery.resolving import awaits_range
from weir.recovery.rules.backtrack import is_expired
from weir.state.checkpoint_order import awaited_predecessor
from weir.topology.regions import RegionId

_WAITING = (
    select(AttemptRow.id, AttemptRow.run, AttemptRow.region, AttemptRow.subtask, DataflowRow.revision)
    .join(RunRow, RunRow.id == AttemptRow.run)
    .join(DataflowRow, DataflowRow.name == RunRow.dataflow)
    .where(AttemptRow.id.in_(bindparam("asked", expanding=True)), AttemptRow.state == AttemptState.WAITING.value)
)

_StateOf = Callable[[str], tuple[Run, RunState]]

_OF_OTHERS: Final = -1
"""No revision of a dataflow."""


class WaitingAttempts:
    """Attempts that wait, about which one ledger is asked again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looked: dict[str, int] = {}
        """By attempt that still has to wait, the revision of its dataflow when that was found."""

    def over(self, asked: Collection[str]) -> frozenset[str]:
        """Return those of the attempts whose wait is over, by one transaction that only reads.

        It is one query as long as nothing is written about their dataflows. Raises Retryable.
        """
        with self._ledger.transaction() as session:
            rows = session.execute(_WAITING, {"asked": list(asked)}).all()
            state_of = cache(partial(_state_of, session))
            self._looked = {row.id: seen for row in rows if (seen := self._waiting_at(session, state_of, row))}
        return frozenset(asked) - self._looked.keys()

    def _waiting_at(self, session: Session, state_of: _StateOf, row: Any) -> int:
        """Return the revision of its dataflow at which an attempt still has to wait; 0 if it has not.

        Whether other dataflows have published what it waits for, its own one does not tell.
        """
        if self._looked.get(row.id) == row.revision:
            return int(row.revision)
        if not _waits(session, state_of, row):
            return 0
        return _OF_OTHERS if state_of(row.run)[0].topology.reads_datasets else int(row.revision)


def _state_of(session: Session, run: str) -> tuple[Run, RunState]:
    found = run_by_id(session, run)
    return found, run_state(session, found)


def _waits(session: Session, state_of: _StateOf, row: Any) -> bool:
    """Report whether a begin would wait, as far as the ledger tells; where it would raise an error, it does not."""
    region = RegionId(row.region, row.subtask)
    try:
        run, state = state_of(row.run)
        if region == CLOSE and awaited_predecessor(session, run) is not None:
            return True
        if awaits_range(session, run, region) or awaits_dataset(session, run, state, region):
            return True
        inputs = sort_inputs(state, region)
    except WeirError:
        return False
    # What Weir does not recompute is awaited as long as Airflow runs its producer, which the ledger does not tell.
    is_lost = any(not is_expired(state, each) for each in inputs.losses)
    return not is_lost and bool(inputs.awaited or inputs.losses)

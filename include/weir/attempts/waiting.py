"""Tells which of the attempts that wait may go on, by what the ledger shows.

Invariant: no change is missed. The question is whether a begin would wait again, not what has happened since the last
one: it does not matter how long after the wait was decided it is first asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.graph import dataflows_read
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

_REVISIONS = select(DataflowRow.name, DataflowRow.revision).where(
    DataflowRow.name.in_(bindparam("names", expanding=True))
)

_StateOf = Callable[[str], tuple[Run, RunState]]


class WaitingAttempts:
    """Attempts that wait, about which one ledger is asked again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looked: dict[str, tuple[int, ...]] = {}
        """By attempt that still has to wait, the revisions at that time of its dataflow, and of those that it reads."""
        self._reads: dict[str, tuple[str, ...]] = {}
        """By such an attempt, the other dataflows that its run reads or follows."""

    def over(self, asked: Collection[str]) -> frozenset[str]:
        """Return those of the attempts whose wait is over, by one transaction that only reads.

        It is one query as long as nothing is written about their dataflows. Raises Retryable.
        """
        with self._ledger.transaction() as session:
            rows = session.execute(_WAITING, {"asked": list(asked)}).all()
            state_of = cache(partial(_state_of, session))
            of_others = _revisions(session, {name for names in self._reads.values() for name in names})
            seen = {row.id: self._seen(row, of_others) for row in rows}
            waiting = [
                row for row in rows if self._looked.get(row.id) == seen[row.id] or _waits(session, state_of, row)
            ]
            unknown = [row for row in waiting if row.id not in self._reads]
            self._reads |= {row.id: _read_by(state_of(row.run)[0].dataflow) for row in unknown}
            of_others |= _revisions(session, {name for row in unknown for name in self._reads[row.id]})
            self._looked = {row.id: self._seen(row, of_others) for row in waiting}
            self._reads = {each: self._reads[each] for each in self._looked}
        return frozenset(asked) - self._looked.keys()

    def _seen(self, row: Any, of_others: Mapping[str, int]) -> tuple[int, ...]:
        return (row.revision, *(of_others.get(name, 0) for name in self._reads.get(row.id, ())))


def _read_by(flow: Dataflow) -> tuple[str, ...]:
    return (*dataflows_read(flow.stages), *([flow.shadow_of] if flow.shadow_of else []))


def _revisions(session: Session, names: Collection[str]) -> dict[str, int]:
    return dict(session.execute(_REVISIONS, {"names": sorted(names)}).tuples().all()) if names else {}


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

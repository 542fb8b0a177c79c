"""Moves a run to the current dataflow: `weir run adopt`.

Invariant: one transaction takes the results, the splits and the repairs of the old topology out of use, and fences all
attempts that have not ended. Results that cannot be computed again are discarded only if that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.run_records import owe_record, write_record
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import LIVE, end
from weir.ledger.checkpoints import what_is_kept
from weir.ledger.clears import clears_of_run
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.results import supersede_all
from weir.ledger.runs import forget_pin, forget_slices, named_run, run_by_id
from weir.ledger.snapshot import run_state

MOVED = "the run was moved to the current dataflow"
UNFINISHED = (*LIVE, AttemptState.RETRYING.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The results, unended attempts and pending clears that were taken out of use."""

    run: str
    dag_id: str
    run_id: str
    results: int
    fenced: tuple[str, ...]
    owed: int

    def __str__(self) -> str:
        """Describe what was done and the next command."""
        fenced = f" ({', '.join(self.fenced)})" if self.fenced else ""
        return (
            f"Run {self.run} is free of its record: {self.results} result(s) superseded, {len(self.fenced)} attempt(s) "
            f"fenced{fenced}, {self.owed} pending clear(s) dropped. Published versions stay until the run closes "
            "again.\n"
            f"Next: clear the whole run {self.run_id} of DAG {self.dag_id} in Airflow. Its first task that begins pins "
            "it to the dataflow that the DAG file declares then."
        )


def adopt(services: Services, name: str, *, discards: bool = False) -> Adoption:
    """Move the run `name` (DATAFLOW@EPOCH, or Airflow's run id) to the current dataflow at its next begin.

    `discards`: also where its results cannot be computed again. Raises Misconfigured where they cannot, for a run that
    is not known, and for a run id that several dataflows share.
    """
    with services.ledger.transaction() as session:
        found = named_run(session, name)
    services.store_id()
    with services.ledger.transaction(found.dataflow) as session:
        if not discards:
            _require_repeatable(session, found.id)
        adoption = free_run(session, services, session.get_one(RunRow, found.id), MOVED)
    write_record(services, found.id)
    return adoption


def _require_repeatable(session: Session, name: str) -> None:
    """Refuse a run with results that goes on from a state which was released."""
    row = session.get_one(RunRow, name)
    if row.pinned is None or row.predecessor is None:
        return
    state = run_state(session, run_by_id(session, name))
    # Not by the inputs of its regions: the run before may have been moved to a dataflow that writes other ones.
    before = (each for each in state.results if not each.is_of_own_run and each.stage in state.topology.states)
    gone = [each for each in before if state.results[each].state is PartitionState.RELEASED]
    if not gone or not any(each.is_of_own_run for each in state.results):
        return
    raise Misconfigured(
        f"the results of run {name} would be lost: it goes on from {gone[0].stage} of {gone[0].run}, which was "
        f"released, so that it cannot be computed again. {what_is_kept(session, row.dataflow)}. `weir run adopt {name} "
        "--discard` discards them all the same. Nothing was changed"
    )


def free_run(session: Session, services: Services, row: RunRow, reason: str) -> Adoption:
    """Take all of a run out of use and remove its pin; `reason` is recorded with the results.

    Its record in the store is due from then on.
    """
    now = services.now()
    fenced = _fence(session, row.id, now)
    results = supersede_all(session, row.id, reason, now)
    forget_slices(session, row.id)
    owed = _void_clears(session, row.id, f"not needed: {reason}", now)
    forget_pin(session, row.id)
    row.closed_at = None
    session.flush()
    owe_record(session, row)
    return Adoption(run=row.id, dag_id=row.dag_id, run_id=row.run_id, results=results, fenced=fenced, owed=owed)


def _fence(session: Session, run: str, now: datetime) -> tuple[str, ...]:
    query = select(AttemptRow).where(AttemptRow.run == run, AttemptRow.state.in_(UNFINISHED)).order_by(AttemptRow.id)
    rows = list(session.scalars(query))
    for row in rows:
        end(row, AttemptState.FENCED, now)
        drop_leases(session, row.id)
    return tuple(row.id for row in rows)


def _void_clears(session: Session, run: str, outcome: str, now: datetime) -> int:
    """Void all clears of a run; returns how many were still pending."""
    rows = clears_of_run(session, run)
    pending = [row for row in rows if row.settled_at is None]
    for row in pending:
        row.settled_at, row.outcome = now, outcome
    for row in rows:
        row.is_void = True
    return len(pending)

"""Moves a run to the current dataflow: `weir run adopt`.

Invariant: one transaction takes the results, the splits and the repairs of the old topology out of use, and fences all
attempts that have not ended. Results that cannot be computed again are discarded only if that is asked for.

Many errors advise the command, which may be typed long after: so it is the command that looks whether a task is making
just now what it would discard, and then changes nothing. No other place has to know when the advice is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.run_records import owe_record, write_record
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import LIVE, end, newest_attempts
from weir.ledger.checkpoints import what_is_kept
from weir.ledger.clears import clears_of_run
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.names import SHOWN
from weir.ledger.results import supersede_all
from weir.ledger.runs import forget_pin, forget_slices, named_run, run_by_id
from weir.ledger.snapshot import run_state
from weir.topology.regions import RegionId

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


def adopt(services: Services, name: str, *, discards: bool = False, interrupts: bool = True) -> Adoption:
    """Move the run `name` (DATAFLOW@EPOCH, or Airflow's run id) to the current dataflow at its next begin.

    `discards`: also where its results cannot be computed again; `interrupts`: also while a task of it runs, or is to
    run again. Raises Misconfigured otherwise, for a run that is not known, and for a run id that several dataflows
    share.
    """
    with services.ledger.transaction() as session:
        found = named_run(session, name)
    services.store_id()
    with services.ledger.transaction(found.dataflow) as session:
        lost = [] if interrupts else being_made(session, found.id)
        lost += [] if discards else _unrepeatable(session, found.id)
        if lost:
            raise Misconfigured(
                f"the results of run {found.id} would be lost: {'; and '.join(lost)}. `weir run adopt {found.id} "
                "--discard` discards them all the same. Nothing was changed"
            )
        adoption = free_run(session, services, session.get_one(RunRow, found.id), MOVED)
    write_record(services, found.id)
    return adoption


def being_made(session: Session, run: str) -> list[str]:
    """Say which tasks of a run are running, or are cleared and about to run again, as far as the ledger knows.

    A clear that is still pending has made nothing: it is dropped with what it would have repaired.
    """
    attempts = newest_attempts(session, run)
    working = [f"{each} (try {tries[-1].try_number}) is running" for each, tries in attempts.items() if _runs(tries)]
    begun = {each: tries[-1].try_number for each, tries in attempts.items()}
    for row in clears_of_run(session, run):
        region = RegionId(row.region, row.subtask)
        is_carried_out = row.settled_at is not None and row.sends and not row.is_void
        if is_carried_out and begun.get(region, 0) <= row.expected_try:
            working.append(f"{region} is about to run again")
    if not working:
        return []
    found = list(dict.fromkeys(working))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return [f"{', '.join(found[:SHOWN])}{more}: wait until they have ended (`weir plan {run}` tells)"]


def _runs(tries: Sequence[AttemptRow]) -> bool:
    return tries[-1].state == AttemptState.RUNNING.value


def _unrepeatable(session: Session, name: str) -> list[str]:
    """Say why a run with results cannot be computed again: it goes on from a state which was released."""
    row = session.get_one(RunRow, name)
    if row.pinned is None or row.predecessor is None:
        return []
    state = run_state(session, run_by_id(session, name))
    # Not by the inputs of its regions: the run before may have been moved to a dataflow that writes other ones.
    before = (each for each in state.results if not each.is_of_own_run and each.stage in state.topology.states)
    gone = [each for each in before if state.results[each].state is PartitionState.RELEASED]
    if not gone or not any(each.is_of_own_run for each in state.results):
        return []
    state_of = f"{gone[0].stage} of {gone[0].run}"
    kept = what_is_kept(session, row.dataflow)
    return [f"it goes on from {state_of}, which was released, so that it cannot be computed again. {kept}"]


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

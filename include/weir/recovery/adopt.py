"""Moves a run to the current dataflow: `weir run adopt`.

Invariant: one transaction takes the results, the splits and the repairs of the old topology out of use, and fences all
attempts that have not ended. Results that cannot be computed again are discarded only if that is asked for.

Many errors advise the command, which may be typed long after: so it is the command that looks whether a task is making
just now what it would discard, and then changes nothing. No other place has to know when the advice is harmless. What
the ledger calls running or about to run, Airflow may have ended: it is asked, if it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import ClearItem
from weir.coordination.run_records import owe_record, write_record
from weir.coordination.services import Services
from weir.errors import Misconfigured, WeirError
from weir.execution.airflow_words import FINAL, run_again
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import LIVE, end, newest_attempts
from weir.ledger.checkpoints import what_is_kept
from weir.ledger.clears import clears_of_run
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.names import SHOWN
from weir.ledger.outbox import note_begins_anew
from weir.ledger.reads import forget_inputs
from weir.ledger.results import has_results, supersede_all
from weir.ledger.runs import forget_pin, named_run, run_by_id
from weir.ledger.snapshot import run_state
from weir.ledger.sources import forget_splits
from weir.recovery.rules.standing import OVER
from weir.recovery.standing import Asked
from weir.topology.regions import RegionId

MOVED = "the run was moved to the current dataflow"
UNFINISHED = (*LIVE, AttemptState.RETRYING.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The results, unended attempts and pending clears that were taken out of use.

    `recreate` is the command that creates its DagRun again, if Airflow has deleted that.
    """

    run: str
    dag_id: str
    run_id: str
    results: int
    fenced: tuple[str, ...]
    owed: int
    recreate: str = ""

    def __str__(self) -> str:
        """Describe what was done and the next command."""
        fenced = f" ({', '.join(self.fenced)})" if self.fenced else ""
        return (
            f"Run {self.run} is free of its record: {self.results} result(s) superseded, {len(self.fenced)} attempt(s) "
            f"fenced{fenced}, {self.owed} pending clear(s) dropped. Published versions stay until the run closes "
            f"again.\nNext: {self._next()}"
        )

    def _next(self) -> str:
        if self.recreate:
            return (
                f"its DagRun was deleted in Airflow. {self.recreate} has its interval computed again; without that, "
                "later runs go on without its rows. Then clear what has failed of them"
            )
        return (
            f"clear the whole run {self.run_id} of DAG {self.dag_id} in Airflow, or by `weir clear {self.run} "
            "--apply`. Its first task that begins pins it to the dataflow that the DAG file declares then."
        )


def adopt(
    services: Services, name: str, *, discards: bool = False, interrupts: bool = True, asked: Asked | None = None
) -> Adoption:
    """Move the run `name` (DATAFLOW@EPOCH, or Airflow's run id) to the current dataflow at its next begin.

    `discards`: also where its results cannot be computed again; `interrupts`: also while a task of it runs, or is to
    run again; `asked` is Airflow, which knows which of them have ended. Raises Misconfigured otherwise, for a run that
    is not known, and for a run id that several dataflows share.
    """
    with services.ledger.transaction() as session:
        found = named_run(session, name)
        making = [] if interrupts else being_made(session, found)
    services.store_id()
    asked = asked or Asked(airflow=None)
    ended, why_not = _ended(making, asked)
    is_deleted = _is_deleted(found, asked)
    with services.ledger.transaction(found.dataflow) as session:
        row = session.get_one(RunRow, found.id)
        making = [] if interrupts else [each for each in being_made(session, row) if each.cause not in ended]
        lost = [_wait_for(row.id, making, why_not)] if making else []
        lost += [] if discards else unrepeatable(session, found.id)
        if lost:
            raise Misconfigured.of("recovery.results_would_be_lost", found_id=found.id, lost=lost)
        adoption = free_run(session, services, row, MOVED)
    write_record(services, found.id)
    return replace(adoption, recreate=run_again(found.dag_id, found.interval_start)) if is_deleted else adoption


@dataclass(frozen=True, slots=True)
class Making:
    """A task that makes a result, by the ledger: the attempt that runs, or the clear after which it runs again."""

    item: ClearItem
    said: str
    cause: str | int


def being_made(session: Session, row: RunRow) -> list[Making]:
    """Return the tasks of a run that are running, or are cleared and about to run again, as far as the ledger knows.

    A clear that is still pending has made nothing: it is dropped with what it would have repaired. Where the run has no
    result, what is about to run loses nothing, since it begins after the run is free.
    """
    attempts = newest_attempts(session, row.id)
    working = {
        region: Making(
            ClearItem(row.dag_id, row.run_id, tries[-1].task_id, tries[-1].map_index, None),
            f"{region} (try {tries[-1].try_number}) is running",
            tries[-1].id,
        )
        for region, tries in attempts.items()
        if _runs(tries)
    }
    begun = {each: tries[-1].try_number for each, tries in attempts.items()}
    for clear in clears_of_run(session, row.id) if has_results(session, row.id) else ():
        region = RegionId(clear.region, clear.subtask)
        is_carried_out = clear.settled_at is not None and clear.sends and not clear.is_void
        if is_carried_out and region not in working and begun.get(region, 0) <= clear.expected_try:
            item = ClearItem(clear.dag_id, clear.run_id, clear.task_id, clear.map_index, None)
            working[region] = Making(item, f"{region} is about to run again", clear.id)
    return list(working.values())


def _ended(making: Sequence[Making], asked: Asked) -> tuple[set[str | int], str]:
    """Return the causes of those tasks that Airflow has ended or does not run any more; and why it was not asked."""
    if not making:
        return set(), ""
    if asked.airflow is None:
        return set(), asked.why_not
    try:
        dag_run = asked.airflow.seen_run(making[0].item.dag_id, making[0].item.run_id)
        answers = asked.airflow.inspect([each.item for each in making])
    except WeirError as error:
        return set(), f"Airflow: {error}"
    is_over = dag_run is None or dag_run.state in OVER
    ended = (
        each.cause
        for each, answer in zip(making, answers, strict=True)
        if answer.state in FINAL or (is_over and answer.state is None)
    )
    return set(ended), ""


def _is_deleted(row: RunRow, asked: Asked) -> bool:
    try:
        return asked.airflow is not None and asked.airflow.exists(row.dag_id, row.run_id) is False
    except WeirError:
        return False


def _wait_for(run: str, making: Sequence[Making], why_not: str) -> str:
    said = [each.said for each in making]
    more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    known = f", by the ledger alone: {why_not}" if why_not else ""
    return f"{', '.join(said[:SHOWN])}{more}{known}: wait until they have ended (`weir plan {run}` tells)"


def _runs(tries: Sequence[AttemptRow]) -> bool:
    return tries[-1].state == AttemptState.RUNNING.value


def unrepeatable(session: Session, name: str) -> list[str]:
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
    fenced, owed = stop_run(session, row.id, f"not needed: {reason}", now)
    results = supersede_all(session, row.id, reason, now)
    forget_splits(session, row.id)
    forget_inputs(session, row.id)
    forget_pin(session, row.id)
    note_begins_anew(session, row.id)
    row.closed_at = None
    session.flush()
    owe_record(session, row)
    return Adoption(run=row.id, dag_id=row.dag_id, run_id=row.run_id, results=results, fenced=fenced, owed=owed)


def stop_run(session: Session, run: str, outcome: str, now: datetime) -> tuple[tuple[str, ...], int]:
    """Fence all attempts of a run that have not ended, and void its clears; return them, and how many were pending."""
    return _fence(session, run, now), _void_clears(session, run, outcome, now)


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

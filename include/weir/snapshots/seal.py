"""Seals an epoch that has failed for good: later epochs go on from the one before it, and it publishes nothing.

Invariants: what is shown is what the same functions would do, in a transaction that is rolled back. One transaction
seals; whoever is killed after it types the same command again, which then only has later runs go on. A run that has
published, or whose checkpoint is complete, is never sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import AirflowStates
from weir.coordination.run_records import write_records
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import LIVE, newest_attempts
from weir.ledger.clears import clears_of_run
from weir.ledger.database.tables import AttemptRow, CheckpointRow, RunRow
from weir.ledger.names import SHOWN
from weir.ledger.publications import published_versions
from weir.ledger.runs import dataflow_of, named_run, newest_pinned, run_key, topology_of
from weir.ledger.sources import ranges_of
from weir.recovery.predecessor import Sealed, before_sealed, seal
from weir.recovery.questions import Question
from weir.recovery.run_plans import have_go_on, plan_of, reaching
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.wording import first_few

SEALED_BY = "sealed by {}"
"""The reason of a seal, with who has sealed it."""

UPKEEP = "upkeep, as tolerable_failed_epochs={} allows"
"""Who has sealed a run that no person has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealPlan:
    """What sealing a run does.

    `before` is the run from which later epochs go on then. `failed` and `running` are tasks of the run; the running
    ones are fenced. `sinks` publish nothing of the epoch. `kept` are sources that go on, whose recorded rows wait for
    the run to be mended. `followers` are the later runs that are open; `reruns` are tasks of theirs that run again, as
    they have read the run. `sealed_why` is not empty where it is sealed already, `impossible` where it cannot be.
    """

    run: RunId
    before: str
    failed: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    followers: tuple[RunId, ...] = ()
    reruns: tuple[str, ...] = ()
    sealed_why: str = ""
    impossible: str = ""


def seal_plan(services: Services, name: str) -> SealPlan:
    """Return what sealing the run of this name (DATAFLOW@EPOCH, or Airflow's run id) comes to; it changes nothing.

    Raises Misconfigured for a run that is not known.
    """
    with services.ledger.transaction() as session:
        found = named_run(session, name)
        run, dataflow = found.id, found.dataflow
    with services.ledger.transaction(dataflow) as session:
        plan = _planned(session, services, session.get_one(RunRow, run))
        session.rollback()
    return plan


def seal_preview(services: Services, run: RunId) -> SealPlan:
    """Return the plan but for tasks of later runs that run again: for a process that only reads the ledger."""
    with services.ledger.transaction() as session:
        return _previewed(session, session.get_one(RunRow, run))


def _planned(session: Session, services: Services, row: RunRow) -> SealPlan:
    plan = _previewed(session, row)
    if plan.sealed_why or plan.impossible:
        return plan
    try:
        done = seal(session, services, row, "")
    except Misconfigured as error:
        return replace(plan, impossible=str(error))
    return replace(plan, reruns=tuple(_reruns(session, done.followers)))


def _previewed(session: Session, row: RunRow) -> SealPlan:
    if row.sealed_at is not None:
        return SealPlan(
            run=row.id,
            before=_before(session, row),
            followers=_open_after(session, row),
            sealed_why=row.sealed_why or "",
        )
    tries = {region: rows[-1] for region, rows in newest_attempts(session, row.id).items()}
    failed = tuple(sorted(str(each) for each, of in tries.items() if of.state == AttemptState.FAILED.value))
    running = tuple(sorted(str(each) for each, of in tries.items() if of.state in LIVE))
    sinks = () if row.pinned is None else topology_of(row.pinned).sinks
    kept = tuple(ranges_of(session, row.id))
    return SealPlan(
        run=row.id,
        before=_before(session, row),
        failed=failed,
        running=running,
        sinks=tuple(sinks),
        kept=kept,
        followers=_open_after(session, row),
        impossible="; ".join(_obstacles(session, row)),
    )


def _before(session: Session, row: RunRow) -> str:
    before = before_sealed(session, row)
    return "" if before is None else run_key(row.dataflow, before)


def _reruns(session: Session, runs: tuple[RunId, ...]) -> Iterator[str]:
    for run in runs:
        for each in clears_of_run(session, run):
            if each.settled_at is None:
                yield f"{RegionId(each.region, each.subtask)} of {run}"


def _obstacles(session: Session, row: RunRow) -> Iterator[str]:
    """Say why a run cannot be sealed."""
    if not row.has_dag_run:
        yield "no DagRun computes it: it was only restored"
    if row.closed_at is not None:
        yield "it is closed"
    versions = published_versions(session, row.id)
    if versions:
        said = first_few([f"{sink} v{version}" for sink, version in versions.items()], SHOWN)
        yield f"it has published {said}: later epochs have gone on from it. Clear what has failed, once that is mended"
    elif _has_checkpoint(session, row):
        yield "its checkpoint is complete: its closing task is about to publish it"
    if row.pinned is not None and not topology_of(row.pinned).follows_previous:
        yield "no later epoch goes on from it, so none waits for it"
    elif before_sealed(session, row) is None:
        yield "no epoch is before it from which later ones could go on. Delete its DagRun, and they begin without it"


def _has_checkpoint(session: Session, row: RunRow) -> bool:
    complete = select(CheckpointRow.run).where(CheckpointRow.run == row.id, CheckpointRow.completed_at.is_not(None))
    return session.scalar(complete.limit(1)) is not None


def _open_after(session: Session, row: RunRow) -> tuple[RunId, ...]:
    """Return the later runs that are open, oldest first."""
    of_dataflow = (RunRow.dataflow == row.dataflow) & (RunRow.epoch > row.epoch) & RunRow.closed_at.is_(None)
    found = session.scalars(select(RunRow).where(of_dataflow).order_by(RunRow.epoch))
    return tuple(each.id for each in found if each.has_dag_run and each.is_pinned and not each.is_passed_over)


def seal_run(services: Services, plan: SealPlan, airflow: AirflowStates, by: str) -> list[str]:
    """Seal the run of a plan, unless it is sealed, and have later runs go on; return what was done, a line each.

    `by` is who asks for it. Raises Misconfigured where it cannot be, and Retryable or Misconfigured of Airflow: it
    stays sealed then, and another call goes on.
    """
    done = []
    if not plan.sealed_why:
        dataflow = dataflow_of(plan.run)
        with services.ledger.transaction(dataflow) as session:
            row = session.get_one(RunRow, plan.run)
            if row.sealed_at is None:
                _require_possible(session, row)
                sealed = seal(session, services, row, SEALED_BY.format(by))
                done.append(_said(plan.run, sealed))
        write_records(services, dataflow)
    planned = (plan_of(services, Question(each), reaching(airflow)) for each in plan.followers)
    return [*done, *(have_go_on(services, each, airflow, by) for each in planned)]


def _require_possible(session: Session, row: RunRow) -> None:
    why = "; ".join(_obstacles(session, row))
    if why:
        raise Misconfigured.of("snapshots.seal_impossible", run=row.id, why=why)


def _said(run: RunId, sealed: Sealed) -> str:
    fenced = f", {len(sealed.fenced)} attempt(s) are fenced" if sealed.fenced else ""
    dropped = f", {sealed.dropped} pending clear(s) are dropped" if sealed.dropped else ""
    return f"{run} is sealed{fenced}{dropped}. A person's clear of a task of it lifts the seal"


def seal_tolerated(services: Services, airflow: AirflowStates, dataflow: str) -> str:
    """Seal the oldest open run of a dataflow that tolerates it, and have later runs go on; return what was done.

    Only one whose restarts are used up: never one that a person or a check has refused, whose plan is held back, or
    that waits for a store, a target or an engine. Raises as `seal_run`.
    """
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
        allowed = 0 if pinned is None else topology_of(pinned).dataflow.tolerable_failed_epochs
        run = _tolerated(session, dataflow, allowed) if allowed else None
    plan = None if run is None else seal_plan(services, run)
    if plan is None or plan.impossible or plan.sealed_why or not plan.followers:
        return ""
    return "; ".join(seal_run(services, plan, airflow, UPKEEP.format(allowed)))


def _tolerated(session: Session, dataflow: str, allowed: int) -> RunId | None:
    """Return the oldest open run if it has failed for good, and fewer runs than allowed are sealed right before it."""
    of_dataflow = (RunRow.dataflow == dataflow) & RunRow.closed_at.is_(None) & RunRow.sealed_at.is_(None)
    rows = session.scalars(select(RunRow).where(of_dataflow, RunRow.expired_at.is_(None)).order_by(RunRow.epoch))
    row = next((each for each in rows if each.is_pinned), None)
    if row is None or not row.has_dag_run or not _is_used_up(session, row):
        return None
    before = RunRow.epoch > (row.predecessor or "")
    sealed = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.sealed_at.is_not(None), before)
    return row.id if len(session.scalars(sealed.where(RunRow.epoch < row.epoch)).all()) < allowed else None


def _is_used_up(session: Session, row: RunRow) -> bool:
    """Report whether tasks of a run have failed for good as their functions raise or kill, and nothing else goes on."""
    tries = newest_attempts(session, row.id).values()
    failed = [rows for rows in tries if rows[-1].state == AttemptState.FAILED.value]
    goes_on = any(rows[-1].state in (*LIVE, AttemptState.RETRYING.value) for rows in tries)
    is_pending = any(each.settled_at is None for each in clears_of_run(session, row.id))
    return bool(failed) and not goes_on and not is_pending and all(map(_is_of_function, failed))


def _is_of_function(tries: list[AttemptRow]) -> bool:
    """Report whether the newest try has failed by its function, or since the one before it was killed."""
    failure = tries[-1].failure
    was_killed = len(tries) > 1 and tries[-2].failure == FailureClass.KILLED.value
    is_own = failure == FailureClass.APPLICATION.value or (failure == FailureClass.FATAL.value and was_killed)
    return is_own and tries[-1].failure_cause is None

"""What follows a failed try: the failure is booked, and the restart strategy or a budget says whether and when.

Invariant 7: a failure, its plan and the clears that the plan owes are one transaction.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.carrying_out import carry_out, restart_others
from weir.coordinator.discard import discard
from weir.coordinator.gathering import losses_by_partition
from weir.coordinator.planning import ROUNDS, decide_now, probe_for
from weir.coordinator.services import Services
from weir.coordinator.values import Action, FailureDecision, TaskKey
from weir.coordinator.verdict import UNREGISTERED_DELAY, already_ended, book, from_budget
from weir.errors import Conflict, DiskFull, Fault, ResultUnavailable, Retryable
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.failovers import FailoverKind, record_failover
from weir.ledger.leases import drop_leases
from weir.ledger.models import AttemptRow, RunRow
from weir.ledger.results import record_losses
from weir.ledger.runs import Run, run_by_id
from weir.recovery.classify import FailureClass, classify
from weir.recovery.decision import Failure
from weir.recovery.labels import built_in_labels
from weir.recovery.plan import Plan
from weir.recovery.restart import RestartStrategy
from weir.recovery.run_state import CLOSE, AttemptState
from weir.topology.regions import RegionId

ABANDONED = (AttemptState.RETRYING.value, AttemptState.FAILED.value)
"""The states of an attempt that has failed, and will never commit."""


def fail(
    services: Services, dataflow: str, key: TaskKey, try_number: int, error: BaseException, strategy: RestartStrategy
) -> FailureDecision:
    """Book the failure of a try and decide. Raises Retryable if ledger or store do not answer."""
    failure = classify(error)
    if failure is FailureClass.FENCED:
        return FailureDecision(Action.NOTHING, UNREGISTERED_DELAY, f"fenced: {error}")
    with services.ledger.transaction() as session:
        row = _attempt(session, dataflow, key, try_number)
        run = None if row is None else run_by_id(session, row.run)
    if row is None or run is None:
        return _unregistered(failure, error)
    if row.state not in LIVE:
        return already_ended(row)
    if isinstance(error, ResultUnavailable):
        try:
            return _backtrack(services, run, row, error)
        except (Retryable, Conflict) as unplanned:
            # Not booked, it would look like a killed process to the next begin.
            failure, error = classify(unplanned), unplanned
    with services.ledger.transaction(dataflow) as session:
        decision = book(session, services, row.id, failure, error, strategy)
        booked = session.get(AttemptRow, row.id)
        if booked is not None and booked.state == AttemptState.RETRYING.value:
            restart_others(session, services, run, booked, failure)
    has_written = row.region != CLOSE.name and booked is not None and booked.state in ABANDONED
    if isinstance(error, DiskFull) and has_written:
        return replace(decision, reason=f"{decision.reason}; {discard(services, run, row)}")
    return decision


def _attempt(session: Session, dataflow: str, key: TaskKey, try_number: int) -> AttemptRow | None:
    query = (
        select(AttemptRow)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(
            RunRow.dataflow == dataflow,
            RunRow.dag_id == key.dag_id,
            RunRow.run_id == key.run_id,
            AttemptRow.task_id == key.task_id,
            AttemptRow.map_index == key.map_index,
            AttemptRow.try_number == try_number,
        )
    )
    return session.scalar(query)


def _unregistered(failure: FailureClass, error: BaseException) -> FailureDecision:
    action = Action.FAIL if failure is FailureClass.FATAL else Action.RETRY
    return FailureDecision(action, UNREGISTERED_DELAY, str(error))


def _backtrack(services: Services, run: Run, row: AttemptRow, error: ResultUnavailable) -> FailureDecision:
    """Plan in rounds: decide, ask the store what the decision needs, decide again; write down what was decided."""
    store_id, largest = services.store_id(), services.recovery.largest_plan
    failed = RegionId(row.region, row.subtask)
    asked = Failure(failed, losses_by_partition(error.losses, run.id), largest=largest)
    for _ in range(ROUNDS):
        with services.ledger.transaction(run.dataflow.name) as session:
            record_losses(session, asked.losses.values(), services.now())
            decided = decide_now(session, run, asked)
            if isinstance(decided.answer, Plan):
                return _end(session, services, run, row.id, decided.answer, error)
        asked = probe_for(services, store_id, decided, decided.answer)
    raise Conflict(f"the run changed {ROUNDS} times while the recovery of {failed} was planned")


def _end(
    session: Session, services: Services, run: Run, attempt: str, plan: Plan, error: ResultUnavailable
) -> FailureDecision:
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    end(row, AttemptState.RETRYING, services.now(), failure=FailureClass.BACKTRACK, error=str(error))
    row.labels = built_in_labels(FailureClass.BACKTRACK, error)
    drop_leases(session, attempt)
    attempts = attempts_of(session, run.id, RegionId(row.region, row.subtask))
    decision = from_budget(services, attempts, FailureClass.BACKTRACK, _told(plan, error))
    if plan.held_back or plan.impossible:
        record_failover(session, run, plan, services.now(), FailoverKind.HELD_BACK, row)
        # Also what is answered where this answer is lost, and somebody asks again.
        row.error = _to_a_person(run, plan)
        decision = FailureDecision(Action.FAIL, 0, row.error, row.id, FailureClass.BACKTRACK)
    if decision.action is Action.FAIL:
        row.state = AttemptState.FAILED.value
        return decision
    carry_out(session, services, run, plan, FailoverKind.LOSS, row)
    return decision


def _told(plan: Plan, error: ResultUnavailable) -> str:
    """What runs again; of what is distrusted also why, since its bytes are there, as recorded."""
    why = dict.fromkeys(loss.detail for loss in error.losses if loss.fault is Fault.DISTRUSTED)
    return "; ".join([plan.summary(), *why])


def _to_a_person(run: Run, plan: Plan) -> str:
    if plan.impossible:
        return f"nothing was restarted, since it would not help: {plan.impossible}"
    return (
        f"nothing was restarted: {plan.held_back}. {plan.cause}. The plan: {plan.summary()}. `weir plan {run.id}` "
        f"shows all of it, and `weir plan {run.id} --apply` carries it out, with the tasks that have failed"
    )

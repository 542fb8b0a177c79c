"""What follows a failed try: the failure is booked, and the restart strategy or a budget says whether and when.

Invariant 7: a failure, its plan and the clears that the plan owes are one transaction.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.discard import discard
from weir.coordinator.gathering import losses_by_partition
from weir.coordinator.inputs import probe_partitions
from weir.coordinator.services import Services
from weir.coordinator.values import Action, FailureDecision, TaskKey
from weir.coordinator.verdict import UNREGISTERED_DELAY, already_ended, book, from_budget
from weir.errors import Conflict, DiskFull, Loss, ResultUnavailable, Retryable
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.failovers import record_failover
from weir.ledger.models import AttemptRow, RunRow
from weir.ledger.owed import owe_clear
from weir.ledger.results import drop_leases, record_losses
from weir.ledger.runs import Run, run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.backtrack import backtrack, known_loss
from weir.recovery.classify import FailureClass, classify
from weir.recovery.plan import Plan, StepKind
from weir.recovery.restart import RestartStrategy
from weir.recovery.run_state import CLOSE, AttemptState, RunState
from weir.topology.regions import PartitionId, RegionId

ABANDONED = (AttemptState.RETRYING.value, AttemptState.FAILED.value)
"""The states of an attempt that has failed, and will never commit."""

ROUNDS = 20
"""How often a plan may be overtaken before the try simply comes again."""


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
    store_id, failed = services.store_id(), RegionId(row.region, row.subtask)
    losses, intact = losses_by_partition(error.losses, run.id), frozenset[PartitionId]()
    for _ in range(ROUNDS):
        with services.ledger.transaction(run.dataflow.name) as session:
            record_losses(session, losses.values(), services.now())
            state = run_state(session, run)
            losses = _still_true(state, losses)
            decided = backtrack(state, failed, losses, intact)
            if isinstance(decided, Plan):
                return _carry_out(session, services, run, row.id, decided, error)
        probed = probe_partitions(services, store_id, state, decided.partitions)
        losses, intact = losses | dict(probed.losses), intact | frozenset(probed.manifests)
    raise Conflict(f"the run changed {ROUNDS} times while the recovery of {failed} was planned")


def _still_true(state: RunState, losses: dict[PartitionId, Loss]) -> dict[PartitionId, Loss]:
    """Leave out what others have repaired meanwhile: a loss is that of one attempt."""
    return {
        partition: loss
        for partition, loss in losses.items()
        if known_loss(state, partition) is not None
        or (partition in state.results and state.results[partition].attempt == loss.attempt)
    }


def _carry_out(
    session: Session, services: Services, run: Run, attempt: str, plan: Plan, error: ResultUnavailable
) -> FailureDecision:
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    end(row, AttemptState.RETRYING, services.now(), failure=FailureClass.BACKTRACK, error=str(error))
    drop_leases(session, attempt)
    decision = from_budget(services, attempts_of(session, run.id, plan.failed), FailureClass.BACKTRACK, plan.summary())
    if decision.action is Action.FAIL:
        row.state = AttemptState.FAILED.value
        return decision
    failover = record_failover(session, run, row, plan, services.now())
    for step in plan.of(StepKind.RERUN):
        owe_clear(session, run, step.region, step.after_try, f"weir: {step.reason}", services.now(), failover)
    return decision

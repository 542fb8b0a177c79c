"""Whether a booked failure of a try may come again, and when: the restart strategy's word, or a budget's.

Invariant 7: a failure, its plan and the clears that the plan owes are one transaction.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.coordinator.budgets import ENVIRONMENT_DELAYS, LIMITS, restart_decision, spent
from weir.coordinator.services import Services
from weir.coordinator.values import Action, FailureDecision
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.models import AttemptRow
from weir.ledger.results import drop_leases
from weir.ledger.runs import Run
from weir.recovery.classify import FailureClass
from weir.recovery.restart import RestartStrategy
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId

UNREGISTERED_DELAY = 5.0
"""Seconds before the next try where the failed one had not even entered the ledger."""


def book(
    session: Session,
    services: Services,
    run: Run,
    attempt: str,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    """End the attempt with its failure and decide; an attempt that has ended already keeps its end."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    message = f"{type(error).__name__}: {error}"
    end(row, AttemptState.RETRYING, services.now(), failure=failure, error=message)
    drop_leases(session, attempt)
    decision = decide(attempts_of(session, run.id, RegionId(row.region, row.subtask)), failure, message, strategy)
    if decision.action is Action.FAIL:
        row.state = AttemptState.FAILED.value
    return decision


def decide(
    attempts: list[AttemptRow], failure: FailureClass, message: str, strategy: RestartStrategy
) -> FailureDecision:
    """Answer the newest failure of a region's attempts, which are in order of tries."""
    if failure is FailureClass.FATAL:
        return FailureDecision(Action.FAIL, 0, f"not recoverable by another try: {message}")
    if failure in LIMITS:
        return from_budget(attempts, failure, message)
    decision = restart_decision(strategy, attempts)
    if not decision.can_restart:
        return FailureDecision(Action.FAIL, 0, f"recovery is suppressed by {strategy}: {message}")
    return FailureDecision(Action.RETRY, decision.backoff_ms / 1000, f"{strategy}: {message}")


def from_budget(attempts: list[AttemptRow], failure: FailureClass, message: str) -> FailureDecision:
    """Answer a failure that has a budget of its own, of which the newest attempt has just used one."""
    used, limit = spent(attempts, failure), LIMITS[failure]
    if used > limit:
        return FailureDecision(
            Action.FAIL, 0, f"more than {limit} times {failure.value} since the last clear: {message}"
        )
    delay = 0.0
    if failure is FailureClass.ENVIRONMENT:
        delay = ENVIRONMENT_DELAYS[min(used, len(ENVIRONMENT_DELAYS)) - 1]
    return FailureDecision(Action.RETRY, delay, f"{failure.value} {used} of {limit}: {message}")


def already_ended(row: AttemptRow | None) -> FailureDecision:
    """Answer for an attempt that another has ended, or that the ledger does not know any more."""
    if row is None:
        return FailureDecision(
            Action.RETRY, UNREGISTERED_DELAY, "the ledger was built again, and does not know the attempt"
        )
    if row.state == AttemptState.FAILED.value:
        return FailureDecision(Action.FAIL, 0, row.error or "the attempt had failed before")
    # Its work is done or another's: the next try adopts it, or is told so.
    return FailureDecision(Action.RETRY, 1, f"attempt {row.id} is {row.state} already")

"""Whether a booked failure of a try may come again, and when: the restart strategy's word, or a budget's.

Invariant 7: a failure, its plan and the clears that the plan owes are one transaction.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.coordinator.budgets import patience, restart_answer, spent
from weir.coordinator.services import Services
from weir.coordinator.values import Action, FailureDecision
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.leases import drop_leases
from weir.ledger.models import AttemptRow
from weir.recovery.classify import FailureClass, hopeless_cause
from weir.recovery.labels import built_in_labels
from weir.recovery.restart import RestartStrategy
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId

UNREGISTERED_DELAY = 5.0
"""Seconds before the next try where the failed one had not even entered the ledger."""


def book(
    session: Session,
    services: Services,
    attempt: str,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    """End the attempt with its failure and decide; an attempt that has ended already keeps its end."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    end(row, AttemptState.RETRYING, services.now(), failure=failure, error=f"{type(error).__name__}: {error}")
    row.labels = built_in_labels(failure, error)
    drop_leases(session, attempt)
    decision = _decide(session, services, row, failure, error, strategy)
    if decision.action is Action.FAIL:
        row.state = AttemptState.FAILED.value
    return decision


def _decide(
    session: Session,
    services: Services,
    row: AttemptRow,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    message = f"{type(error).__name__}: {error}"
    region = RegionId(row.region, row.subtask)
    if failure is FailureClass.FATAL:
        cause = hopeless_cause(error)
        because = "" if cause is None or message.startswith(cause) else f" ({cause})"
        return FailureDecision(Action.FAIL, 0, f"not recoverable by another try{because}: {message}", row.id, failure)
    if services.recovery.budgets.limit_of(failure) is not None:
        return from_budget(services, attempts_of(session, row.run, region), failure, message)
    answer = restart_answer(session, strategy, row.run, region)
    action, reason = Action.RETRY, f"{answer.reason}: {message}"
    if answer.refusal is not None:
        action, reason = Action.FAIL, f"recovery is suppressed by {reason}"
    delay = answer.delay_ms / 1000
    return FailureDecision(action, delay, reason, row.id, failure, answer.refusal, answer.failures)


def from_budget(services: Services, attempts: list[AttemptRow], failure: FailureClass, message: str) -> FailureDecision:
    """Answer a failure that has a budget of its own, of which the newest of a region's attempts has just used one."""
    used, limit, newest = spent(attempts, failure), services.recovery.budgets.limit_of(failure) or 0, attempts[-1]
    if used > limit:
        reason = f"more than {limit} times {failure.value} since the last commit or clear: {message}"
        return FailureDecision(Action.FAIL, 0, reason, newest.id, failure)
    delay = patience(newest.run, RegionId(newest.region, newest.subtask), failure, used)
    return FailureDecision(Action.RETRY, delay, f"{failure.value} {used} of {limit}: {message}", newest.id, failure)


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

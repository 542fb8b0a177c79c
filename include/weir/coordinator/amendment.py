"""What is added to a failure after it was booked: labels, and the word of a policy of the user's own.

Invariant: only an attempt that has failed is touched, and what was decided by a limit or for recovery stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import select

from weir.coordinator.carrying_out import restart_others
from weir.coordinator.services import Services
from weir.coordinator.values import Action, FailureDecision
from weir.ledger.models import AttemptRow, FailoverRow
from weir.ledger.runs import run_by_id
from weir.recovery.answer import Refusal
from weir.recovery.classify import FailureClass
from weir.recovery.run_state import AttemptState

_FAILED = (AttemptState.RETRYING.value, AttemptState.FAILED.value)


def may_be_overruled(decision: FailureDecision) -> bool:
    """Whether a policy of the user's own has a say: in an application's failure, unless a limit is reached."""
    return (
        bool(decision.attempt)
        and decision.failure is FailureClass.APPLICATION
        and decision.refusal is not Refusal.LIMIT
    )


def overrule(
    services: Services, dataflow: str, decision: FailureDecision, action: Action, delay_seconds: float, reason: str
) -> FailureDecision:
    """Decide otherwise about a booked failure; the decision stays if it is not open to that. Raises Retryable.

    What the strategy had refused and is tried again now restarts others, where the dataflow wants that.
    """
    if not may_be_overruled(decision):
        return decision
    with services.ledger.transaction(dataflow) as session:
        row = session.get(AttemptRow, decision.attempt)
        if row is None or row.state not in _FAILED:
            return decision
        was_refused = row.state == AttemptState.FAILED.value
        row.state = (AttemptState.FAILED if action is Action.FAIL else AttemptState.RETRYING).value
        if was_refused and action is Action.RETRY:
            restart_others(session, services, run_by_id(session, row.run), row, FailureClass.APPLICATION)
    return replace(decision, action=action, delay_seconds=delay_seconds, reason=reason)


def label(services: Services, dataflow: str, attempt: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Add labels to those of a failed attempt and of its failover, and answer all of them. Raises Retryable."""
    with services.ledger.transaction(dataflow) as session:
        row = session.get(AttemptRow, attempt)
        if row is None:
            return dict(labels)
        row.labels = {**labels, **(row.labels or {})}
        for failover in session.scalars(select(FailoverRow).where(FailoverRow.attempt == attempt)):
            failover.labels = row.labels
        return dict(row.labels)

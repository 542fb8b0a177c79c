"""What a failure counts against: the restart strategy, or a budget of its own."""

from __future__ import annotations

from collections.abc import Sequence

from weir.ledger.attempts import failures_since_clear
from weir.ledger.models import AttemptRow
from weir.recovery.classify import FailureClass
from weir.recovery.restart import Decision, RestartStrategy

COUNTED = (FailureClass.APPLICATION, FailureClass.KILLED)
"""The failures that the restart strategy decides about."""

LIMITS = {FailureClass.BACKTRACK: 20, FailureClass.CONFLICT: 20, FailureClass.ENVIRONMENT: 30}
"""How often a task may fail for reasons that are not its own, since a person last cleared it."""

ENVIRONMENT_DELAYS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Seconds to wait for a store or a Spark server that does not answer: first hardly, then patiently.

All tries together last for three quarters of an hour: a person may have to make room on a disk."""


def restart_decision(strategy: RestartStrategy, attempts: Sequence[AttemptRow]) -> Decision:
    """The strategy's word after the newest failure of `attempts`."""
    failures = failures_since_clear(attempts, COUNTED)
    return strategy.decide([int(at.timestamp() * 1000) for at in failures])


def spent(attempts: Sequence[AttemptRow], failure: FailureClass) -> int:
    """How much of a budget is used up."""
    return len(failures_since_clear(attempts, (failure,)))

"""A retry policy of the user's own, asked after Weir has booked the failure.

Invariant: it has a say in an application's failure only; recovery and the limits of failures stay as decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision

from weir.coordinator.amendment import may_be_overruled
from weir.coordinator.values import Action

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from weir.coordinator.coordinator import Coordinator
    from weir.coordinator.values import FailureDecision


def second_word(
    coordinator: Coordinator,
    policy: RetryPolicy | None,
    decision: FailureDecision,
    exception: BaseException,
    max_tries: int,
    context: Context,
) -> tuple[FailureDecision, str]:
    """The decision after the policy's word, and what is to be said of that word; Raises Retryable.

    The policy is told of the task's own failures as its tries: those that Weir recovers from are no business of it.
    """
    if policy is None or not may_be_overruled(decision):
        return decision, ""
    name = type(policy).__name__
    declared = context["task"].declared
    try:
        said = policy.evaluate(exception, decision.failures, max_tries, context)
    except Exception as error:  # noqa: BLE001  as Airflow does with a policy that fails
        return decision, f"; {name} failed: {type(error).__name__}: {error}"
    if not isinstance(said, RetryDecision):
        return decision, f"; {name} answered a {type(said).__name__}, not a RetryDecision"
    reason = f"{name}: {said.reason or said.action.value}"
    if said.action is RetryAction.FAIL:
        return coordinator.overrule(declared.flow.name, decision, Action.FAIL, 0, f"{reason}; {decision.reason}"), ""
    if said.action is RetryAction.RETRY and said.retry_delay is not None:
        seconds = max(0.0, said.retry_delay.total_seconds())
        told = f"{reason}; {decision.reason}"
        return coordinator.overrule(declared.flow.name, decision, Action.RETRY, seconds, told), ""
    return decision, ""

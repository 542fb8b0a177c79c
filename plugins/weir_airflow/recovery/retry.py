"""The retry policy of Weir's tasks, which Airflow asks in the task process after every failure but a kill.

Invariant: DAG files import this at every parse, so it imports nothing that opens the ledger. The decision is that of
`weir.attempts.failing`; after a kill the next begin decides.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from weir_airflow.dags.callbacks import WORD

if TYPE_CHECKING:
    from airflow.sdk import Context


class WeirRetryPolicy(RetryPolicy):  # type: ignore[misc]  # Airflow's classes are not followed
    """Books the failure with the coordinator, has lost producers cleared, and answers when to try again."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide by the ledger; `try_number` counts from 1."""
        if context is None:
            return RetryDecision.default()
        from weir.restarts.answer import Action  # noqa: PLC0415  spares each parse of a DAG file its imports
        from weir_airflow.recovery.failing import decide  # noqa: PLC0415

        decision = decide(exception, try_number, max_tries, context)
        cast("dict[str, Any]", context)[WORD] = decision.failure  # for the callbacks, which Airflow calls next
        if decision.action is Action.FAIL:
            return RetryDecision.fail(decision.reason)
        return RetryDecision.retry(timedelta(seconds=decision.delay_seconds), decision.reason)

    def serialize(self) -> dict[str, Any]:
        """Return nothing: the policy has no settings of its own."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WeirRetryPolicy:
        """Build the policy again."""
        del data
        return cls()

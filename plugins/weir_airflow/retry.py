"""The retry policy of Weir's tasks. Invariant: what follows a failure is decided by `weir.attempts.failing`.

Airflow asks in the task process, after every failure but a kill; what a kill leaves undone the next begin does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from weir.coordinator.values import FailureDecision


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
        # Here rather than above: DAG files import this module at every parse.
        from weir.attempts.failing import decide_failure  # noqa: PLC0415
        from weir.coordinator.values import Action  # noqa: PLC0415

        decision = decide_failure(
            exception, max_tries - try_number, lambda: _booked(exception, try_number, max_tries, context)
        )
        if decision.action is Action.FAIL:
            return RetryDecision.fail(decision.reason)
        return RetryDecision.retry(timedelta(seconds=decision.delay_seconds), decision.reason)

    def serialize(self) -> dict[str, Any]:
        """Nothing: the policy has no settings of its own."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WeirRetryPolicy:
        """Build the policy again."""
        del data
        return cls()


def _booked(exception: BaseException, try_number: int, max_tries: int, context: Context) -> FailureDecision:
    from weir.attempts.failing import FailedTry, book_failure  # noqa: PLC0415
    from weir_airflow.enrichers import labels_of_users  # noqa: PLC0415
    from weir_airflow.office import Office  # noqa: PLC0415
    from weir_airflow.ports import AirflowTask  # noqa: PLC0415
    from weir_airflow.region_run import task_key  # noqa: PLC0415
    from weir_airflow.user_policy import second_word  # noqa: PLC0415

    declared = context["task"].declared
    with Office.open() as office:
        strategy = declared.restart_strategy(office.recovery.restart)
        limit = strategy.limits.per_task
        most = max_tries if limit is None else limit
        policy, coordinator = declared.recovery.retry_policy, office.coordinator
        return book_failure(
            AirflowTask(office, _no_log),
            FailedTry(declared.flow.name, task_key(context), try_number, exception, strategy),
            lambda decision: second_word(coordinator, policy, decision, exception, most, context),
            lambda labels: labels_of_users(office.recovery.failure_enrichers, labels, exception, context),
        )


def _no_log(message: str) -> None:
    """The decision's reason, which Airflow logs, has all that is to be said."""

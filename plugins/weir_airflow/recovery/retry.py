"""The retry policy of Weir's tasks. Invariant: what follows a failure is decided by `weir.attempts.failing`.

Airflow asks in the task process, after every failure but a kill; what a kill leaves undone the next begin does.

Functions that label failures, found and called.

Invariant: one that cannot be found, fails or hangs is a complaint, and never the end of the task.

A retry policy of the user's own, asked after Weir has booked the failure.

Invariant: it has a say in an application's failure only; recovery and the limits of failures stay as decided.
"""

from __future__ import annotations

import importlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision, RetryPolicy

from weir.attempts.failure import may_be_overruled
from weir.coordination.values import Action
from weir.execution.labels import TYPE, Enriched, Failure, enriched, exception_name
from weir.ledger.runs import epoch_of
from weir_airflow.tasks.region_run import data_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from weir.attempts.coordinator import Coordinator
    from weir.coordination.values import FailureDecision
    from weir.execution.labels import Enricher


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
        from weir.coordination.values import Action  # noqa: PLC0415

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
    from weir_airflow.tasks.context import Office  # noqa: PLC0415
    from weir_airflow.tasks.ports import AirflowTask  # noqa: PLC0415
    from weir_airflow.tasks.region_run import task_key  # noqa: PLC0415

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


_MESSAGE_LENGTH: Final = 4_000
"""What a function is told of a message, of which Java's may be very long."""

PATIENCE_SECONDS: Final = 10.0
"""What all functions together may take: Airflow sets no limit to what follows a failure."""


def labels_of_users(
    of_deployment: Iterable[str], labels: Mapping[str, str], exception: BaseException, context: Context
) -> Enriched:
    """Ask the dataflow's functions and those of the deployment about a failure with these built-in labels."""
    declared, task, ti = context["task"].declared, context["task"], context["ti"]
    names = (*declared.recovery.failure_enrichers, *of_deployment)
    if not names:
        return Enriched({}, ())
    failure = Failure(
        dataflow=declared.flow.name,
        epoch=epoch_of(data_interval(context)[0]),
        region=getattr(task, "weir_region", task.task_id.removeprefix(declared.task_prefix)),
        subtask=max(-1 if ti.map_index is None else ti.map_index, 0),
        try_number=ti.try_number,
        error=exception_name(exception),
        message=str(exception)[:_MESSAGE_LENGTH],
        failure_class=labels.get(TYPE, ""),
    )
    return ask_enrichers(failure, names)


def ask_enrichers(failure: Failure, names: Iterable[str], seconds: float = PATIENCE_SECONDS) -> Enriched:
    """Ask the functions, "module:function", for labels; what is not answered in time is not waited for."""
    answers: list[Enriched] = []
    called = tuple(dict.fromkeys(names))
    # A thread that hangs does not keep the process, since it is a daemon.
    asking = threading.Thread(
        target=lambda: answers.append(enriched(failure, {name: _called(name) for name in called})),
        name="weir-enrichers",
        daemon=True,
    )
    asking.start()
    asking.join(seconds)
    if answers:
        return answers[0]
    return Enriched({}, (f"{', '.join(called)}: no answer within {seconds:g} s",))


def _called(name: str) -> Enricher:
    """The function, found when it is called, so that what is wrong with it is its own failure."""

    def call(failure: Failure) -> Mapping[str, str]:
        module, _, function = name.partition(":")
        found: Enricher = getattr(importlib.import_module(module), function)
        return found(failure)

    return call


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

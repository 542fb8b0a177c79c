"""Booking a failed try in Airflow, and asking the user's retry policy and failure enrichers.

Invariant: a retry policy of the user's decides about an application's failure only; recovery and the limits of failures
hold whatever it answers. A policy or enricher that is missing, fails or hangs is reported, and never ends the task.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision

from weir.attempts.failing import Users, decide_failure, without_ledger
from weir.attempts.failure import PolicyAnswer
from weir.coordination.values import FailedTry
from weir.errors import Misconfigured, WeirError
from weir.execution.labels import TYPE, Enriched, Failure, enriched, exception_name
from weir.ledger.runs import epoch_of
from weir.restarts.answer import Action
from weir_airflow.tasks.context import TaskContext, airflow_api
from weir_airflow.tasks.epochs import start_of_epoch
from weir_airflow.tasks.ports import AirflowTask
from weir_airflow.tasks.running import clear_number, task_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from weir.execution.labels import Enricher
    from weir.restarts.answer import FailureDecision
    from weir.topology.ids import Epoch


MESSAGE_LENGTH: Final = 4_000
"""How much of a failure's message an enricher gets: those of Java may be very long."""

ENRICHER_SECONDS: Final = 10.0
"""How long all enrichers together may take: Airflow sets no limit to what follows a failure."""


def decide(exception: BaseException, try_number: int, max_tries: int, context: Context) -> FailureDecision:
    """Decide what follows the failure of a try; `try_number` counts from 1."""
    declared = context["task"].declared
    try:
        with TaskContext.open() as task_context:
            strategy = declared.restart_strategy(task_context.recovery.restart)
            limit = strategy.limits.per_task
            failed = FailedTry(
                dataflow=declared.flow.name,
                key=task_key(context),
                try_number=try_number,
                ti_id=str(context["ti"].id),
                error=exception,
                strategy=strategy,
                epoch=_epoch(context),
                clear_number=clear_number(context),
            )
            users = UsersOfTask(
                of_deployment=task_context.recovery.failure_enrichers,
                exception=exception,
                most=max_tries if limit is None else limit,
                context=context,
            )
            return decide_failure(AirflowTask(task_context, _no_log, context), failed, users)
    except WeirError as trouble:
        return without_ledger(exception, trouble, max_tries - try_number, airflow_api, task_key(context))


def _epoch(context: Context) -> Epoch | None:
    try:
        return epoch_of(start_of_epoch(context["task"].declared, context))
    except (Misconfigured, OverflowError):  # no epoch, or one in UTC before the year 1: refused by the begin
        return None


def _no_log(message: str) -> None:
    """Log nothing: Airflow logs the decision's reason, which has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersOfTask(Users):
    """The retry policy of a dataflow, and the enrichers of it and of its deployment, about one failure.

    The policy gets the number of the task's own failures as its try number, of which there may be `most`: failures that
    Weir recovers from do not count.
    """

    of_deployment: tuple[str, ...]
    exception: BaseException
    most: int
    context: Context

    def answer(self, decision: FailureDecision) -> PolicyAnswer:
        """Return the answer of the dataflow's policy, or the reason why it has none that can be used."""
        policy = self.context["task"].declared.recovery.retry_policy
        if policy is None:
            return PolicyAnswer()
        name = type(policy).__name__
        try:
            answer = policy.evaluate(self.exception, decision.failures, self.most, self.context)
        except Exception as error:  # noqa: BLE001  as Airflow does with a policy that fails
            return PolicyAnswer(None, f"{name} failed: {type(error).__name__}: {error}")
        if not isinstance(answer, RetryDecision):
            return PolicyAnswer(None, f"{name} answered a {type(answer).__name__}, not a RetryDecision")
        reason = f"{name}: {answer.reason or answer.action.value}"
        if answer.action is RetryAction.FAIL:
            return PolicyAnswer(Action.FAIL, reason)
        if answer.action is RetryAction.RETRY and answer.retry_delay is not None:
            return PolicyAnswer(Action.RETRY, reason, max(0.0, answer.retry_delay.total_seconds()))
        return PolicyAnswer()

    def label(self, labels: Mapping[str, str]) -> Enriched:
        """Ask the enrichers about the failure, which has these built-in labels."""
        task, ti = self.context["task"], self.context["ti"]
        declared = task.declared
        names = (*declared.recovery.failure_enrichers, *self.of_deployment)
        if not names:
            return Enriched({}, ())
        failure = Failure(
            dataflow=declared.flow.name,
            epoch=_epoch(self.context) or "",
            region=getattr(task, "weir_region", task.task_id.removeprefix(declared.task_prefix)),
            subtask=max(-1 if ti.map_index is None else ti.map_index, 0),
            try_number=ti.try_number,
            error=exception_name(self.exception),
            message=str(self.exception)[:MESSAGE_LENGTH],
            failure_class=labels.get(TYPE, ""),
        )
        return ask_enrichers(failure, names)


def ask_enrichers(failure: Failure, names: Iterable[str], seconds: float = ENRICHER_SECONDS) -> Enriched:
    """Ask the functions, "module:function", for labels, and wait no longer than `seconds` for their answers."""
    answers: list[Enriched] = []
    called = tuple(dict.fromkeys(names))
    # A thread that hangs does not keep the process, since it is a daemon.
    asking = threading.Thread(
        target=lambda: answers.append(enriched(failure, called, _load)),
        name="weir-enrichers",
        daemon=True,
    )
    asking.start()
    asking.join(seconds)
    if answers:
        return answers[0]
    return Enriched({}, (f"{', '.join(called)}: no answer within {seconds:g} s",))


def _load(name: str) -> Enricher:
    module, _, function = name.partition(":")
    found: Enricher = getattr(importlib.import_module(module), function)
    return found

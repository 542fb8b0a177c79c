"""Whether and when a failed try runs again: the whole decision, by the class of the failure.

- *fenced*: another try counts, and nothing is recorded of this one;
- *fatal*: no other try can help;
- *application*, *killed*: the limits of failures, then the restart strategy (`weir.restarts.strategy`);
- *backtrack*, *conflict*, *engine*, *environment*: the budget of the class, and no strategy.

The class is told by `weir.execution.failure_class`; delays that nobody sets are in `weir.restarts.delays`; which other
tasks run again is decided by `weir.recovery.rules.decision`.

Invariants: a failure counts against the restart strategy or against a budget, never against both. A limit holds under
every strategy and every policy of a user's, and counts failures that the strategy merges into one attempt as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from weir.errors import Misconfigured, Retryable
from weir.execution.failure_class import FailureClass, hopeless_cause
from weir.execution.failure_words import message_of
from weir.restarts.delays import JITTER, LONG_OUTAGE_BELOW, LONG_OUTAGE_DELAY, PATIENCE, UNDECIDED_DELAY
from weir.restarts.options import PER_RUN, PER_TASK, whole_number
from weir.restarts.strategy import Decision, RestartStrategy, seeded_jitter
from weir.secrecy import without_secrets

COUNTED = (FailureClass.APPLICATION, FailureClass.KILLED)
"""The classes of failures that the restart strategy decides about."""

PATIENT_WITH = (FailureClass.ENVIRONMENT, FailureClass.ENGINE)
"""The classes of failures whose next try waits longer each time."""


class Action(Enum):
    """The action after a failed try."""

    RETRY = "retry"
    FAIL = "fail"


class Refusal(Enum):
    """The reason why no other try is made."""

    STRATEGY = "strategy"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    """The decision whether and when a failed task instance runs again, with the reason.

    `attempt` is empty where no failure was recorded. For a failure of the application, `failures` counts those of the
    task, this one included, `refusal` names the limit that allows no further try, and the delay is the strategy's.
    """

    action: Action
    reason: str
    delay_seconds: float = 0.0
    attempt: str = ""
    failure: FailureClass | None = None
    refusal: Refusal | None = None
    failures: int = 0

    @property
    def may_be_overridden(self) -> bool:
        """Report whether a user's policy may override it: a failure of the application below the limits."""
        is_of_application = self.failure is FailureClass.APPLICATION
        return bool(self.attempt) and is_of_application and self.refusal is not Refusal.LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The failures of a task that count; `attempt` is the newest. Times are in ms and ascending."""

    attempt: str
    run: str
    task: str
    """The seed of jitters: other tasks have another one, so that tasks that fail together do not restart together."""
    used: int
    """How many are of the newest one's class since the task last committed or a person cleared it."""
    own: Sequence[int]
    """When the task failed by what the restart strategy decides about, since a person last cleared it."""
    of_run: Sequence[int] = ()
    """The same of all tasks of the run; needed only where a run's failures are limited."""


def decide_again(
    failure: FailureClass, error: BaseException, failures: Failures, strategy: RestartStrategy, budgets: Budgets
) -> FailureDecision:
    """Decide about the newest failure of a task, which `error` has caused."""
    if failure is FailureClass.FATAL:
        return hopeless(error, failures.attempt)
    if budgets.limit_of(failure) is not None:
        return by_budget(failure, message_of(error), failures, budgets)
    decision = by_strategy(failure, strategy, failures)
    suppressed = "" if decision.refusal is None else "recovery is suppressed by "
    return replace(decision, reason=f"{suppressed}{decision.reason}: {message_of(error)}")


def hopeless(error: BaseException, attempt: str = "") -> FailureDecision:
    """Decide about an error that no other try can help; `attempt` is the one whose failure was recorded."""
    message, cause = message_of(error), hopeless_cause(error)
    because = "" if cause is None or message.startswith(cause) else f" ({cause})"
    reason = f"not recoverable by another try{because}: {message}"
    return FailureDecision(action=Action.FAIL, reason=reason, attempt=attempt, failure=FailureClass.FATAL)


# By a budget


def by_budget(failure: FailureClass, message: str, failures: Failures, budgets: Budgets) -> FailureDecision:
    """Decide by the budget of the failure's class."""
    used, limit = failures.used, budgets.limit_of(failure) or 0
    if used > limit:
        action, delay = Action.FAIL, 0.0
        reason = f"more than {limit} times {failure.value} since the last commit or clear: {message}"
    else:
        action, delay = Action.RETRY, patience(failures.task, failure, used)
        reason = f"{failure.value} {used} of {limit}: {message}"
    return FailureDecision(action=action, reason=reason, delay_seconds=delay, attempt=failures.attempt, failure=failure)


def patience(task: str, failure: FailureClass, used: int) -> float:
    """Return the seconds before the next try after the failure of this number (from 1), with a jitter per task."""
    if failure not in PATIENT_WITH:
        return 0.0
    milliseconds = int(PATIENCE[min(used, len(PATIENCE)) - 1] * 1000)
    return (milliseconds + seeded_jitter(task)(used, int(milliseconds * JITTER))) / 1000


OPTION_PREFIX = "maximum_"


@dataclass(frozen=True, slots=True)
class Budgets:
    """The number of failures of each kind that a task may have; the next is final.

    The options are `maximum_` and these names. Failures count since the task last committed or a person cleared it.
    """

    backtracks: int = 20
    conflicts: int = 20
    engine_losses: int = 30
    environment_failures: int = 30

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise Misconfigured.of(
                    "restarts.number_negative",
                    option_prefix=OPTION_PREFIX,
                    field=field.name,
                    value=getattr(self, field.name),
                )

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> Budgets:
        """Read `maximum_backtracks` and so on; other options are ignored. Raises Misconfigured."""
        return Budgets(
            **{
                name: whole_number(OPTION_PREFIX + name, options[OPTION_PREFIX + name])
                for name in (field.name for field in fields(Budgets))
                if OPTION_PREFIX + name in options
            }
        )

    def limit_of(self, failure: FailureClass) -> int | None:
        """Return the budget of a class of failures; None for those that the restart strategy decides about."""
        return {
            FailureClass.BACKTRACK: self.backtracks,
            FailureClass.CONFLICT: self.conflicts,
            FailureClass.ENGINE: self.engine_losses,
            FailureClass.ENVIRONMENT: self.environment_failures,
        }.get(failure)


# By the limits of failures and the restart strategy


def by_strategy(failure: FailureClass, strategy: RestartStrategy, failures: Failures) -> FailureDecision:
    """Decide by the limits, and then by the strategy, which there are failures of the task's own for.

    The reason does not say what has failed.
    """
    decisions = list(strategy.decisions(failures.own, seeded_jitter(failures.task)))
    newest, limits, run = decisions[-1], strategy.limits, failures.run
    count, total = _attempts(decisions), _attempts(strategy.decisions(failures.of_run, seeded_jitter(run)))
    refusal, reason = None if newest.can_restart else Refusal.STRATEGY, str(strategy)
    if limits.per_task is not None and count > limits.per_task:
        times = "once" if count == 1 else f"{count} times"
        refusal = Refusal.LIMIT
        reason = f"{PER_TASK} is {limits.per_task}, and the task has failed {times} since a person's last clear"
    elif limits.per_run is not None and total > limits.per_run:
        refusal = Refusal.LIMIT
        reason = f"{PER_RUN} is {limits.per_run}, and run {run} has had {total} since a person's last clear"
    return FailureDecision(
        action=Action.RETRY if refusal is None else Action.FAIL,
        reason=reason,
        delay_seconds=newest.backoff_ms / 1000,
        attempt=failures.attempt,
        failure=failure,
        refusal=refusal,
        failures=count,
    )


def _attempts(decisions: Iterable[Decision]) -> int:
    return sum(decision.new_attempt for decision in decisions)


# Where nothing is counted


def fenced(error: BaseException) -> FailureDecision:
    """Decide about a try that was fenced.

    Airflow ignores the answer of a task instance that was cleared. It obeys it where only the ledger has fenced the try
    (a restored ledger): then another try is right.
    """
    return FailureDecision(action=Action.RETRY, reason=f"fenced: {error}", delay_seconds=UNDECIDED_DELAY)


def unregistered(error: BaseException, failure: FailureClass) -> FailureDecision:
    """Decide about a try that has failed before it was registered: only what no other try can help is final."""
    action = Action.FAIL if failure is FailureClass.FATAL else Action.RETRY
    reason = without_secrets(str(error))
    return FailureDecision(action=action, reason=reason, delay_seconds=UNDECIDED_DELAY, failure=failure)


def unbooked(error: BaseException, trouble: BaseException, tries_left: int) -> FailureDecision:
    """Decide about a failure that could not be booked, because of `trouble`; Airflow allows `tries_left` more tries."""
    if not isinstance(trouble, Retryable):
        reason = f"{trouble} (while booking: {without_secrets(str(error))})"
        return FailureDecision(action=Action.FAIL, reason=reason)
    delay = UNDECIDED_DELAY if tries_left >= LONG_OUTAGE_BELOW else LONG_OUTAGE_DELAY
    reason = f"Weir could not book the failure: {trouble}"
    return FailureDecision(action=Action.RETRY, reason=reason, delay_seconds=delay)

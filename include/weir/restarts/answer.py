"""The decision about the newest failure of a task: by the failure limits, the restart strategy, or a budget.

Invariants: a failure counts against the restart strategy or against a budget, never against both. A limit holds under
every strategy, and counts failures that the strategy merges into one attempt as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from weir.errors import Message, Misconfigured
from weir.execution.failure_class import FailureClass
from weir.restarts.options import PER_RUN, PER_TASK, whole_number
from weir.restarts.strategy import RestartStrategy, seeded_jitter


class Refusal(Enum):
    """The reason why no other try is made."""

    STRATEGY = "strategy"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The decision whether a task runs again (`refusal` is None), with the delay in ms and the reason.

    `delay_ms` is the strategy's, also with a refusal. `failures` counts the failures of the task, with the newest.
    """

    delay_ms: int
    reason: str
    failures: int
    refusal: Refusal | None = None


def decide_restart(
    strategy: RestartStrategy, task: str, own: Sequence[int], of_run: Callable[[], tuple[str, Sequence[int]]]
) -> RestartDecision:
    """Decide about the newest of the failures of a task (times in ms, ascending; at least one).

    `task` is the seed of the jitter and the same in all runs, so that tasks that fail together do not restart together.
    `of_run` returns the run's name and the failures of all its tasks; it is called only if they have a limit.
    """
    decisions = list(strategy.decisions(own, seeded_jitter(task)))
    newest, limits = decisions[-1], strategy.limits
    count = sum(decision.new_attempt for decision in decisions)
    if limits.per_task is not None and count > limits.per_task:
        reason = f"{PER_TASK} is {limits.per_task}, and the task has failed {_times(count)} since a person's last clear"
        return RestartDecision(newest.backoff_ms, reason, count, Refusal.LIMIT)
    if limits.per_run is not None:
        run, times = of_run()
        total = sum(decision.new_attempt for decision in strategy.decisions(times, seeded_jitter(run)))
        if total > limits.per_run:
            reason = f"{PER_RUN} is {limits.per_run}, and run {run} has had {total} since a person's last clear"
            return RestartDecision(newest.backoff_ms, reason, count, Refusal.LIMIT)
    return RestartDecision(newest.backoff_ms, str(strategy), count, None if newest.can_restart else Refusal.STRATEGY)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
                raise Misconfigured(
                    Message(
                        "restarts.number_negative",
                        option_prefix=OPTION_PREFIX,
                        field=field.name,
                        value=getattr(self, field.name),
                    )
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

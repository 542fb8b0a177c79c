"""The answer to the newest failure of a task: by the limits of failures, then by the restart strategy.

Invariant: a limit holds whatever the strategy says, and counts as one what the strategy merges into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from weir.recovery.restart import RestartStrategy, seeded_jitter
from weir.recovery.restart_options import PER_RUN, PER_TASK


class Refusal(Enum):
    """What allows no other try."""

    STRATEGY = "strategy"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a task runs again, after how many ms, and why (not); `delay_ms` is the strategy's also if it refuses.

    `failures` are those of the task that count, this one among them.
    """

    delay_ms: int
    reason: str
    failures: int
    refusal: Refusal | None = None


def answer(
    strategy: RestartStrategy, task: str, own: Sequence[int], of_run: Callable[[], tuple[str, Sequence[int]]]
) -> Answer:
    """Answer the newest of the failures of a task (times in ms, ascending; at least one).

    `task` names it across runs: it is the seed of its jitter, so that tasks that fail together do not come back
    together. `of_run` tells the run's name and the failures of all its tasks; asked only if there is a limit of them.
    """
    decisions = list(strategy.decisions(own, seeded_jitter(task)))
    newest, limits = decisions[-1], strategy.limits
    count = sum(decision.new_attempt for decision in decisions)
    if limits.per_task is not None and count > limits.per_task:
        reason = f"{PER_TASK} is {limits.per_task}, and the task has failed {_times(count)} since a person's last clear"
        return Answer(newest.backoff_ms, reason, count, Refusal.LIMIT)
    if limits.per_run is not None:
        run, times = of_run()
        total = sum(decision.new_attempt for decision in strategy.decisions(times, seeded_jitter(run)))
        if total > limits.per_run:
            reason = f"{PER_RUN} is {limits.per_run}, and run {run} has had {total} since a person's last clear"
            return Answer(newest.backoff_ms, reason, count, Refusal.LIMIT)
    return Answer(newest.backoff_ms, str(strategy), count, None if newest.can_restart else Refusal.STRATEGY)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

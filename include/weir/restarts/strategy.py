"""Restart strategies. Invariant: a decision depends on the recorded failure times alone.

The arithmetic is that of Flink 2.3's RestartBackoffTimeStrategy classes (FLIP-364). Flink notifies a stateful strategy
of failures; here a strategy is a value, and a decision is a fold over the times of all failures so far, so that the
retry policy and the begin of an attempt in another process decide alike. The failure limits are FLIP-1's.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from weir.dataflow.arguments import answering
from weir.errors import Misconfigured
from weir.restarts.options import FLINK_1_18, PER_RUN, PER_TASK, parse_options

Jitter = Callable[[int, int], int]
"""Given the time of a failure and an offset o, both in ms, return a whole number in [-o, o], a function of both."""

UNLIMITED = 2**31 - 1
"""Flink's default for the attempts of exponential-delay."""

DEFAULT_FAILURES = 3
"""How many failures of a task are recovered from where no strategy is configured."""

_LONG_AGO = -(2**31)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a failure; `new_attempt` is false if it fell into the back-off of an earlier failure."""

    can_restart: bool
    backoff_ms: int
    new_attempt: bool


def seeded_jitter(seed: str) -> Jitter:
    """Return a jitter that is uniform over seeds and failures, and the same for the same seed and failure."""

    def jitter(failed_at: int, offset: int) -> int:
        digest = hashlib.sha256(f"{seed}\n{failed_at}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % (2 * offset + 1) - offset

    return jitter


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """The number of failures of a task, and of all tasks of a run, that are recovered from, under every strategy.

    The next failure is final. None: not set, so that there is no limit.
    """

    per_task: int | None = None
    per_run: int | None = None

    def __post_init__(self) -> None:
        for option, value in ((PER_TASK, self.per_task), (PER_RUN, self.per_run)):
            if value is not None:
                _at_least("every restart strategy", option, value, 0)

    def filled_from(self, other: FailureLimits) -> FailureLimits:
        """Return these limits, and those of `other` where these are not set."""
        return FailureLimits(
            other.per_task if self.per_task is None else self.per_task,
            other.per_run if self.per_run is None else self.per_run,
        )


NO_LIMITS = FailureLimits()


@dataclass(frozen=True, slots=True)
class RestartStrategy(ABC):
    """A rule that decides about failures: `none`, `fixed-delay`, `failure-rate` or `exponential-delay`."""

    limits: FailureLimits = field(default=NO_LIMITS, kw_only=True)
    """The failure limits, which the caller of `decisions` applies, since they count the whole run."""

    name: ClassVar[str]
    """Flink's name of the strategy."""

    def __str__(self) -> str:
        return f"restart strategy {self.name}"

    @abstractmethod
    def decisions(self, failures: Sequence[int], jitter: Jitter) -> Iterator[Decision]:
        """Decide about each of the failures (times in ms, ascending)."""

    @staticmethod
    def default() -> RestartStrategy:
        """Return Weir's default: exponential-delay, and at most 3 failures of a task (Flink's has no limit)."""
        return RestartChoice().resolved()

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> RestartStrategy:
        """Build the strategy that options like `{"restart-strategy.type": "fixed-delay", ...}` describe.

        Times are timedeltas or texts like "10 s" (without a unit: ms, as in Flink). Without a type it is the default,
        altered by the exponential-delay options given. The type flink-1.18 gives here what it is without state: pass
        it to `dataflow_dag` as options. Raises Misconfigured.
        """
        return RestartChoice.from_options(options).resolved()

    @staticmethod
    def from_retries(retries: int, retry_delay: timedelta) -> RestartStrategy:
        """Build the strategy of Airflow's `retries` and `retry_delay`: fixed-delay, with as many failures at most."""
        return FixedDelay(retries, retry_delay // timedelta(milliseconds=1), limits=FailureLimits(per_task=retries))


@answering
@dataclass(frozen=True, slots=True)
class NoRestart(RestartStrategy):
    """Every failure is final."""

    name: ClassVar[str] = "none"

    def decisions(self, failures: Sequence[int], jitter: Jitter) -> Iterator[Decision]:  # noqa: ARG002 - no jitter here
        """Refuse each failure."""
        return (Decision(can_restart=False, backoff_ms=0, new_attempt=True) for _ in failures)


@answering
@dataclass(frozen=True, slots=True)
class FixedDelay(RestartStrategy):
    """At most `attempts` restarts, each after the same delay."""

    attempts: int = 1
    delay_ms: int = 1_000
    name: ClassVar[str] = "fixed-delay"

    def __post_init__(self) -> None:
        _at_least(self.name, "attempts", self.attempts, 0)
        _at_least(self.name, "delay", self.delay_ms, 0)

    def decisions(self, failures: Sequence[int], jitter: Jitter) -> Iterator[Decision]:  # noqa: ARG002 - no jitter here
        """Count the failures."""
        for count, _ in enumerate(failures, 1):
            yield Decision(count <= self.attempts, self.delay_ms, new_attempt=True)


@answering
@dataclass(frozen=True, slots=True)
class FailureRate(RestartStrategy):
    """At most `max_failures` within any interval (FLINK-20752: that many are allowed, one more is not)."""

    max_failures: int = 1
    interval_ms: int = 60_000
    delay_ms: int = 1_000
    name: ClassVar[str] = "failure-rate"

    def __post_init__(self) -> None:
        _at_least(self.name, "max-failures-per-interval", self.max_failures, 1)
        _at_least(self.name, "failure-rate-interval", self.interval_ms, 1)
        _at_least(self.name, "delay", self.delay_ms, 0)

    def decisions(self, failures: Sequence[int], jitter: Jitter) -> Iterator[Decision]:  # noqa: ARG002 - no jitter here
        """Compare each failure with the one that lies `max_failures` before it."""
        for place, failed_at in enumerate(failures):
            earliest = place - self.max_failures
            allowed = earliest < 0 or failed_at - failures[earliest] > self.interval_ms
            yield Decision(allowed, self.delay_ms, new_attempt=True)


@answering
@dataclass(frozen=True, slots=True)
class ExponentialDelay(RestartStrategy):
    """Delays that grow while failures keep coming; failures during one back-off count as one attempt.

    After `reset_threshold_ms` without failure, counted from the planned restart, the delay is the initial one again.
    """

    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    multiplier: float = 1.5
    reset_threshold_ms: int = 3_600_000
    jitter_factor: float = 0.1
    attempts_before_reset: int = UNLIMITED
    name: ClassVar[str] = "exponential-delay"

    def __post_init__(self) -> None:
        _at_least(self.name, "initial-backoff", self.initial_backoff_ms, 1)
        _at_least(self.name, "max-backoff", self.max_backoff_ms, self.initial_backoff_ms)
        _at_least(self.name, "reset-backoff-threshold", self.reset_threshold_ms, 1)
        _at_least(self.name, "attempts-before-reset-backoff", self.attempts_before_reset, 1)
        if not self.multiplier > 1:
            raise Misconfigured.of("restarts.multiplier_too_small", name=self.name, multiplier=self.multiplier)
        if not 0 <= self.jitter_factor <= 1:
            raise Misconfigured.of("restarts.jitter_out_of_range", name=self.name, jitter_factor=self.jitter_factor)

    def decisions(self, failures: Sequence[int], jitter: Jitter) -> Iterator[Decision]:
        """Fold over the failures with the time of the next planned restart."""
        attempt, next_restart = 0, _LONG_AGO
        for failed_at in failures:
            new = failed_at > next_restart
            if new:
                if failed_at - next_restart >= self.reset_threshold_ms:
                    attempt = 0
                next_restart = failed_at + self._backoff(attempt, failed_at, jitter)
                attempt += 1
            yield Decision(attempt <= self.attempts_before_reset, max(0, next_restart - failed_at), new)

    def _backoff(self, attempt: int, failed_at: int, jitter: Jitter) -> int:
        try:
            planned = int(self.initial_backoff_ms * self.multiplier**attempt)
        except OverflowError:
            return self.max_backoff_ms
        offset = int(planned * self.jitter_factor)
        jittered = planned + (jitter(failed_at, offset) if offset else 0)
        return max(self.initial_backoff_ms, min(jittered, self.max_backoff_ms))


@dataclass(frozen=True, slots=True)
class RestartChoice:
    """The choice of a DAG or a deployment about restarts; `strategy` is None if it makes none.

    `fallback` are the limits that hold unless a DAG or the deployment sets others. `with_state` is the strategy of a
    dataflow that keeps state, where that is another one.
    """

    strategy: RestartStrategy | None = None
    limits: FailureLimits = NO_LIMITS
    fallback: FailureLimits = NO_LIMITS
    with_state: RestartStrategy | None = None

    @staticmethod
    def of(strategy: RestartStrategy | None) -> RestartChoice:
        """Return the choice of a strategy as it is, or no choice."""
        return RestartChoice() if strategy is None else RestartChoice(strategy, strategy.limits)

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> RestartChoice:
        """Read options under Flink's keys, as `RestartStrategy.from_options`. Raises Misconfigured."""
        kind, settings, limited = parse_options(options)
        limits = FailureLimits(limited.get(PER_TASK), limited.get(PER_RUN))
        if kind is None and not settings:
            return RestartChoice(limits=limits)
        if kind == FLINK_1_18:
            return RestartChoice(_WITHOUT_STATE, limits, with_state=_WITH_STATE)
        by_name: dict[str, Callable[..., RestartStrategy]] = {
            strategy.name: strategy for strategy in (NoRestart, FixedDelay, FailureRate, ExponentialDelay)
        }
        strategy = by_name[kind or ExponentialDelay.name](**settings)
        is_bounded = kind is not None or "attempts_before_reset" in settings
        return RestartChoice(strategy, limits, NO_LIMITS if is_bounded else FailureLimits(per_task=DEFAULT_FAILURES))

    def of_dataflow(self, *, keeps_state: bool) -> RestartChoice:
        """Return the choice for a dataflow that keeps state, or for one that does not."""
        with_state = self.with_state if keeps_state else None
        return replace(self, strategy=with_state or self.strategy, with_state=None)

    def resolved(self, *others: RestartChoice) -> RestartStrategy:
        """Return the strategy of this choice, else of the first of `others` that has one, else the default.

        As in Flink, a strategy is taken whole from one place; each limit is resolved by itself.
        """
        default = RestartChoice(ExponentialDelay(), fallback=FailureLimits(per_task=DEFAULT_FAILURES))
        choices = (self, *others, default)
        strategy, fallback = next((each.strategy, each.fallback) for each in choices if each.strategy is not None)
        limits = NO_LIMITS
        for each in choices:
            limits = limits.filled_from(each.limits)
        return replace(strategy, limits=limits.filled_from(fallback))


def _at_least(strategy: str, option: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Misconfigured.of("restarts.option_too_small", strategy=strategy, option=option, least=least, value=value)


_WITHOUT_STATE: Final = ExponentialDelay(max_backoff_ms=300_000, multiplier=2.0)
_WITH_STATE: Final = FixedDelay(UNLIMITED, 1_000)
"""The strategies of FLINK_1_18: there, a job with checkpoints restarts by a fixed delay, `Integer.MAX_VALUE` times."""

"""Whether a task runs again: limits of failures first, then the strategy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.execution.failure_class import FailureClass
from weir.restarts.answer import Failures, Refusal, by_strategy
from weir.restarts.strategy import ExponentialDelay, FailureLimits, FailureRate, FixedDelay, NoRestart

STRATEGIES = [NoRestart, lambda **more: FixedDelay(10**6, 0, **more), FailureRate, ExponentialDelay]


def decide_restart(strategy, task, own, run="run", of_run=()):
    failures = Failures(attempt="a", run=run, task=task, used=0, own=own, of_run=of_run)
    return by_strategy(FailureClass.APPLICATION, strategy, failures)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_limit_of_a_task_s_failures_holds_whatever_the_strategy_says(kind):
    strategy = kind(limits=FailureLimits(per_task=2))
    hours = [3_600_000 * 24 * day for day in range(3)]
    assert decide_restart(strategy, "run task", hours[:2]).refusal is not Refusal.LIMIT
    refused = decide_restart(strategy, "run task", hours)
    assert (refused.refusal, refused.failures) == (Refusal.LIMIT, 3)
    assert refused.reason == (
        "maximum-per-task-failures is 2, and the task has failed 3 times since a person's last clear"
    )


@pytest.mark.parametrize("kind", STRATEGIES[1:])
def test_a_limit_of_a_run_s_failures_counts_those_of_all_its_tasks(kind):
    strategy = kind(limits=FailureLimits(per_run=2))
    apart = [0, 10**8, 2 * 10**8]
    assert decide_restart(strategy, "t", apart[-1:], "run", apart[1:]).refusal is None
    refused = decide_restart(strategy, "t", apart[-1:], "delays/1", apart)
    assert refused.refusal is Refusal.LIMIT
    assert refused.reason.startswith("maximum-total-task-failures is 2, and run delays/1 has had 3")


def test_the_first_failure_is_too_many_where_none_is_allowed():
    strategy = FixedDelay(5, limits=FailureLimits(per_task=0))
    assert "has failed once" in decide_restart(strategy, "t", [7]).reason


def test_failures_that_the_strategy_merges_count_as_one():
    at_once = [0, 1, 2, 3, 500]
    merging = ExponentialDelay(limits=FailureLimits(per_task=1, per_run=1))
    assert decide_restart(merging, "t", at_once, "run", at_once).refusal is None
    counting = FixedDelay(100, limits=FailureLimits(per_run=1))
    assert decide_restart(counting, "t", at_once, "run", at_once).refusal is Refusal.LIMIT


def test_without_limits_the_strategy_alone_decides_and_tells_its_delay_also_if_it_refuses():
    assert decide_restart(FixedDelay(1, 9_000), "t", [0]).refusal is None
    refused = decide_restart(FixedDelay(1, 9_000), "t", [0, 1])
    assert (refused.refusal, refused.delay_seconds, refused.reason) == (
        Refusal.STRATEGY,
        9,
        "restart strategy fixed-delay",
    )


def test_tasks_that_fail_together_come_back_apart_and_each_always_the_same():
    strategy = ExponentialDelay(initial_backoff_ms=1_000, jitter_factor=0.5)
    failures = [0, 10**5]
    delays = [decide_restart(strategy, f"run task[{index}]", failures).delay_seconds for index in range(100)]
    assert len(set(delays)) > 50
    assert delays == [decide_restart(strategy, f"run task[{index}]", failures).delay_seconds for index in range(100)]


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=30), st.integers(0, 10))
def test_no_task_ever_fails_more_often_than_its_limit_and_once(times, limit):
    strategy = FixedDelay(10**6, 0, limits=FailureLimits(per_task=limit))
    allowed = [decide_restart(strategy, "t", sorted(times)[:n]).refusal is None for n in range(1, len(times) + 1)]
    assert allowed == [n <= limit for n in range(1, len(times) + 1)]

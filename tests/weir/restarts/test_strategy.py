from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.restarts.strategy import (
    Decision,
    ExponentialDelay,
    FailureLimits,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartChoice,
    RestartStrategy,
    seeded_jitter,
)


def no_jitter(failed_at, offset):
    return 0


def answers(strategy, failures):
    return [d.can_restart for d in strategy.decisions(failures, no_jitter)]


def backoffs(strategy, failures):
    return [d.backoff_ms for d in strategy.decisions(failures, no_jitter)]


def decide(strategy, failures, jitter=None):
    """The decision about the newest of the failures."""
    return list(strategy.decisions(failures, jitter or seeded_jitter("")))[-1]


def test_none_never_restarts():
    assert decide(NoRestart(), [5]) == Decision(can_restart=False, backoff_ms=0, new_attempt=True)


def test_fixed_delay_allows_as_many_as_it_says():
    assert answers(FixedDelay(3, 0), [0, 0, 0, 0]) == [True, True, True, False]
    assert decide(FixedDelay(1, 10_000), [0]).backoff_ms == 10_000
    assert answers(FixedDelay(0, 0), [0]) == [False]


def test_failure_rate_allows_n_in_an_interval_and_not_one_more():
    assert answers(FailureRate(1, 1, 0), [0, 2, 4]) == [True, True, True]
    assert answers(FailureRate(3, 10_000, 0), [0, 0, 0, 0]) == [True, True, True, False]
    assert answers(FailureRate(1, 10, 0), [0, 10]) == [True, False]
    assert answers(FailureRate(1, 10, 0), [0, 11]) == [True, True]


def exponential(initial, most, multiplier, reset, jitter, attempts=2**31 - 1):
    return ExponentialDelay(initial, most, multiplier, reset, jitter, attempts)


def test_exponential_delay_gives_up_after_its_attempts():
    # The jitter of a backoff of 3 ms is 0, so a failure every 4 ms is always a new attempt.
    decisions = list(exponential(1, 3, 1.2, 10, 0.25, 13).decisions([4 * i for i in range(14)], no_jitter))
    assert all(d.new_attempt for d in decisions)
    assert [d.can_restart for d in decisions] == [True] * 13 + [False]


def test_exponential_delay_grows_by_its_multiplier():
    assert backoffs(exponential(4, 300, 2.3, 2**31 - 1, 0, 10), [0, 301, 602]) == [4, 9, 21]


def test_exponential_delay_starts_anew_after_a_quiet_time_counted_from_the_planned_restart():
    strategy = exponential(1, 5, 2.0, 8, 0)
    assert backoffs(strategy, [0, 8]) == [1, 2]
    assert backoffs(strategy, [0, 9]) == [1, 1]
    assert backoffs(strategy, [0, 8, 18]) == [1, 2, 1]
    assert backoffs(strategy, [0, 8, 17]) == [1, 2, 4]


def test_failures_during_a_backoff_are_one_attempt():
    assert list(exponential(10, 60, 2.0, 800, 0, 1).decisions([0, 0, 4, 10, 11], no_jitter)) == [
        Decision(can_restart=True, backoff_ms=10, new_attempt=True),
        Decision(can_restart=True, backoff_ms=10, new_attempt=False),
        Decision(can_restart=True, backoff_ms=6, new_attempt=False),
        Decision(can_restart=True, backoff_ms=0, new_attempt=False),
        Decision(can_restart=False, backoff_ms=20, new_attempt=True),
    ]


@pytest.mark.parametrize(("failures", "seen"), [(2, {3, 4, 5}), (3, {6, 7}), (4, {7})])
def test_jitter_spreads_a_backoff_up_to_the_maximum(failures, seen):
    strategy = exponential(2, 7, 2.0, 2**31 - 1, 0.25)
    times = [8 * i for i in range(1, failures + 1)]
    assert {decide(strategy, times, seeded_jitter(str(seed))).backoff_ms for seed in range(200)} == seen


@pytest.mark.parametrize(("failures", "seen"), [(1, {1, 2}), (2, {1, 2, 3, 4}), (3, {1, 2, 3, 4, 5, 6, 7})])
def test_jitter_stays_within_initial_and_maximum(failures, seen):
    strategy = exponential(1, 7, 2.0, 2**31 - 1, 1.0)
    times = [8 * i for i in range(1, failures + 1)]
    assert {decide(strategy, times, seeded_jitter(str(seed))).backoff_ms for seed in range(400)} == seen


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=30))
def test_a_decision_about_the_same_failures_is_always_the_same(times):
    strategy = RestartStrategy.default()
    assert decide(strategy, sorted(times)) == decide(strategy, sorted(times))


@given(st.lists(st.integers(0, 10**7), min_size=2, max_size=30))
def test_later_failures_do_not_change_earlier_answers(times):
    strategy = exponential(1_000, 60_000, 1.5, 3_600_000, 0.1, 3)
    ordered = sorted(times)
    all_answers = list(strategy.decisions(ordered, seeded_jitter("x")))
    assert list(strategy.decisions(ordered[:-1], seeded_jitter("x"))) == all_answers[:-1]


def test_a_backoff_beyond_all_numbers_is_the_maximum():
    strategy = exponential(1_000, 60_000, 2.0, 10**9, 0.1)
    assert decide(strategy, [61_000 * i for i in range(1_200)]).backoff_ms <= 60_000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FixedDelay(-1, 0),
        lambda: FixedDelay(1, -1),
        lambda: FailureRate(0, 1, 0),
        lambda: FailureRate(1, 0, 0),
        lambda: exponential(0, 1, 2.0, 1, 0),
        lambda: exponential(2, 1, 2.0, 1, 0),
        lambda: exponential(1, 1, 1.0, 1, 0),
        lambda: exponential(1, 1, float("nan"), 1, 0),
        lambda: exponential(1, 1, 2.0, 1, 1.1),
        lambda: exponential(1, 1, 2.0, 1, 0, 0),
        lambda: FailureLimits(per_task=-1),
        lambda: FailureLimits(per_run=-1),
        lambda: FailureLimits(per_task="3"),
    ],
)
def test_settings_out_of_flinks_bounds_are_refused(wrong):
    with pytest.raises(Misconfigured):
        wrong()


def test_weirs_default_is_exponential_delay_and_three_failures_a_task():
    assert RestartStrategy.default() == ExponentialDelay(limits=FailureLimits(per_task=3))
    assert RestartStrategy.from_options({}) == RestartStrategy.default()


def test_airflows_retries_are_a_fixed_delay_and_no_more_than_that_many():
    expected = FixedDelay(2, 300_000, limits=FailureLimits(per_task=2))
    assert RestartStrategy.from_retries(2, timedelta(minutes=5)) == expected


def test_a_strategy_is_taken_whole_from_the_first_place_that_has_one():
    in_dag = RestartChoice.from_options({"restart-strategy.type": "fixed-delay"})
    deployed = RestartChoice.from_options(
        {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 9}
    )
    assert in_dag.resolved(deployed) == FixedDelay(1, 1_000)
    assert RestartChoice().resolved(deployed) == FixedDelay(9, 1_000)
    assert RestartChoice.of(NoRestart()).resolved(deployed) == NoRestart()
    assert RestartChoice.of(None).resolved(RestartChoice()) == RestartStrategy.default()


def test_each_limit_is_looked_up_by_itself():
    in_dag = RestartChoice.from_options({"restart-strategy.maximum-per-task-failures": 1})
    deployed = RestartChoice.from_options(
        {"restart-strategy.type": "none", "maximum_per_task_failures": 5, "maximum_total_task_failures": 50}
    )
    assert in_dag.resolved(deployed) == NoRestart(limits=FailureLimits(1, 50))
    assert RestartChoice.of(FixedDelay(7)).resolved(deployed) == FixedDelay(7, limits=FailureLimits(5, 50))
    assert RestartChoice().resolved(deployed).limits == FailureLimits(5, 50)


def test_the_numbers_of_flink_1_18_are_a_strategy_with_state_and_one_without():
    numbers = RestartChoice.from_options({"restart-strategy.type": "flink-1.18"})
    without, with_state = (numbers.of_dataflow(keeps_state=keeps).resolved() for keeps in (False, True))
    assert without == exponential(1_000, 300_000, 2.0, 3_600_000, 0.1)
    assert [decide(without, [0] * 1).backoff_ms, without.limits] == [1_000, FailureLimits()]
    assert with_state == FixedDelay(2**31 - 1, 1_000)
    assert decide(with_state, list(range(0, 10_000_000, 1_001))) == Decision(True, 1_000, True)


def test_limits_hold_under_the_numbers_of_flink_1_18_and_other_numbers_beside_them_are_refused():
    numbers = {"restart_strategy_type": "Flink-1.18", "maximum-per-task-failures": 7}
    assert RestartStrategy.from_options(numbers).limits == FailureLimits(per_task=7)
    with pytest.raises(Misconfigured, check=of_kind("restarts.preset_with_options")):
        RestartStrategy.from_options({**numbers, "restart-strategy.fixed-delay.delay": "10 s"})


def test_three_failures_a_task_hold_only_where_nobody_has_bounded_the_strategy():
    def per_task(**options):
        return RestartStrategy.from_options(options).limits.per_task

    assert per_task(**{"restart-strategy.exponential-delay.max-backoff": "5 s"}) == 3
    assert per_task(**{"restart-strategy.type": "exponential-delay"}) is None
    assert per_task(**{"restart-strategy.exponential-delay.attempts-before-reset-backoff": 10}) is None
    slower = RestartChoice.from_options({"restart-strategy.exponential-delay.max-backoff": "5 s"})
    assert slower.resolved(RestartChoice(limits=FailureLimits(per_task=9))).limits.per_task == 9

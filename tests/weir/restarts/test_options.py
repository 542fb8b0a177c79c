from dataclasses import replace
from datetime import timedelta

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.restarts.strategy import ExponentialDelay, FailureLimits, FailureRate, FixedDelay, NoRestart, RestartStrategy


def strategy(**options):
    return RestartStrategy.from_options(options)


def of(kind, **options):
    keys = {f"restart-strategy.{kind}.{key.replace('_', '-')}": value for key, value in options.items()}
    return RestartStrategy.from_options({"restart-strategy.type": kind, **keys})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("none", NoRestart()),
        ("off", NoRestart()),
        ("disable", NoRestart()),
        ("fixed-delay", FixedDelay(1, 1_000)),
        ("fixeddelay", FixedDelay(1, 1_000)),
        ("failure-rate", FailureRate(1, 60_000, 1_000)),
        ("failurerate", FailureRate(1, 60_000, 1_000)),
        ("exponential-delay", ExponentialDelay(1_000, 60_000, 1.5, 3_600_000, 0.1, 2**31 - 1)),
        ("ExponentialDelay", ExponentialDelay()),
    ],
)
def test_a_strategy_is_named_as_in_flink_and_has_its_defaults(written, expected):
    assert RestartStrategy.from_options({"restart-strategy.type": written}) == expected
    assert RestartStrategy.from_options({"restart-strategy": written}) == expected


def test_options_are_flinks():
    assert of("fixed-delay", attempts="3", delay="10 s") == FixedDelay(3, 10_000)
    assert of("failure-rate", max_failures_per_interval=5, failure_rate_interval="5 min", delay="1s") == FailureRate(
        5, 300_000, 1_000
    )
    assert of(
        "exponential-delay",
        initial_backoff="10 ms",
        max_backoff=timedelta(hours=2),
        backoff_multiplier="2.0",
        reset_backoff_threshold="1 day",
        jitter_factor=0,
        attempts_before_reset_backoff=7,
    ) == ExponentialDelay(10, 7_200_000, 2.0, 86_400_000, 0, 7)


def test_without_a_type_the_default_is_altered():
    options = {"restart-strategy.exponential-delay.max-backoff": "5 s"}
    assert RestartStrategy.from_options(options) == replace(RestartStrategy.default(), max_backoff_ms=5_000)


def test_the_limits_of_failures_hold_with_every_strategy_and_have_bare_names_too():
    limits = FailureLimits(per_task=4, per_run=40)
    for kind in ("none", "fixed-delay", "failure-rate", "exponential-delay"):
        for prefix in ("restart-strategy.", ""):
            found = RestartStrategy.from_options(
                {
                    "restart-strategy.type": kind,
                    f"{prefix}maximum-per-task-failures": 4,
                    f"{prefix}maximum-total-task-failures": "40",
                }
            )
            assert (found.name, found.limits) == (kind, limits)


def test_options_may_be_spelt_as_environment_variables_have_to():
    options = {
        "restart_strategy_type": "failure-rate",
        "restart_strategy_failure_rate_max_failures_per_interval": "5",
        "restart_strategy_failure_rate_delay": "2 s",
        "restart_strategy_maximum_total_task_failures": "7",
    }
    assert RestartStrategy.from_options(options) == FailureRate(5, 60_000, 2_000, limits=FailureLimits(per_run=7))


def test_of_two_spellings_that_of_the_environment_holds():
    options = {"restart_strategy_type": "none", "restart-strategy.type": "fixed-delay"}
    assert RestartStrategy.from_options(options) == NoRestart()
    assert RestartStrategy.from_options(dict(reversed(options.items()))) == NoRestart()


def test_options_of_a_strategy_that_is_not_named_are_refused():
    with pytest.raises(
        Misconfigured, check=of_kind("restarts.strategy_missing", kind="fixed-delay", option="restart-strategy.type")
    ):
        RestartStrategy.from_options({"restart-strategy.fixed-delay.attempts": 3})


def test_a_time_without_a_unit_is_in_milliseconds():
    assert of("fixed-delay", delay="250").delay_ms == of("fixed-delay", delay=250).delay_ms == 250


def test_options_about_other_things_are_passed_over():
    assert RestartStrategy.from_options({"pool": "x"}) == RestartStrategy.default()


def test_an_unknown_strategy_is_refused():
    with pytest.raises(
        Misconfigured,
        check=of_kind("restarts.strategy_unknown", hint="; did you mean 'fixed-delay'?", written="fixed-dely"),
    ):
        RestartStrategy.from_options({"restart-strategy.type": "fixed-dely"})


def test_an_unknown_option_is_refused():
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_unknown")):
        of("fixed-delay", attempt=1)
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_unknown")):
        RestartStrategy.from_options({"restart_strategy_maximum_task_failures": 1})


@pytest.mark.parametrize("delay", ["soon", "-1 s", "1 fortnight", None, 1.5])
def test_what_is_no_time_is_refused(delay):
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_not_a_time")):
        of("fixed-delay", delay=delay)


def test_what_is_no_number_is_refused():
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_not_whole")):
        of("fixed-delay", attempts="many")
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_not_a_number")):
        of("exponential-delay", backoff_multiplier="twice")

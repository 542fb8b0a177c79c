"""Time to finish against mean time between failures: FLIP-1's published experiment, simulated.

    pytest tests/benchmarks/test_flip1.py --benchmark-only -s

prints the table of docs/measurements.md; what it shows is also asserted, for fewer seeds, in every run of the tests.
"""

from __future__ import annotations

from statistics import median

import pytest
from flip1_simulation import CLEAN, FLINK, FULL, NEVER, ON_DEMAND, REGION, Cluster, Fault, Results, Setup, minutes

MEAN_MINUTES = (None, 10, 5, 3, 2, 1, 0.5)
COMPARED = {Fault.TASK: (FULL, REGION), Fault.WORKER: (FULL, FLINK, ON_DEMAND, REGION)}
SEEDS = range(20)
GIVEN_UP = NEVER / 60


def typical(setup: Setup, fault: Fault, mean_minutes: float | None) -> float:
    """Median minutes until the job is done; a run that was given up took for ever."""
    return median(found or float("inf") for found in minutes(setup, fault, mean_minutes, SEEDS))


@pytest.mark.parametrize("setup", [FULL, REGION, FLINK])
def test_without_failures_all_take_the_same(setup):
    outcome = Cluster(setup, Fault.TASK, None, seed=1).run()
    assert (outcome.seconds, outcome.failures) == (CLEAN, 0)
    assert outcome.worked == 8 * CLEAN


def test_the_published_figures_of_a_full_restart():
    """Failures every three minutes: more than an hour; every two: more than two hours; more often: never."""
    assert typical(FULL, Fault.TASK, 3) > 60
    assert typical(FULL, Fault.TASK, 2) > 120
    assert minutes(FULL, Fault.TASK, 1, SEEDS) == [None] * len(SEEDS)


def test_the_published_figure_of_regions():
    """Failures every thirty seconds: all runs end, in about twice the time without."""
    found = minutes(REGION, Fault.TASK, 0.5, SEEDS)
    assert None not in found
    assert 25 < median(found) < 40
    assert max(found) < 60


@pytest.mark.parametrize("mean", [5, 3])
def test_the_more_failures_the_more_a_region_saves(mean):
    assert typical(FULL, Fault.TASK, mean) > {5: 2.5, 3: 8}[mean] * typical(REGION, Fault.TASK, mean)


def test_a_full_restart_of_blocking_stages_never_finishes_either():
    blocking = Setup("blocking, full", REGION.exchanges, FULL.strategy)
    assert minutes(blocking, Fault.TASK, 1, range(3)) == [None] * 3


def test_results_in_the_store_survive_the_worker():
    """Weir's results: where those of a worker are lost with it, its tasks take their producers with them."""
    in_store, on_worker = typical(REGION, Fault.WORKER, 3), typical(ON_DEMAND, Fault.WORKER, 3)
    assert in_store < 25
    assert on_worker > 2.5 * in_store
    assert ON_DEMAND.results is Results.ON_WORKER


def test_consumers_that_did_not_change_are_not_computed_again():
    """Flink's rule restarts them too: it always computes more for a lost result that somebody else misses."""
    always = [Cluster(FLINK, Fault.WORKER, 300, seed).run() for seed in SEEDS]
    if_changed = [Cluster(ON_DEMAND, Fault.WORKER, 300, seed).run() for seed in SEEDS]
    assert median(each.worked for each in if_changed) <= median(each.worked for each in always)


def test_the_table(benchmark):
    def measured():
        return {
            (fault, setup, mean): minutes(setup, fault, mean, range(100))
            for fault, setups in COMPARED.items()
            for setup in setups
            for mean in MEAN_MINUTES
        }

    found = benchmark.pedantic(measured, rounds=1)
    for fault, setups in COMPARED.items():
        names = " | ".join(setup.name for setup in setups)
        print(f"\n\n| {fault.value}, every | {names} |\n|{'---|' * (len(setups) + 1)}")
        for mean in MEAN_MINUTES:
            cells = " | ".join(cell(found[fault, setup, mean]) for setup in setups)
            print(f"| {f'{mean:g} min' if mean else 'never'} | {cells} |")


def cell(found: list[float | None]) -> str:
    """Median and 90th percentile in minutes, and how many were given up."""
    ordered = sorted(each or float("inf") for each in found)
    shown = [
        f"{each:.0f}" if each < GIVEN_UP else "never" for each in (median(ordered), ordered[int(0.9 * len(ordered))])
    ]
    given_up = sum(each is None for each in found)
    return f"{shown[0]} ({shown[1]})" + (f", {given_up} of {len(found)} given up" if given_up else "")

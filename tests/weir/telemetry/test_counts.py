"""What the ledger counts: what happened is told once, after the commit that made it so, and never before."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from weir.execution.metrics import (
    ATTEMPTS,
    LOSSES,
    METRICS,
    RECOMPUTED_BYTES,
    RECOMPUTED_SECONDS,
    SPARED_BYTES,
    SPARED_SECONDS,
    WAITING,
)
from weir.ledger.counts import count
from weir.testing.fakes.airflow import Killed


class Told:
    """What the counters of a world have been raised by since this was made."""

    def __init__(self, world):
        self._counts = Counter()
        world.ledger.counted = self._take

    def _take(self, measurements):
        for each in measurements:
            self._counts[each.metric, *each.tags.values()] += each.value

    def of(self, metric):
        """What a counter has been raised by, by the values of its tags after the dataflow's name."""
        return {key[2:]: value for key, value in self._counts.items() if key[0] is metric}


@pytest.fixture
def told(world):
    return Told(world)


@pytest.fixture
def green(world):
    """A run that has gone through, and what is told from then on."""
    world.run = world.run_first(1)
    return world


def names(told):
    return {each.name for each in METRICS if told.of(each)}


def test_a_run_without_faults_counts_an_attempt_of_each_task_and_nothing_else(world, told):
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    attempts = told.of(ATTEMPTS)
    assert sum(attempts.values()) == 10
    assert {tags[1:] for tags in attempts} == {("committed", "none")}
    assert attempts["joined", "committed", "none"] == 2
    assert names(told) == {"weir.attempts"}


def test_a_loss_counts_what_it_was_what_ran_again_for_whom_and_what_was_spared(world):
    def compute(_key):
        world.airflow.time += timedelta(minutes=1)

    world.airflow.during = compute
    run = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    told = Told(world)
    world.lose("joined", 1)
    world.airflow.clear_by_hand(run, "totals", 0)
    world.airflow.run_until_quiet()
    assert told.of(LOSSES) == {("missing",): 1}
    assert told.of(ATTEMPTS) == {
        ("totals", "failed", "backtrack"): 1,
        ("joined", "committed", "none"): 1,
        ("totals", "committed", "none"): 1,
    }
    assert told.of(RECOMPUTED_SECONDS) == {("weir",): 60, ("person",): 60}  # each computes for a minute
    assert told.of(SPARED_SECONDS) == {
        (): 420
    }  # joined[0], raw-clean[0], raw-clean[1], weather, totals[1], routes, report
    assert set(told.of(RECOMPUTED_BYTES)) == {("weir",), ("person",)}
    assert 0 < told.of(RECOMPUTED_BYTES)["weir",] < told.of(SPARED_BYTES)[()]


def test_what_joins_a_repair_spares_nothing_more(green):
    told = Told(green)
    green.lose("joined", 1)
    green.airflow.clear_by_hand(green.run, "totals", 0)
    green.airflow.step(green.airflow.task(green.run, "totals", 0))
    spared = told.of(SPARED_BYTES)
    assert spared[()] > 0
    green.lose("weather", 0)  # the repair finds that it needs this, too
    green.airflow.run_until_quiet()
    assert told.of(LOSSES) == {("missing",): 2}
    assert told.of(SPARED_BYTES) == spared


def test_a_killed_process_is_counted_by_its_successor(world, told):
    killed = []

    def kill(key):
        if not killed:
            killed.append(key.task_id)
            raise Killed

    world.airflow.during = kill
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert told.of(ATTEMPTS)[killed[0], "failed", "killed"] == 1
    assert sum(told.of(ATTEMPTS).values()) == 11


def test_the_time_that_an_attempt_has_waited_is_counted_when_it_has_its_inputs(green):
    told = Told(green)
    green.lose("joined", 1)
    for subtask in (0, 1):
        green.airflow.clear_by_hand(green.run, "totals", subtask)
        green.airflow.step(green.airflow.task(green.run, "totals", subtask))
    assert green.airflow.task(green.run, "totals", 1).state == "up_for_reschedule"
    assert told.of(WAITING) == {}
    green.airflow.run_until_quiet()
    (seconds,) = told.of(WAITING).values()
    assert told.of(WAITING) == {("totals",): seconds}
    assert 5 <= seconds < 60


def _count_and_fail(session):
    count(session, LOSSES.of(1, "ladder", "missing"))
    raise KeyError


def test_what_is_rolled_back_is_not_counted(green):
    told = Told(green)
    with pytest.raises(KeyError), green.ledger.transaction("ladder") as session:
        _count_and_fail(session)
    with green.ledger.transaction("ladder") as session:
        session.rollback()
        count(session, LOSSES.of(1, "ladder", "missing"))
    assert names(told) == set()
    with green.ledger.transaction("ladder") as session:
        count(session, LOSSES.of(1, "ladder", "missing"))
        assert names(told) == set()
    assert names(told) == {"weir.losses"}

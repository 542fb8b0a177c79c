"""Two processes perform two operations beside each other on PostgreSQL: the outcome is that of one after the other.

The first stands still before a statement, a COMMIT, an operation of the store or a question to Airflow, until the
second has performed its own, or waits for a lock.
"""

import random

import pytest
from tests.concurrency.cases import points_that_differ
from tests.concurrency.operations import KINDS, VARIANTS

PAIRS = [(first, second) for first in KINDS for second in KINDS]


def require_unbroken(cases, found, deadlocks):
    broken = {each: case.at for case in found for each in case.broken}
    assert broken == {}
    assert cases.deadlocks() == deadlocks


@pytest.mark.parametrize("first", KINDS)
def test_an_operation_in_the_middle_of_another_breaks_nothing(cases, first):
    """One point of one pair, always the same; to heal takes longest, so that it is done for each second operation."""
    deadlocks, points = cases.deadlocks(), len(cases.points_of((first, 0)))
    number = KINDS.index(first)
    second, heals = KINDS[(number + 3) % len(KINDS)], number % 2 == 0
    at = random.Random(first + second).randint(1, points)
    require_unbroken(cases, [cases.perform((first, 0), (second, 1), stop_at=at, heals=heals)], deadlocks)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", range(VARIANTS))
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_every_pair_at_every_point(cases, first, second, variant):
    """Also one after the other, in each order. Of all but the first variant each fifth point."""
    deadlocks, one, other = cases.deadlocks(), (first, variant), (second, (variant + 1) % VARIANTS)
    in_order = [cases.perform(one, other), cases.perform(other, one)]
    points = list(points_that_differ(in_order[0].first.points, in_order[0].second.points))[:: 5 if variant else 1]
    found = [cases.perform(one, other, stop_at=number) for number in points]
    serial = {case.signature for case in in_order}
    unlike, blocked = sum(case.signature not in serial for case in found), sum(case.was_blocked for case in found)
    print(f"{one} {other}: {len(points)} points; {blocked} waited for a lock, {unlike} came to what neither order does")
    require_unbroken(cases, [*in_order, *found], deadlocks)

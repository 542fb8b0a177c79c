"""What a seed decides: the kinds of faults, their order and their times."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.chaos.plan import LONGEST_SECONDS, SHORTEST_SECONDS, chosen, known_faults, planned_faults

from weir.errors import Misconfigured

FAULTS = known_faults(15, 2, object())


def planned_of(seed, count=100):
    return [
        (planned.after, planned.fault.name, planned.chance.random())
        for planned in islice(planned_faults(seed, FAULTS), count)
    ]


def test_a_seed_gives_the_same_faults_again():
    assert planned_of(7) == planned_of(7)


def test_another_seed_gives_others():
    assert planned_of(7) != planned_of(8)


def test_each_kind_is_injected_before_any_is_injected_again():
    names = [name for _, name, _ in planned_of(3, len(FAULTS))]
    assert sorted(names) == sorted(fault.name for fault in FAULTS)


def test_faults_follow_each_other_within_the_bounds():
    assert all(SHORTEST_SECONDS <= after <= LONGEST_SECONDS for after, _, _ in planned_of(5, 500))


def test_no_two_kinds_have_one_name():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_only_faults_that_were_asked_for_are_planned():
    assert [fault.name for fault in chosen(FAULTS, ["bit", "scheduler"])] == ["bit", "scheduler"]
    assert chosen(FAULTS, []) == FAULTS


@pytest.mark.parametrize(("name", "advice"), [("schedular", "did you mean scheduler?"), ("fire", "Known are task,")])
def test_an_unknown_fault_is_refused_with_those_that_are_known(name, advice):
    with pytest.raises(Misconfigured, match=name) as refused:
        chosen(FAULTS, [name])
    assert advice in str(refused.value)


def test_faults_of_a_cluster_and_a_database_need_them():
    with pytest.raises(Misconfigured, match="--spark-workers"):
        chosen(known_faults(15, 0, None), ["executor"])

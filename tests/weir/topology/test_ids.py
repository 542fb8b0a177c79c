"""Identifiers: references to runs, and what the id of an attempt says."""

import pytest

from weir.topology.ids import (
    OWN_RUN,
    AttemptKind,
    ParsedAttemptId,
    is_synthetic,
    is_task_try,
    new_attempt_id,
    parse_attempt_id,
    run_of_ref,
    run_ref,
)
from weir.topology.regions import PartitionId, RegionId

RUN, OTHER = "flow@20130102T000000Z", "flow@20130101T000000Z"


@pytest.mark.parametrize("run", [RUN, OTHER])
def test_a_reference_to_a_run_names_the_run_that_it_was_made_of(run):
    assert run_of_ref(run_ref(run, RUN), RUN) == run


def test_the_own_run_has_one_reference_which_sorts_before_all_others():
    assert run_ref(RUN, RUN) == OWN_RUN
    assert sorted([run_ref(OTHER, RUN), OWN_RUN]) == [OWN_RUN, OTHER]


def test_a_reference_that_belongs_to_no_run_is_always_an_id():
    assert run_ref(RUN, None) == RUN


@pytest.mark.parametrize("of", [RegionId("a", 1), PartitionId("a", 1, "plain")])
def test_an_id_is_the_same_region_or_partition_in_another_run(of):
    there = of.in_run(run_ref(OTHER, RUN))
    assert of.is_of_own_run
    assert of.run_id(RUN) == RUN
    assert not there.is_of_own_run
    assert there.run_id(RUN) == OTHER
    assert str(there) == f"{of} of {OTHER}"
    assert there.in_run(OWN_RUN) == of


@pytest.mark.parametrize(
    ("kind", "try_number", "text"),
    [
        (AttemptKind.TASK, 1, "t0001-4f"),
        (AttemptKind.TASK, 12345, "t12345-4f"),
        (AttemptKind.COMPACTION, 1, "c0001-4f"),
        (AttemptKind.SYNTHETIC, 0, "t0000-4f"),
    ],
)
def test_the_id_of_an_attempt_says_its_kind_and_try(kind, try_number, text):
    assert new_attempt_id(kind, "4f", try_number) == text
    assert parse_attempt_id(text) == ParsedAttemptId(kind, try_number)
    assert is_synthetic(text) is (kind is AttemptKind.SYNTHETIC)


@pytest.mark.parametrize("text", ["", "t0000", "x0000-4f", "0d9c7f5e-3c0e-4e5f-9f8e-1f0a7f4d9c11"])
def test_what_is_no_attempts_id_is_not_taken_for_a_synthetic_attempt(text):
    assert parse_attempt_id(text) is None
    assert not is_synthetic(text)


def test_airflow_counts_tries_from_one():
    assert [is_task_try(number) for number in (-3, 0, 1, 2)] == [False, False, True, True]

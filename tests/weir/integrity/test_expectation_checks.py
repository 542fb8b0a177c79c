"""Committed results are checked on request: violations are reported and recorded, and nothing follows."""

import pytest
from tests.messages.kinds import of_kind
from tests.weir.checking import (
    NOT_NULL,
    UNIQUE,
    checks,
    gated,
    outcomes,
    results,
    run,
    with_suites,
    write_suite,
)

from weir.dataflow import expectations
from weir.errors import Misconfigured
from weir.formats.checks import CheckReason
from weir.integrity.expectation_checks import check_expectations


@pytest.fixture
def day(world):
    """A day of a dataflow whose one gate is for results that are made again, so that nothing was checked."""
    folder = with_suites(world)
    write_suite(folder, "clean_rows", NOT_NULL)
    world.run = run(world, gated(expectations("clean_rows", when="restored"), parallelism=2))
    world.suites = folder
    assert checks(world) == []
    return world


def asked(world, name=None):
    return check_expectations(world.services, name, world.airflow.engine.run)


def test_what_the_stages_have_suites_for_is_checked_and_recorded(day):
    found = asked(day)
    assert found.is_right
    assert {(each.stage, each.subtask, each.suite, each.why) for each in found.checks} == {
        ("clean", subtask, suite, CheckReason.ASKED) for subtask in (0, 1) for suite in ("weir", "clean_rows")
    }
    assert set(outcomes(day)) == {
        (f"clean[{subtask}]", suite, "asked", "passed") for subtask in (0, 1) for suite in ("weir", "clean_rows")
    }
    (one, *_) = checks(day)
    assert one.attempt in {each.attempt for each in results(day, "clean")}


@pytest.mark.parametrize("violated", [NOT_NULL, "weir_digest_as_recorded"])
def test_a_failed_check_is_reported_and_nothing_follows(day, violated):
    day.airflow.engine.violated["restored clean"] = [violated]
    found = asked(day, "gated")
    assert not found.is_right
    assert {each.state for each in results(day, "clean")} == {"finished"}
    assert "failed" in {each[3] for each in outcomes(day)}


def test_a_suite_that_was_corrected_counts_as_it_is_now(day):
    write_suite(day.suites, "clean_rows", NOT_NULL, UNIQUE)
    assert {len(each.results) for each in asked(day).checks if each.suite == "clean_rows"} == {2}


def test_a_suite_that_is_gone_is_named(day):
    (day.suites / "clean_rows.json").unlink()
    with pytest.raises(Misconfigured, check=of_kind("quality.suite_missing", name="clean_rows")):
        asked(day)

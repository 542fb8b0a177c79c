"""Rows that violate what is expected of them never become current; what follows is the gate's policy."""

import json

import pytest
from tests.weir.coordinator.checking import (
    NOT_NULL,
    UNIQUE,
    attempts,
    checks,
    gated,
    outcomes,
    results,
    with_suites,
    write_suite,
)

from weir.dataflow import expectations
from weir.results.codec import manifest_from_json


@pytest.fixture
def suites(world):
    return with_suites(world)


def run(world, flow, day=1):
    world.airflow.deploy(flow)
    run_id = world.airflow.dag_run(day)
    world.airflow.run_until_quiet()
    return run_id


def test_rows_that_pass_are_committed_and_the_manifest_says_so(world, suites):
    write_suite(suites, "clean_rows", NOT_NULL)
    run_id = run(world, gated(expectations("clean_rows")))
    assert world.airflow.task(run_id, "weir_close").state == "success"
    assert outcomes(world) == [("clean[0]", "clean_rows", "fresh", "passed")]
    (result,) = results(world, "clean")
    manifest = manifest_from_json(world.store.read(f"{result.folder}/manifest.json"))
    assert [(each.suite, each.outcome.value) for each in manifest.quality] == [("clean_rows", "passed")]
    assert checks(world)[0].digest == result.digest


def test_rows_that_fail_are_in_quarantine_and_nothing_is_made_of_them(world, suites):
    write_suite(suites, "clean_rows", NOT_NULL, UNIQUE)
    world.airflow.engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows")))
    failed = world.airflow.task(run_id, "clean")
    assert (failed.state, failed.runs) == ("failed", [1])
    assert f"{NOT_NULL}(k): 1 of 1 rows, such as 'bad'" in failed.notes[-1]
    assert "Policy: fail" in failed.notes[-1]
    (attempt,) = attempts(world, "clean")
    assert (attempt.state, attempt.failure) == ("failed", "fatal")
    assert NOT_NULL in attempt.error
    (result,) = results(world, "clean")
    assert (result.state, result.is_current, result.attempt) == ("quarantined", False, attempt.id)
    manifest = manifest_from_json(world.store.read(f"{result.folder}/manifest.json"))
    assert manifest.is_quarantined
    assert world.airflow.task(run_id, "totals-delays").runs == []
    (row,) = checks(world)
    violated = {each["type"]: each["success"] for each in row.results}
    assert (row.outcome, violated) == ("failed", {NOT_NULL: False, UNIQUE: True})
    assert json.dumps(row.results)

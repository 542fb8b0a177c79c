"""Rows that violate an expectation never become current; the gate's policy decides what follows."""

import json
from dataclasses import replace

import pytest
from tests.weir.checking import (
    NOT_NULL,
    UNIQUE,
    attempts,
    checks,
    gated,
    in_one_plan,
    outcomes,
    results,
    run,
    with_suites,
    write_suite,
)

from weir.dataflow import Dataflow, Stage, blocking, cached, digest, expectations, pipelined, sink, source
from weir.errors import Internal
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.quality.check_queries import suspected_inputs
from weir.restarts.strategy import FixedDelay
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.engine import FakeEngine

BLAMING = (NOT_NULL, {"meta": {"blames": ["weather"]}})
CLOSE = "weir_close"


@pytest.fixture
def suites(world):
    return with_suites(world)


@pytest.fixture
def engine(world):
    return world.airflow.engine


def manifest_of(world, result):
    return from_json(Manifest, world.store.read(f"{result.folder}/manifest.json"))


def state_of(world, run_id, task):
    return world.airflow.task(run_id, task).state


# One gate


def test_rows_that_pass_are_committed_and_the_manifest_says_so(world, suites):
    write_suite(suites, "clean_rows", NOT_NULL)
    run_id = run(world, gated(expectations("clean_rows")))
    assert state_of(world, run_id, CLOSE) == "success"
    assert outcomes(world) == [("clean[0]", "clean_rows", "fresh", "passed")]
    (result,) = results(world, "clean")
    said = [(each.suite, each.outcome.value) for each in manifest_of(world, result).quality]
    assert said == [("clean_rows", "passed")]
    assert checks(world)[0].digest == result.digest


def test_rows_that_fail_are_in_quarantine_and_nothing_is_made_of_them(world, suites, engine):
    write_suite(suites, "clean_rows", NOT_NULL, UNIQUE)
    engine.violated["clean"] = {NOT_NULL}
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
    assert manifest_of(world, result).is_quarantined
    assert world.airflow.task(run_id, "totals-delays").runs == []
    (row,) = checks(world)
    violated = {each["type"]: each["success"] for each in row.results}
    assert (row.outcome, violated) == ("failed", {NOT_NULL: False, UNIQUE: True})
    assert json.dumps(row.results)


def test_what_is_not_written_is_checked_too_and_its_whole_region_is_in_quarantine(world, suites, engine):
    write_suite(suites, "clean_rows", NOT_NULL)
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, in_one_plan(expectations("clean_rows")))
    (written,) = {task.key.task_id for task in world.airflow.tasks.values()} - {CLOSE}
    assert state_of(world, run_id, written) == "failed"
    (result,) = results(world, "delays")
    assert (result.state, manifest_of(world, result).is_quarantined) == ("quarantined", True)


def test_with_retry_the_restart_strategy_decides(world, suites, engine):
    write_suite(suites, "clean_rows", NOT_NULL)
    engine.violated["clean"] = {NOT_NULL}
    world.airflow.strategy = FixedDelay(3, 1_000)
    world.airflow.during = lambda key: world.airflow.task(key.run_id, "clean").runs[2:] and engine.violated.clear()
    run_id = run(world, gated(expectations("clean_rows", policy="retry")))
    assert world.airflow.task(run_id, "clean").runs == [1, 2, 3]
    assert state_of(world, run_id, CLOSE) == "success"
    assert [row.failure for row in attempts(world, "clean")] == ["application", "application", None]
    assert [row.outcome for row in checks(world)] == ["failed", "failed", "passed"]
    assert [(row.state, row.is_current) for row in results(world, "clean")] == [
        ("quarantined", False),
        ("quarantined", False),
        ("finished", True),
    ]


@pytest.mark.parametrize("by", ["policy", "severity"])
def test_what_only_warns_is_committed_and_noted(world, suites, engine, by):
    severity = {"severity": "warning"} if by == "severity" else {}
    write_suite(suites, "clean_rows", (NOT_NULL, severity), UNIQUE)
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows", policy="warn" if by == "policy" else "fail")))
    assert state_of(world, run_id, CLOSE) == "success"
    assert outcomes(world) == [("clean[0]", "clean_rows", "fresh", "warned")]
    assert NOT_NULL in world.airflow.task(run_id, "clean").notes[-1]
    assert [row.state for row in results(world, "clean")] == ["finished"]


def test_of_several_gates_the_strictest_that_is_violated_counts(world, suites, engine):
    write_suite(suites, "again", NOT_NULL)
    write_suite(suites, "never", UNIQUE)
    quality = [expectations("again", policy="retry"), expectations("never", policy="fail")]
    engine.violated["clean"] = {NOT_NULL, UNIQUE}
    run_id = run(world, gated(quality))
    assert world.airflow.task(run_id, "clean").runs == [1]
    engine.violated["clean"] = {NOT_NULL}
    world.airflow.strategy = FixedDelay(1, 1_000)
    second = run(world, gated(quality), day=2)
    assert world.airflow.task(second, "clean").runs == [1, 2]


class Silent(FakeEngine):
    """An engine that knows of no checks."""

    def run(self, job, during=lambda: None):
        return replace(super().run(job, during), checks=())


def test_a_job_that_does_not_say_what_became_of_a_gate_has_not_passed_it(world, suites):
    write_suite(suites, "clean_rows", NOT_NULL)
    world.airflow.engine = Silent(world.store, world.content)
    run_id = run(world, gated(expectations("clean_rows")))
    failed = world.airflow.task(run_id, "clean")
    assert failed.state == "failed"
    assert f"{Internal.__name__}: the job of" in failed.notes[-1]
    assert "was to check clean_rows of clean" in failed.notes[-1]
    assert results(world, "clean") == []


def test_a_try_after_bad_rows_does_not_resume_from_a_copy_of_them(world, suites, engine):
    write_suite(suites, "clean_rows", NOT_NULL)
    engine.violated["clean"] = {NOT_NULL}
    world.airflow.strategy = FixedDelay(3, 1_000)
    world.airflow.during = lambda _key: engine.computed.count("clean") == 2 and engine.violated.clear()
    run_id = run(world, in_one_plan(expectations("clean_rows", policy="retry"), cached("raw")))
    assert state_of(world, run_id, CLOSE) == "success"
    assert engine.computed.count("raw") == 2


def killed_once(world, task):
    """The first process of a task ends behind its copies."""
    killed = []

    def kill(key):
        if key.task_id.startswith(task) and not killed:
            killed.append(key)
            raise Killed

    world.airflow.during = kill


@pytest.mark.parametrize(("reads", "computed"), [(pipelined("raw"), 2), (blocking("raw"), 1)])
def test_no_stage_resumes_from_a_copy_after_checked_rows_that_may_differ_now(world, suites, engine, reads, computed):
    """It is of the rows that a source has read in an earlier try: those are not the ones that are checked."""
    write_suite(suites, "clean_rows", NOT_NULL)
    flow = Dataflow(
        "gated",
        [
            source("raw", "pipelines.gated:raw"),
            Stage("clean", "pipelines.gated:clean", [reads], quality=expectations("clean_rows")),
            Stage("totals", "pipelines.gated:totals", [pipelined("clean")]),
            Stage("sums", "pipelines.gated:sums", [cached("totals")]),
            sink("sums", "delays"),
        ],
    )
    killed_once(world, "raw" if reads == pipelined("raw") else "clean")
    run_id = run(world, flow)
    assert state_of(world, run_id, CLOSE) == "success"
    assert engine.computed.count("totals") == computed


# Suites


def test_a_suite_that_is_missing_or_bad_is_said_before_anything_is_computed_and_may_be_corrected(world, suites, engine):
    flow = gated(expectations("clean_rows"))
    run_id = run(world, flow)
    assert "stage clean: there is no suite clean_rows" in world.airflow.task(run_id, "clean").notes[-1]
    write_suite(suites, "clean_rows", (NOT_NULL, {"meta": {"blames": ["moon"]}}))
    wrong = json.dumps({"expectations": [{"type": NOT_NULL, "kwargs": {"colum": "k"}}]})
    for expected, after in (
        ("blames moon, which is no input of it; it reads raw, weather", "{"),
        ("is not JSON", wrong),
        (f"expectation 1: {NOT_NULL} has no argument 'colum': did you mean column?", wrong),
    ):
        world.airflow.clear_by_hand(run_id, "clean")
        world.airflow.run_until_quiet()
        assert expected in world.airflow.task(run_id, "clean").notes[-1]
        write_suite(suites, "clean_rows", text=after)
    assert "clean" not in engine.computed
    write_suite(suites, "clean_rows", NOT_NULL)
    world.airflow.clear_by_hand(run_id, "clean")
    world.airflow.run_until_quiet()
    assert state_of(world, run_id, CLOSE) == "success"


# Backtracking


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_suspected_input_is_recomputed_and_if_it_is_equal_the_data_is_bad_not_the_copy(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING)
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows", policy="backtrack")))
    failed, weather = world.airflow.task(run_id, "clean"), world.airflow.task(run_id, "weather")
    assert (failed.state, failed.runs, weather.runs) == ("failed", [1, 2], [1, 2])
    assert "the data is bad, not the copy: weather[0]" in failed.notes[-1]
    assert engine.computed.count("clean") == 1
    assert [(row.state, row.is_current) for row in results(world, "weather")] == [
        ("superseded", False),
        ("finished", True),
    ]
    assert [row.failure for row in attempts(world, "clean")] == ["backtrack", "fatal"]
    assert NOT_NULL in attempts(world, "clean")[0].error
    (row,) = checks(world)
    (blamed,) = suspected_inputs(row)
    assert (blamed.stage, blamed.attempt) == ("weather", attempts(world, "weather")[0].id)
    assert [len(each.runs) for each in world.airflow.tasks.values() if each.key.task_id == "raw"] == [1]


def test_an_input_that_all_subtasks_suspect_is_recomputed_once(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING)
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows", policy="backtrack"), parallelism=3))
    assert world.airflow.task(run_id, "weather").runs == [1, 2]
    failed = [world.airflow.task(run_id, "clean", index) for index in range(3)]
    assert {task.state for task in failed} == {"failed"}
    assert all("the data is bad, not the copy" in task.notes[-1] for task in failed)


def test_where_it_comes_out_otherwise_the_region_goes_on(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING)
    engine.violated["clean"] = {NOT_NULL}

    def corrected(key):
        if key.task_id == "weather":
            world.content["weather"] = "another copy"  # of which the next try is made
            if engine.computed.count("weather") == 2:
                engine.violated.clear()

    world.airflow.during = corrected
    run_id = run(world, gated(expectations("clean_rows", policy="backtrack")))
    assert state_of(world, run_id, CLOSE) == "success"
    assert world.airflow.task(run_id, "clean").runs == [1, 2]
    assert [row.outcome for row in checks(world)] == ["failed", "passed"]
    (published,) = results(world, "delays")
    assert published.state == "finished"


def test_a_clear_by_a_person_is_another_beginning(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING)
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows", policy="backtrack")))
    assert state_of(world, run_id, "clean") == "failed"
    engine.violated.clear()
    world.airflow.clear_by_hand(run_id, "clean")
    world.airflow.run_until_quiet()
    assert state_of(world, run_id, CLOSE) == "success"


@pytest.mark.parametrize("mended", ["another input", "the suite"])
def test_a_corrected_suite_or_input_is_tried_though_the_suspected_input_came_out_equal(world, suites, engine, mended):
    """Also where Weir's own clear has overtaken the person's."""
    write_suite(suites, "clean_rows", BLAMING)
    run_id = run(world, replace(gated(expectations("clean_rows", policy="backtrack")), consumers="always"))
    world.content["weather"], engine.violated["clean"] = "of another day", {NOT_NULL}
    world.airflow.clear_by_hand(run_id, "weather")
    world.airflow.run_until_quiet()
    assert "the data is bad, not the copy" in world.airflow.task(run_id, "clean").notes[-1]
    if mended == "the suite":
        write_suite(suites, "clean_rows", UNIQUE)
    else:
        world.content["raw"] = "corrected"
        engine.violated.clear()
    for task in ("raw", "weather", "clean"):
        world.airflow.clear_by_hand(run_id, task)
    world.airflow.run_until_quiet()
    assert state_of(world, run_id, CLOSE) == "success"


def test_where_digests_leave_values_out_a_recomputed_input_is_tried(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING)
    engine.violated["clean"] = {NOT_NULL}
    flow = gated(expectations("clean_rows", policy="backtrack"))
    stages = [replace(each, digest=digest(ignore=["n"])) if each.name == "weather" else each for each in flow.stages]
    world.airflow.during = lambda _key: engine.computed.count("weather") == 2 and engine.violated.clear()
    run_id = run(world, replace(flow, stages=stages))
    assert state_of(world, run_id, CLOSE) == "success"
    assert (engine.computed.count("weather"), engine.computed.count("clean")) == (2, 2)


def test_an_expectation_without_suspected_inputs_fails_under_backtrack(world, suites, engine):
    write_suite(suites, "clean_rows", BLAMING, UNIQUE)
    engine.violated["clean"] = {NOT_NULL, UNIQUE}
    run_id = run(world, gated(expectations("clean_rows", policy="backtrack")))
    assert world.airflow.task(run_id, "clean").runs == [1]
    assert world.airflow.task(run_id, "weather").runs == [1]


def test_broken_bytes_are_reported_before_the_rows_that_were_computed_from_them_are_evaluated(world, suites, engine):
    write_suite(suites, "clean_rows", NOT_NULL)
    engine.violated["clean"] = {NOT_NULL}

    def flipped(key):
        if key.task_id == "weather" and engine.computed.count("weather") == 2:
            engine.violated.clear()
        if key.task_id == "clean" and engine.computed.count("clean") == 1:
            (weather,) = results(world, "weather")
            data = world.store.read(f"{weather.folder}/part-0.bin")
            world.store.replace(f"{weather.folder}/part-0.bin", bytes([data[0] ^ 1]) + data[1:])

    world.airflow.during = flipped
    run_id = run(world, gated(expectations("clean_rows")))
    assert state_of(world, run_id, CLOSE) == "success"
    assert world.airflow.task(run_id, "weather").runs == [1, 2]

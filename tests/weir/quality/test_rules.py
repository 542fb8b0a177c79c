"""The policy that applies to several checks, and the results that manifests record of them."""

from dataclasses import replace

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.dataflow.quality import Policy
from weir.formats.checks import CheckOutcome, CheckReason, CheckReport, ExpectationResult, gate_results
from weir.formats.suite import Expectation, Severity, Suite
from weir.quality.rules import described, policy_of, suite_problems, suspected_names, warnings_of

MET = ExpectationResult("expect_a", {"column": "k"}, Severity.FAIL, success=True)
VIOLATED = replace(MET, success=False, rows=9, unexpected=2, examples=("x", None))
BLAMING = replace(VIOLATED, blames=("weather",))
WARNING = replace(VIOLATED, severity=Severity.WARN)


def report(policy, *results, stage="clean", suite="s", **more):
    return CheckReport(stage, 0, suite, "f", policy, CheckReason.FRESH, "d", 9, results, 0.0, **more)


def test_the_strictest_policy_that_is_violated_counts():
    retry, backtrack = report(Policy.RETRY, VIOLATED), report(Policy.BACKTRACK, BLAMING)
    assert policy_of([retry, report(Policy.FAIL, VIOLATED), backtrack]) is Policy.FAIL
    assert policy_of([retry, backtrack, report(Policy.FAIL, MET, WARNING)]) is Policy.BACKTRACK
    assert policy_of([retry]) is Policy.RETRY
    assert policy_of([report(Policy.WARN, VIOLATED), report(Policy.FAIL, MET)]) is None


def test_a_violation_without_suspected_inputs_fails_under_backtrack():
    assert policy_of([report(Policy.BACKTRACK, BLAMING, VIOLATED)]) is Policy.FAIL
    assert suspected_names(report(Policy.BACKTRACK, BLAMING, replace(MET, blames=("flights",)))) == {"weather"}


def test_a_manifest_has_the_checks_of_its_own_rows_and_what_failed_elsewhere_in_its_region():
    own, failed = report(Policy.FAIL, MET), report(Policy.FAIL, VIOLATED, stage="other", suite="t")
    passed = report(Policy.FAIL, MET, stage="other", suite="u")
    restored = report(Policy.FAIL, MET, suite="weir", attempt="t0000-x")
    said = [(each.suite, each.outcome) for each in gate_results([own, failed, passed, restored], "clean")]
    assert said == [("s", CheckOutcome.PASSED), ("t", CheckOutcome.FAILED)]


def test_a_suite_of_two_stages_has_failed_if_it_has_in_one():
    reports = [report(Policy.FAIL, MET), report(Policy.FAIL, VIOLATED, stage="other")]
    assert [each.outcome for each in gate_results(reports, "clean")] == [CheckOutcome.FAILED]


def test_warnings_are_listed_separately():
    found = report(Policy.FAIL, MET, VIOLATED, WARNING)
    assert warnings_of(found) == (WARNING,)
    assert warnings_of(report(Policy.WARN, VIOLATED)) == (VIOLATED,)


def test_a_message_names_column_counts_and_examples_but_not_all_of_them():
    assert described(report(Policy.FAIL), [VIOLATED]) == (
        "the rows of clean[0] violate s: expect_a(k): 2 of 9 rows, such as 'x', None"
    )
    assert described(report(Policy.FAIL), [VIOLATED] * 7).endswith("; and 2 more")
    assert "expect_a(k): no such column" in described(report(Policy.FAIL), [replace(VIOLATED, error="no such column")])


def test_an_expectation_of_a_keyed_state_names_one_of_its_declared_columns():
    history = keyed_state("history", key="k", schema="k STRING, seen_at TIMESTAMP")
    stage = Stage("clean", "pipelines.m:clean", [blocking("raw", by="k")], state=history)
    flow = Dataflow("flights", [source("raw", "pipelines.m:raw"), stage, sink("clean", "out")])
    suite = Suite("s", "f", tuple(Expectation("expect_column_max_to_be_between", {"column": c}) for c in ("K", "seen")))
    (problem,) = suite_problems(flow, "history", suite)
    said = "expectation 2: expect_column_max_to_be_between names the column 'seen', which history lacks: "
    assert problem == f"{said}did you mean seen_at?"
    assert list(suite_problems(flow, "clean", suite)) == []
    no_list = Suite("s", "f", (Expectation("expect_compound_columns_to_be_unique", {"column_list": 5}),))
    assert list(suite_problems(flow, "history", no_list)) == []  # Great Expectations says what it is

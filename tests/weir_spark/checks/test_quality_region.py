"""A region's stages are checked by suites on what they have written; what is violated is reported, never raised."""

from __future__ import annotations

import sys

import pytest
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind

from weir.dataflow.quality import Policy
from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.formats.checks import CheckOutcome, CheckReason, CheckToRun
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import InputToRead, RegionReport
from weir.formats.suite import Expectation, Severity, Suite
from weir.topology.partitions import Layout
from weir_spark.checks.gate import Checked, check
from weir_spark.region import region

pytestmark = pytest.mark.spark

NUMBERS = """
def numbers(ctx):
    text = "if(id = 7, null, string(id)) text"
    return ctx.spark.sql(f"select id key, {text}, date('2013-01-01') + int(id) day from range(40)")

def even(ctx, numbers):
    return numbers.where("key % 2 = 0")

def total(ctx, even, seen):
    seen.upsert(even.selectExpr("key", "1L n"))
    return even
"""

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "text"})
FEW = Expectation("expect_column_values_to_be_between", {"column": "key", "max_value": 37}, blames=("numbers",))


def to_run(*expectations, policy=Policy.FAIL, passed=()):
    return CheckToRun(Suite("suite", "fingerprint", expectations), policy, CheckReason.FRESH, passed)


@pytest.fixture
def run(spark, store):
    def do(job):
        lines = []
        report = region.run(job, spark, store, lines.append)
        assert from_json(RegionReport, to_json(report)) == report
        return report, "\n".join(lines)

    return do


def test_what_was_written_is_checked_and_examples_are_given(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)
    day = Expectation("expect_column_values_to_be_between", {"column": "day", "max_value": "2013-01-30"}, Severity.WARN)
    output = jobs.output("numbers", Layout(("key",), 128))
    stage = jobs.stage("numbers", f"{module}:numbers", output, checks=(to_run(NOT_NULL, FEW, day),))
    report, said = run(jobs.region(stage))
    (check,) = report.checks
    assert (check.stage, check.subtask, check.suite, check.fingerprint) == ("numbers", 0, "suite", "fingerprint")
    assert (check.rows, check.digest) == (40, str(report.outputs[0].digest))
    missing, few, late = check.results
    assert (missing.success, missing.unexpected, missing.rows) == (False, 1, 40)
    assert (few.success, few.unexpected, few.rows, few.blames) == (False, 2, 40, ("numbers",))
    assert sorted(few.examples) == [38, 39]
    assert (late.unexpected, len(late.examples), "2013-02-01" in late.examples) == (10, 10, True)
    assert (check.outcome, check.violated) == (CheckOutcome.FAILED, (missing, few))
    assert "expect_column_values_to_be_between(key): 2 of 40 rows" in said
    assert report.metrics["check numbers"] >= check.seconds


def test_rows_that_have_passed_are_not_checked_again(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)

    def again(*passed):
        check = to_run(FEW, passed=passed)
        report, _ = run(jobs.region(jobs.stage("even", f"{module}:numbers", jobs.output("even"), checks=(check,))))
        return report.checks[0]

    first = again("another digest")
    second = again("another digest", first.digest)
    assert (first.outcome, first.is_same) == (CheckOutcome.FAILED, False)
    assert (second.outcome, second.results, second.digest) == (CheckOutcome.SAME, (), first.digest)


def test_a_stage_that_writes_nothing_is_computed_once_and_checked(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)
    rows = Expectation("expect_table_row_count_to_equal", {"value": 40})
    report, _ = run(
        jobs.region(
            jobs.stage("numbers", f"{module}:numbers", is_source=True, checks=(to_run(rows, FEW, policy=Policy.WARN),)),
            jobs.stage("even", f"{module}:even", jobs.output("even"), pipelined={"numbers": "numbers"}),
        )
    )
    (check,) = report.checks
    assert (check.stage, check.rows, check.outcome) == ("numbers", 40, CheckOutcome.WARNED)
    assert [each.success for each in check.results] == [True, False]
    assert "compute numbers" in report.metrics


def test_a_checked_stage_before_a_copy_is_computed_all_the_same(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)

    def stages(copy):
        return (
            jobs.stage("numbers", f"{module}:numbers", is_source=True, checks=(to_run(FEW),)),
            jobs.stage("even", f"{module}:even", pipelined={"numbers": "numbers"}, **copy),
            jobs.stage("out", "", jobs.output("out"), pipelined={"even": "even"}),
        )

    copy = jobs.copy("even")
    first, _ = run(jobs.region(*stages({"copy": copy})))
    second, _ = run(jobs.region(*stages({"resume": jobs.resume(copy)})))
    assert second.resumed == ("even",)
    assert [each.results for each in second.checks] == [each.results for each in first.checks]


def test_all_of_a_keyed_state_is_checked_not_only_what_has_changed(run, jobs, pipeline, store) -> None:
    module = pipeline(NUMBERS)
    chain = StateChain(store, keyed_state("seen", key="key", schema="key BIGINT, n BIGINT"))
    rows = Expectation("expect_table_row_count_to_equal", {"value": 40})
    unique = Expectation("expect_column_values_to_be_unique", {"column": "key"})
    layout, everything = Layout(("key",), 128), (0, 127)

    def epoch(name, function):
        output = chain.output(name)
        seen = InputToRead(
            argument="seen",
            layout=layout,
            spark_schema="",
            partitions=(),
            key_groups=everything,
            declared_schema=chain.state.schema,
            state=chain.read(name),
        )
        job = jobs.region(
            jobs.stage("numbers", f"{module}:{function}", is_source=True),
            jobs.stage("total", f"{module}:total", pipelined={"even": "numbers"}, inputs=(seen,)),
            jobs.stage(
                "seen", "", output, pipelined={"total": "total"}, keeps_state_of="seen", checks=(to_run(rows, unique),)
            ),
            epoch=name,
        )
        report, _ = run(job)
        (written,) = report.outputs
        chain.go_on(name, {everything: written})
        return written, report.checks[0]

    pipeline_of_more = NUMBERS.replace("range(40)", "range(35, 45)")
    first, check = epoch("20130101T000000Z", "numbers")
    assert (first.digest.rows, check.rows, check.outcome) == (40, 40, CheckOutcome.PASSED)
    module = pipeline(pipeline_of_more)
    second, check = epoch("20130102T000000Z", "numbers")
    assert (second.state.changed, check.rows, check.outcome) == (10, 45, CheckOutcome.FAILED)
    assert [(each.observed, each.rows) for each in check.results] == [(45, None), (None, 45)]


def test_an_expectation_that_cannot_be_computed_has_the_reason_and_the_others_are_checked(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)
    asked = (
        Expectation("expect_column_values_to_not_be_null", {"column": "texts"}),
        Expectation("expect_column_values_to_match_regex", {"column": "text", "regex": "("}),
        Expectation("expect_column_values_to_be_in_set", {"column": "text", "value_set": [1, 2]}),
        Expectation("expect_column_values_to_be_in_set", {"column": "day", "value_set": ["no day"]}),
        NOT_NULL,
    )
    stage = jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"), checks=(to_run(*asked),))
    report, _ = run(jobs.region(stage))
    absent, regex, numbers, day, missing = report.checks[0].results
    assert absent.error == "there is no column 'texts': there are key, text, day"
    assert "Unclosed group near index 1" in regex.error
    assert day.error
    assert [each.success for each in (absent, regex, day)] == [False, False, False]
    assert (missing.error, missing.unexpected, numbers.rows) == ("", 1, 39)


VALUES = """
    select 9007199254740993L n, float(0.3) f, 0.3D d, 9007199254740993.1BD big, 0.10BD cent, 'cd' s, int(null) none,
        9007199254740992D near, 9223372036854775807L last, 9223372036854775807D after
"""
GREATER = "column_pair_values_a_to_be_greater_than_b"
BETWEEN, IN_SET, MAX = "column_values_to_be_between", "column_values_to_be_in_set", "column_max_to_be_between"
MEDIAN = "column_median_to_be_between"
JUDGED = [
    (False, BETWEEN, {"column": "n", "max_value": 2**53}),
    (False, BETWEEN, {"column": "n", "max_value": 2**53, "row_condition": "f > 0", "condition_parser": "spark"}),
    (True, BETWEEN, {"column": "n", "min_value": 2**53 + 1, "max_value": 2**53 + 1}),
    (False, BETWEEN, {"column": "n", "min_value": 2**53 + 1, "strict_min": True}),
    (True, BETWEEN, {"column": "n", "min_value": -1e300, "max_value": 10**400}),
    (False, BETWEEN, {"column": "n", "min_value": 2**63}),
    (True, BETWEEN, {"column": "n", "min_value": 2.5, "strict_min": True}),
    (True, BETWEEN, {"column": "f", "min_value": 0.1, "max_value": 0.3}),
    (False, BETWEEN, {"column": "f", "max_value": 0.3, "strict_max": True}),
    (True, BETWEEN, {"column": "f", "min_value": -1e300, "max_value": 1e300}),
    (True, BETWEEN, {"column": "d", "max_value": 0.3}),
    (False, BETWEEN, {"column": "big", "max_value": 2**53 + 1}),
    (True, BETWEEN, {"column": "big", "min_value": 2**53 + 1, "strict_min": True}),
    (True, BETWEEN, {"column": "cent", "min_value": 0.1, "max_value": 0.1}),
    (False, BETWEEN, {"column": "cent", "max_value": 0.0999}),
    (False, BETWEEN, {"column": "cent", "min_value": 1e40}),
    (True, MAX, {"column": "f", "max_value": 0.3}),
    (False, "column_sum_to_be_between", {"column": "n", "max_value": 2**53}),
    (False, "column_mean_to_be_between", {"column": "n", "max_value": 2**53}),
    (False, MEDIAN, {"column": "n", "max_value": 2**53}),
    (True, MEDIAN, {"column": "n", "min_value": 2**53 + 1, "max_value": 2**53 + 1}),
    (False, MEDIAN, {"column": "n", "min_value": 2**53 + 1, "strict_min": True}),
    (False, MEDIAN, {"column": "big", "max_value": 2**53 + 1}),
    (True, MEDIAN, {"column": "cent", "min_value": 0.1, "max_value": 0.1}),
    (True, MEDIAN, {"column": "f", "max_value": 0.3}),
    (False, MEDIAN, {"column": "none", "max_value": 1}),
    (False, MAX, {"column": "big", "max_value": 2**53 + 1}),
    (False, MAX, {"column": "none", "max_value": 1}),
    (False, IN_SET, {"column": "n", "value_set": [2**53, 2.5]}),
    (True, IN_SET, {"column": "n", "value_set": [2.5, 2**53 + 1]}),
    (True, IN_SET, {"column": "f", "value_set": [0.3]}),
    (True, IN_SET, {"column": "cent", "value_set": [0.1, 0.001]}),
    (False, IN_SET, {"column": "cent", "value_set": [0.101, 1e40]}),
    (False, IN_SET, {"column": "s", "value_set": ["ab", None]}),
    (True, IN_SET, {"column": "s", "value_set": ["cd", None]}),
    (False, IN_SET, {"column": "s", "value_set": [None]}),
    (True, "column_values_to_not_be_in_set", {"column": "s", "value_set": ["ab", None]}),
    (False, "column_values_to_not_be_in_set", {"column": "f", "value_set": [0.3, None]}),
    (True, "multicolumn_sum_to_equal", {"column_list": ["n", "none"], "sum_total": 2**53 + 1}),
    (False, "multicolumn_sum_to_equal", {"column_list": ["n", "none"], "sum_total": 2**53}),
    (False, "column_pair_values_to_be_equal", {"column_A": "n", "column_B": "near"}),
    (False, "column_pair_values_to_be_equal", {"column_A": "after", "column_B": "last"}),
    (True, "column_pair_values_to_be_equal", {"column_A": "none", "column_B": "none"}),
    (True, GREATER, {"column_A": "n", "column_B": "near"}),
    (False, GREATER, {"column_A": "near", "column_B": "n", "or_equal": True}),
    (True, GREATER, {"column_A": "after", "column_B": "last"}),
    (False, GREATER, {"column_A": "last", "column_B": "after", "or_equal": True}),
    (True, "select_column_values_to_be_unique_within_record", {"column_list": ["n", "near"]}),
    (True, "table_row_count_to_equal", {"value": 0, "row_condition": "n < 0", "condition_parser": "spark"}),
]  # fmt: skip


def test_numbers_are_compared_in_the_type_of_the_column_and_nulls_in_no_set(spark) -> None:
    rows = spark.sql(VALUES)
    asked = tuple(Expectation(f"expect_{kind}", kwargs) for _, kind, kwargs in JUDGED)
    found = check(rows, to_run(*asked), Checked(stage="s", subtask=0, digest="", rows=1)).results
    wrong = [str(each) for each, (is_right, *_) in zip(found, JUDGED, strict=True) if each.success is not is_right]
    assert not wrong
    assert not [each.error for each in found if each.error]
    assert tuple(each.kwargs for each in found) == tuple(each.kwargs for each in asked)


def test_a_condition_chooses_rows_for_every_expectation_and_a_mistake_in_it_is_named(spark) -> None:
    rows = spark.sql(VALUES)
    distinct = {"column": "s", "value_set": ["ab", None]}
    none = {"row_condition": "n < 0", "condition_parser": "spark"}
    of_gx = {"row_condition": 'col("f") > 0', "condition_parser": "great_expectations"}
    in_set = "expect_column_distinct_values_to_be_in_set"
    asked = [
        Expectation(in_set, distinct),
        Expectation(in_set, {"column": "f", "value_set": [0.3]}),
        Expectation(in_set, {**distinct, **none}),
        Expectation("expect_column_values_to_be_between", {"column": "n", "max_value": 2**53, **of_gx}),
        *(
            Expectation(kind, {**distinct, "row_condition": condition, "condition_parser": parser})
            for kind in (in_set, "expect_column_values_to_be_in_set")
            for condition, parser in (("idd = 1", "spark"), ('col("idd") == 1', "great_expectations"))
        ),
    ]
    found = check(rows, to_run(*asked), Checked(stage="s", subtask=0, digest="", rows=1)).results
    assert [each.success for each in found[:4]] == [False, True, True, False]
    assert not [each.error for each in found[:4] if each.error]
    assert [("row_condition" in each.error, "`idd`" in each.error) for each in found[4:]] == [(True, True)] * 4


def test_plain_expectations_need_no_great_expectations(run, jobs, pipeline, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    module = pipeline(NUMBERS)
    stage = jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"), checks=(to_run(NOT_NULL, FEW),))
    report, _ = run(jobs.region(stage))
    assert len(report.checks[0].violated) == 2


@pytest.mark.parametrize(("column", "passed"), [("key", ()), ("key", ("a digest",))])
def test_a_suite_with_a_mistake_is_misconfigured_before_anything_is_computed(
    run, jobs, pipeline, column, passed
) -> None:
    module = pipeline("def numbers(ctx):\n    raise AssertionError('it was computed')\n")
    wrong = Expectation("expect_column_values_to_be_unknown", {"column": column})
    stage = jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"), checks=(to_run(wrong, passed=passed),))
    if passed:  # rows have passed it, so it has no mistake, and Great Expectations is not imported to find that
        with pytest.raises(Exception, match="it was computed"):
            run(jobs.region(stage))
        return
    with pytest.raises(Misconfigured, check=of_kind("formats.expectation_unknown")):
        run(jobs.region(stage))

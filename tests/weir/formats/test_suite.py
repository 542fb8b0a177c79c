"""A suite is what Great Expectations writes; what could be misunderstood is refused, and said."""

import json
from decimal import Decimal

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.suite import Severity, suite_from_json

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "origin"}}


def suite(*expectations, **more):
    return suite_from_json("s", json.dumps({"name": "s", "expectations": list(expectations), **more}).encode())


def test_what_is_written_is_read():
    found = suite(
        {**NOT_NULL, "severity": "warning", "notes": "why", "meta": {"blames": ["weather"], "else": 1}, "id": None},
        {"type": "expect_table_row_count_to_be_between", "kwargs": None, "severity": "critical", "notes": ["a", "b"]},
        meta={"great_expectations_version": "1.24.1"},
        notes=None,
    )
    first, second = found.expectations
    assert (first.type, first.kwargs) == (NOT_NULL["type"], {"column": "origin"})
    assert (first.severity, first.blames, first.notes) == (Severity.WARN, ("weather",), ("why",))
    assert (second.kwargs, second.severity, second.blames, second.notes) == ({}, Severity.FAIL, (), ("a", "b"))


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_what_is_less_than_critical_warns(severity):
    assert suite({**NOT_NULL, "severity": severity}).expectations[0].severity is Severity.WARN
    assert suite({**NOT_NULL, "severity": None}).expectations[0].severity is Severity.FAIL


def test_the_fingerprint_is_of_all_that_can_change_an_outcome_and_of_nothing_else():
    other = {"type": "expect_column_to_exist", "kwargs": {"column": "dest"}}
    before = suite(NOT_NULL, other).fingerprint
    assert suite(other, {**NOT_NULL, "notes": "n", "description": "d"}, notes="all of it").fingerprint == before
    changed = [
        {**NOT_NULL, "kwargs": {"column": "origin", "mostly": 0.9}},
        {**NOT_NULL, "severity": "warning"},
        {**NOT_NULL, "meta": {"blames": ["weather"]}},
        {**NOT_NULL, "type": "expect_column_values_to_be_null"},
    ]
    assert len({before, suite(NOT_NULL).fingerprint, *(suite(each, other).fingerprint for each in changed)}) == 6


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "the suite s is not JSON"),
        (b"[]", 'expected an object with a list of "expectations"'),
        (b'{"name": "s"}', 'expected an object with a list of "expectations"'),
        (b'{"name": "s", "expectations": []}', "it expects nothing"),
        (b'{"name": "t", "expectations": [{"type": "x"}]}', "it says that its name is 't'"),
        (b'{"expectations": [{"type": "x"}], "suite": 1}', r"its fields \['suite'\] are not known"),
        (b'{"expectations": [{"type": "x"}], "suite_parameters": {"a": 1}}', "suite_parameters are not known"),
        (b'{"expectations": [{"kwargs": {}}]}', 'expectation 1: expected an object with a "type"'),
        (b'{"expectations": [{"type": "x", "severity": "fatal"}]}', "its severity 'fatal' is none of critical"),
        (b'{"expectations": [{"type": "x", "meta": {"blames": "weather"}}]}', "meta.blames must be a list of names"),
        (b'{"expectations": [{"type": "x", "kwargs": [1]}]}', "its kwargs must be an object"),
        (b'{"expectations": [{"type": "x", "kwargs": {"a": {"$PARAMETER": "p"}}}]}', r"\$PARAMETER in its kwargs"),
        (
            b'{"expectations": [{"type": "expect_column_values_to_be_null", "kwargs": {"colum": "a"}}]}',
            "expectation 1: expect_column_values_to_be_null has no argument 'colum': did you mean column",
        ),
        (
            b'{"expectations": [{"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "a"}}]}',
            "expect_column_values_to_be_in_set lacks value_set: it takes column, value_set, mostly",
        ),
        (
            b'{"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "a"}}]}',
            "expect_column_values_to_be_between has neither min_value nor max_value",
        ),
        (b'{"expectations": [{"expectation_type": "x", "type": "x"}]}', r"its fields \['expectation_type'\]"),
    ],
)
def test_what_could_be_misunderstood_is_refused(data, said):
    with pytest.raises(Misconfigured, match=said):
        suite_from_json("s", data)


@pytest.mark.parametrize(
    ("type_", "kwargs"),
    [
        ("expect_column_values_to_be_increasing", {"column": "a"}),
        (
            "expect_column_values_to_be_null",
            {"column": "a", "row_condition": 'col("b") > 1', "condition_parser": "great_expectations"},
        ),
        ("expect_column_values_to_be_null", {"column": "a", "mostly": 2}),
        ("expect_column_values_to_be_null", {"column": 1}),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": "x"}),
        ("expect_column_values_to_be_between", {"column": "a", "max_value": "many"}),
        ("expect_table_row_count_to_be_between", {"min_value": 2, "max_value": 1}),
    ],
)
def test_great_expectations_judges_what_is_not_plain(type_, kwargs):
    found = suite(NOT_NULL, {"type": type_, "kwargs": kwargs})
    assert found.of_gx == {2: found.expectations[1]}


def test_what_is_plain_needs_no_great_expectations():
    between = {"column": "a", "min_value": None, "max_value": "2025-01-31", "strict_max": True, "mostly": 0.9}
    assert suite({"type": "expect_column_values_to_be_between", "kwargs": between}).of_gx == {}


@pytest.mark.parametrize(
    "more",
    [
        {"row_condition": "b > 1", "condition_parser": "spark"},
        {"row_condition": None, "condition_parser": None},
        {"result_format": "SUMMARY", "catch_exceptions": True},
    ],
)
def test_a_condition_that_is_sql_and_what_changes_no_result_need_no_great_expectations(more):
    assert suite({"type": "expect_column_values_to_be_null", "kwargs": {"column": "a", **more}}).of_gx == {}


@pytest.mark.parametrize("type_", ["expect_column_values_to_be_null", "expect_column_values_to_be_increasing"])
@pytest.mark.parametrize("parser", [{}, {"condition_parser": None}])
def test_a_condition_without_its_parser_is_a_mistake_of_the_suite(type_, parser):
    with pytest.raises(
        Misconfigured,
        match=f"{type_}",
        check=of_kind("formats.condition_without_parser", condition="row_condition", parser="condition_parser"),
    ):
        suite({"type": type_, "kwargs": {"column": "a", "row_condition": "b > 1", **parser}})


def of_numbers(text):
    between = f'{{"column": "a", "max_value": {text}, "mostly": 0.33333333333333333333}}'
    return f'{{"expectations": [{{"type": "expect_column_values_to_be_between", "kwargs": {between}}}]}}'.encode()


@pytest.mark.parametrize("text", ["9007199254740993", "0.1", "1e300", "-2.50", "0.30000000000000004", "1E2"])
def test_a_number_of_a_suite_is_the_one_that_is_written(text):
    assert Decimal(str(suite_from_json("s", of_numbers(text)).expectations[0].kwargs["max_value"])) == Decimal(text)


@pytest.mark.parametrize("text", ["1e400", "9007199254740992.5", "0.1234567890123456789", "NaN", "-Infinity"])
def test_a_number_that_a_float_does_not_keep_is_a_mistake_of_the_suite(text):
    with pytest.raises(Misconfigured, check=of_kind("formats.number_read_otherwise", name="max_value", text=text)):
        suite_from_json("s", of_numbers(text))


def test_a_bound_may_be_a_whole_number_of_any_size():
    sum_total = {"column": "a", "min_value": 0, "max_value": 10**400}
    assert suite({"type": "expect_column_sum_to_be_between", "kwargs": sum_total}).of_gx == {}

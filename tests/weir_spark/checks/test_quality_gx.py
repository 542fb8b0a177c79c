"""Great Expectations is asked what is no plain aggregate, and then nothing leaves the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.expectation_types import OF_GX, PLAIN
from weir.formats.suite import Expectation, Suite
from weir_spark.checks import gx


def test_without_great_expectations_the_error_names_the_package_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations.expectations", None)
    asked = [Expectation("expect_column_distinct_values_to_be_in_set", {"column": "a", "value_set": [1]})]
    with pytest.raises(Misconfigured, check=of_kind("checks.gx_missing")):
        gx.validate(None, asked)
    assert gx.validate(None, []) == []


def suite(*expectations) -> Suite:
    return Suite("flights", "f", (Expectation("expect_table_row_count_to_equal", {"value": 1}), *expectations))


@pytest.mark.parametrize(
    ("type_", "kwargs", "said"),
    [
        (
            "expect_column_to_be_increasing",
            {},
            "there is no expectation 'expect_column_to_be_increasing': did you mean",
        ),
        (
            "expect_column_values_to_be_increasing",
            {"column": "a", "strict": True},
            "expect_column_values_to_be_increasing has no argument 'strict': did you mean strictly?",
        ),
        ("expect_column_values_to_be_increasing", {}, "expect_column_values_to_be_increasing: column: field required"),
        (
            "expect_column_values_to_be_null",
            {"column": "a", "mostly": 3},
            "expect_column_values_to_be_null: mostly=3: ensure this value is less than or equal to 1.0",
        ),
        (
            "expect_table_row_count_to_be_between",
            {"min_value": 2, "max_value": 1},
            "expect_table_row_count_to_be_between: min_value (2) must be less than or equal to max_value (1)",
        ),
    ],
)
def test_a_mistake_in_a_suite_is_named_with_its_number_before_anything_is_computed(type_, kwargs, said) -> None:
    with pytest.raises(Misconfigured) as error:
        gx.require_known([suite(Expectation(type_, kwargs))])
    assert str(error.value).startswith(f"the suite flights cannot be used: expectation 2: {said}")
    assert str(error.value).endswith(". Nothing was computed")


def test_a_suite_that_needs_no_great_expectations_does_not_import_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations.expectations", None)
    gx.require_known([suite()])
    with pytest.raises(
        Misconfigured, check=of_kind("checks.gx_missing", types="expect_column_values_to_be_increasing")
    ):
        gx.require_known([suite(Expectation("expect_column_values_to_be_increasing", {"column": "a"}))])


def test_the_arguments_that_are_known_without_great_expectations_are_its_own() -> None:
    from great_expectations.expectations import registry

    internal = {"library_metadata"}
    for type_, arguments in PLAIN.items():
        fields = registry.get_expectation_impl(type_).__fields__
        assert arguments.all.keys() <= fields.keys() <= arguments.all.keys() | OF_GX | internal, type_
        assert {name for name, each in fields.items() if each.required} <= arguments.needed.keys(), type_


OFFLINE = """
import json, os, socket, sys

called = []
connect, look_up = socket.socket.connect, socket.getaddrinfo

def only_here(self, address):
    host = address[0] if isinstance(address, tuple) else "here"
    if host not in ("here", "127.0.0.1", "::1", "localhost"):
        called.append(host)
        raise OSError("nothing may call out")
    return connect(self, address)

def look_up_here(host, *more, **others):
    if host not in (None, "", "127.0.0.1", "::1", "localhost", "0.0.0.0", socket.gethostname()):
        called.append(host)
    return look_up(host, *more, **others)

socket.socket.connect, socket.getaddrinfo = only_here, look_up_here
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

from dataclasses import asdict
from pyspark.sql import SparkSession
from weir.dataflow.quality import Policy
from weir.formats.checks import CheckToRun, CheckReason
from weir.formats.suite import Expectation, Suite
from weir_spark.checks.gate import Checked, check
from weir_spark.session import configure

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
configure(session, {})
rows = session.sql("select id key, if(id % 2 = 0, 'even', 'odd') kind from range(10)")
asked = (
    Expectation("expect_table_row_count_to_equal", {"value": 10}),
    Expectation("expect_column_distinct_values_to_be_in_set", {"column": "kind", "value_set": ["even"]}),
    Expectation(
        "expect_column_values_to_be_between",
        {"column": "key", "max_value": 4, "row_condition": "kind = 'even'", "condition_parser": "spark"},
    ),
    Expectation("expect_column_values_to_be_increasing", {"column": "absent"}),
)
before = "great_expectations" in sys.modules
to_run = CheckToRun(Suite("s", "f", asked), Policy.FAIL, CheckReason.FRESH)
report = check(rows, to_run, Checked(stage="st", subtask=0, digest="", rows=10), lambda _: None)
persisted = session.sparkContext._jsc.getPersistentRDDs().size()
told = [(each.success, each.observed, each.rows, each.unexpected, each.examples, each.error) for each in report.results]
print(json.dumps({"before": before, "called": called, "results": told, "persisted": persisted}))
"""


@pytest.mark.soak
@pytest.mark.spark
def test_it_answers_on_a_session_of_its_own_without_calling_out(tmp_path) -> None:
    program = tmp_path / "offline.py"
    program.write_text(textwrap.dedent(OFFLINE))
    # A session to a Connect server in this process has told pyspark's children to make no other.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    command = [sys.executable, program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "Calculating Metrics" not in ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["before"], told["called"], told["persisted"]) == (False, [], 0)
    count, distinct, conditional, absent = told["results"]
    assert count == [True, 10, None, None, [], ""]
    assert distinct == [False, {"unexpected": ["odd"]}, None, None, ["odd"], ""]
    assert conditional == [False, None, 5, 2, [6, 8], ""]
    assert (absent[0], absent[5] != "") == (False, True)  # which of its metrics fails first is by chance

"""Pages about checks by Great Expectations' renderers, and the suites of the examples as it reads them."""

from __future__ import annotations

import json
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest

from weir.formats.checks import ExpectationResult
from weir.formats.quality_page import CheckToDocument, answer_from_json, request_to_json
from weir.formats.suite import Severity, suite_from_json
from weir_spark.checks.documents import main

SUITES = sorted((Path(__file__).parents[3] / "include/expectations").glob("*.json"))
EVIL = '<script src="https://example.org/x.js">$price</script>'


def result(type_, success, *, severity=Severity.FAIL, **more):
    return ExpectationResult(type_, more.pop("kwargs", {}), severity, success, **more)


RESULTS = (
    result(
        "expect_column_values_to_be_between",
        False,
        severity=Severity.WARN,
        kwargs={"column": "wind_speed", "min_value": 0, "max_value": 250},
        rows=72,
        unexpected=1,
        examples=(1048.36058, EVIL),
        blames=("weather",),
    ),
    result("expect_table_row_count_to_be_between", True, kwargs={"min_value": 1, "max_value": 80}, observed=72),
    result(
        "expect_column_values_to_be_in_set", True, kwargs={"column": EVIL, "value_set": ["EWR", EVIL]}, unexpected=0
    ),
    result(
        "expect_compound_columns_to_be_unique",
        False,
        kwargs={"column_list": ["carrier", EVIL]},
        rows=72,
        unexpected=2,
        examples=({"carrier": "UA", EVIL: EVIL},),
    ),
    result("expect_column_max_to_be_between", False, kwargs={"column": "dest", "max_value": "z"}, observed=EVIL),
    result("weir_digest_as_recorded", False, observed=EVIL),
    result("expect_what_nobody_knows", False, kwargs={"column": EVIL}, error=f"no such type {EVIL}"),
    result("expect_column_values_to_not_be_null", False, kwargs={"columns": "a"}, error=EVIL),
)


@pytest.fixture
def no_calls(monkeypatch):
    """Nobody is called: a connection to another host is an error of the test."""
    called = []

    def refuse(_, address):
        called.append(address)
        raise OSError(f"called {address}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    yield
    assert called == []


def documented(tmp_path, capsys, *checks):
    request, folder = tmp_path / "request.json", tmp_path / "pages"
    request.write_text(request_to_json(checks))
    folder.mkdir()
    assert main([str(request), str(folder)]) == 0
    answers = [answer_from_json(line) for line in capsys.readouterr().out.splitlines()]
    return {each.check: each for each in answers if each is not None}, folder


def check(number, results, outcome="failed"):
    facts = (("epoch", "20130212T000000Z"), ("digest", EVIL))
    return CheckToDocument(
        check=number,
        suite="weather_hours",
        outcome=outcome,
        rows=72,
        checked_at="2026-11-21T18:00:00+00:00",
        facts=facts,
        results=results,
    )


class _Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_a_page_shows_the_results_and_opens_no_connection(tmp_path, capsys, no_calls):
    answers, folder = documented(tmp_path, capsys, check(7, RESULTS), check(8, RESULTS[1:2], "passed"))
    assert {number: each.error for number, each in answers.items()} == {7: "", 8: ""}
    page = _Elements((folder / answers[7].file).read_text()).text
    for said in (
        "Suite weather_hours: failed",
        "20130212T000000Z",
        "(warn, blames weather)",
        "1048.36058",
        "1 unexpected values found. ≈1.389% of 72 total rows.",
        "The digest of the rows is the one that their manifest says.",
        f"no such type {EVIL}",
    ):
        assert said in page
    assert "Violated" not in (folder / answers[8].file).read_text()


def test_values_of_data_are_escaped_in_a_page_and_nothing_is_loaded(tmp_path, capsys, no_calls):
    answers, folder = documented(tmp_path, capsys, check(7, RESULTS))
    page = _Elements((folder / answers[7].file).read_text())
    assert page.text.count(EVIL) >= 8
    assert {"script", "link", "img", "iframe"} & {tag for tag, _ in page.found} == set()
    attributes = [(name, value or "") for _, each in page.found for name, value in each.items()]
    assert [each for each in attributes if each[0] == "src" or each[0].startswith("on")] == []
    assert [value for name, value in attributes if name == "href" and not value.startswith("#")] == []
    assert [value for name, value in attributes if name == "content" and "default-src 'none'" in value]


def test_a_check_that_cannot_be_rendered_prevents_no_other_page(tmp_path, capsys):
    broken = CheckToDocument(
        check=9,
        suite="weather_hours",
        outcome="failed",
        rows=72,
        checked_at="not a time",
        facts=(),
        results=RESULTS[:1],
    )
    answers, folder = documented(tmp_path, capsys, broken, check(7, RESULTS[:1]))
    assert "not a time" in answers[9].error
    assert (folder / answers[7].file).exists()


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_suites_of_the_examples_are_read_by_weir_and_by_gx_alike(path, no_calls):
    from great_expectations.core import ExpectationSuite

    document = json.loads(path.read_text())
    ours = suite_from_json(path.stem, path.read_bytes())
    theirs = ExpectationSuite(**document)
    assert theirs.name == path.stem
    found = [each.configuration for each in theirs.expectations]
    assert [(each.type, each.kwargs.get("column")) for each in found] == [
        (each.type, each.kwargs.get("column")) for each in ours.expectations
    ]
    severities = {"critical": Severity.FAIL, "warning": Severity.WARN, "info": Severity.WARN}
    assert [severities[each.severity] for each in found] == [each.severity for each in ours.expectations]

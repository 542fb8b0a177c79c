"""The demo's judgement: equal is equal, row by row."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from weir_dev.demo.evidence import Report, difference_of_reports, first_difference

ROWS = [{"kind": "carrier", "name": "AA", "flights": 3, "mean": Decimal("1.50")}, {"kind": "carrier", "name": "UA"}]


def test_equal_reports_have_no_difference():
    assert first_difference(ROWS, [dict(row) for row in ROWS]) is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([{**ROWS[0], "flights": 4}, ROWS[1]], "row 0: flights: 4, expected 3"),
        ([{**ROWS[0], "mean": None}, ROWS[1]], "mean: None"),
        (ROWS[:1], "1 rows, expected 2"),
        ([*ROWS, ROWS[1]], "3 rows, expected 2"),
        ([], "0 rows, expected 2"),
        ([ROWS[0], {**ROWS[1], "extra": 1}], "row 1: extra"),
        ([ROWS[0], {**ROWS[1], "extra": None}], "row 1: other columns"),
    ],
)
def test_a_difference_is_shown(found, message):
    assert message in first_difference(found, ROWS)


REPORT = Report(1, ("k:bigint:1",), ROWS)


def test_a_report_that_was_not_published_anew_is_the_same():
    assert difference_of_reports(REPORT, Report(1, ("k:bigint:1",), [dict(row) for row in ROWS])) is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (replace(REPORT, version=2), "version 2 is published, expected version 1 as before the loss"),
        (replace(REPORT, digests=("k:bigint:2",)), "its digests are k:bigint:2, expected k:bigint:1"),
        (replace(REPORT, rows=ROWS[:1]), "1 rows, expected 2"),
    ],
)
def test_a_report_that_is_another_than_before_the_loss_is_shown(found, message):
    assert message in difference_of_reports(found, REPORT)

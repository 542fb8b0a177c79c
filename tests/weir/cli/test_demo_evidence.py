"""The demo's judgement: equal is equal, row by row."""

from __future__ import annotations

from decimal import Decimal

import pytest

from weir.cli.demo_evidence import first_difference

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

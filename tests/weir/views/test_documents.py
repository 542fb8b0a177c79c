"""What values are in a document: JSON, whatever they are."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from weir.views.documents import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        ([{"n": float("-inf")}, 1.5, None], [{"n": "-Infinity"}, 1.5, None]),
        (Decimal("1.10"), "1.10"),
        (date(2013, 1, 1), "2013-01-01"),
        (datetime(2013, 1, 1, tzinfo=UTC), "2013-01-01T00:00:00+00:00"),
        ((b"\x00\xff", True), ["00ff", True]),
    ],
)
def test_a_value_is_as_json_has_it(value, expected):
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected

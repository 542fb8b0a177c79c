from datetime import UTC, datetime, timedelta

import pytest

from weir.doctor.clock import clock_difference, judge_clock
from weir.doctor.examination import Status

BEFORE = datetime(2026, 1, 5, 12, tzinfo=UTC)
AFTER = BEFORE + timedelta(seconds=10)


@pytest.mark.parametrize(("seconds", "difference"), [(-7, -7.0), (0, 0.0), (4, 0.0), (10, 0.0), (13, 3.0)])
def test_the_time_that_an_answer_took_is_no_difference(seconds, difference):
    assert clock_difference(BEFORE, BEFORE + timedelta(seconds=seconds), AFTER) == difference


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [
        (0.0, "ok", "agree"),
        (-4.0, "ok", "agree"),
        (60.0, "warning", "60 s ahead of"),
        (-60.0, "warning", "60 s behind"),
    ],
)
def test_a_clock_that_is_wrong_is_a_warning(seconds, status, words):
    found = judge_clock("store", "the store's file times", seconds)
    assert found.status is Status(status)
    assert words in found.found

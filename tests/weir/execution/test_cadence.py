"""Epochs follow each other as Airflow's own timetables divide time, and what is to exist follows from what is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from weir.execution.cadence import Cadence, KnownEpoch, expected

DAILY = Cadence("0 0 * * *", "UTC")
HOURLY = Cadence.of_length(timedelta(hours=1))
DAY = timedelta(days=1)

CLOCKS = {  # a zone, and shortly before its clocks change
    "Europe/Berlin": (datetime(2026, 3, 28, 21, tzinfo=UTC), datetime(2026, 10, 24, 21, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 3, tzinfo=UTC), datetime(2026, 11, 1, 2, tzinfo=UTC)),
    "America/Havana": (datetime(2026, 3, 8, 1, tzinfo=UTC), datetime(2026, 11, 1, 1, tzinfo=UTC)),  # at midnight
}
EXPRESSIONS = (
    *("0 0 * * *", "30 2 * * *", "0 2 * * 1-5", "0 */2 * * *", "15 1,2,3 * * *", "0 * * * *", "*/30 * * * *"),
    *("0 3 * * 0", "0 0 L * *", "0 0 * * * 30"),
)


def day(number, month=1):
    return datetime(2026, month, number, tzinfo=UTC)


def days(*numbers):
    return [(day(each), day(each) + DAY) for each in numbers]


def known(number, cadence=DAILY, **facts):
    return KnownEpoch(day(number), day(number) + DAY, cadence, **facts)


def of_airflow(expression, zone, at, count):
    """The intervals of Airflow's timetable, one after the other."""
    import pendulum
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    timetable, last = CronDataIntervalTimetable(expression, zone), None
    for _ in range(count):
        restriction = TimeRestriction(pendulum.instance(at), None, catchup=True)
        last = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction).data_interval
        yield last.start, last.end


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_cron_expression_divides_time_as_airflow_does_where_clocks_change_too(expression):
    for zone, changes in CLOCKS.items():
        cadence = Cadence(expression, zone)
        for at in changes:
            theirs = list(of_airflow(expression, zone, at, 16))
            assert (zone, list(islice(cadence.after(theirs[0][0]), 16))) == (zone, theirs)
            assert (zone, [cadence.interval_at(start) for start, _ in theirs]) == (zone, theirs)


def test_no_interval_begins_between_two_times_of_a_cron_expression():
    assert DAILY.interval_at(day(3)) == (day(3), day(4))
    assert DAILY.interval_at(day(3) + timedelta(hours=1)) is None
    berlin = Cadence("0 0 * * *", "Europe/Berlin")
    assert berlin.interval_at(day(3)) is None
    before = timedelta(hours=1)
    assert berlin.interval_at(day(3) - before) == (day(3) - before, day(4) - before)


def test_an_expression_that_names_no_later_time_ends():
    assert list(Cadence("0 0 30 2 *", "UTC").after(day(1))) == []
    assert Cadence("0 0 30 2 *", "UTC").interval_at(day(1)) is None


@pytest.mark.parametrize("seconds", [1, 1.5, 3600, 86400 * 100])
def test_a_length_is_written_and_read_without_loss(seconds):
    cadence = Cadence.of_length(timedelta(seconds=seconds))
    assert (cadence.every, cadence.length) == (f"PT{seconds}S", timedelta(seconds=seconds))
    assert DAILY.length is None


def test_a_length_begins_anywhere():
    at = day(1) + timedelta(minutes=17)
    hour = timedelta(hours=1)
    assert list(islice(HOURLY.after(at), 2)) == [(at, at + hour), (at + hour, at + 2 * hour)]
    assert HOURLY.interval_at(at) == (at, at + hour)


EXPECTED = {
    "nothing is expected of nothing": ([], day(9), []),
    "before the first": ([known(3)], day(4), days(3)),
    "between two of one cadence, and after the newest": ([known(1), known(4)], day(6), days(1, 2, 3, 4, 5)),
    "only what has ended": ([known(1), known(4)], day(3) + timedelta(hours=5), days(1, 2)),
    "a known one that has not ended": ([known(1), known(4)], day(4), days(1, 2, 3)),
    "given up": ([known(1), known(2, None, is_given_up=True), known(4)], day(5), days(1, 3, 4)),
    "given up, and the newest": ([known(1), known(3, None, is_given_up=True)], day(5), days(1, 2, 4)),
    "none but given up": ([known(1, is_given_up=True)], day(9), []),
    "without a cadence": ([known(1, None), known(4, None)], day(9), days(1, 4)),
    "a cadence that has ended": ([known(1), known(4, None)], day(9), days(1, 4)),
    "another zone": ([known(1, Cadence("0 0 * * *", "Asia/Kolkata")), known(4)], day(6), days(1, 4, 5)),
    "there and back": ([known(1), known(3, None), known(5)], day(7), days(1, 3, 5, 6)),
    "not in order": ([known(4), known(1)], day(5), days(1, 2, 3, 4)),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_what_is_to_exist_follows_from_what_is_known(case):
    given, until, found = EXPECTED[case]
    assert expected(given, until) == found


def test_what_a_person_chose_wins_over_what_the_cadence_would_have_and_nothing_overlaps():
    odd = (day(3) + timedelta(hours=10), day(3) + timedelta(hours=11))
    for cadence in (DAILY, Cadence("PT86400S", "UTC")):
        given = [known(1, cadence), KnownEpoch(*odd, cadence), known(5, cadence)]
        assert expected(given, day(7)) == [*days(1, 2), odd, *days(4, 5, 6)]
        assert expected(given[:2], day(5)) == [*days(1, 2), odd, *days(4)]


def test_a_run_that_overlaps_the_scheduled_ones_moves_no_grid():
    half = timedelta(minutes=30)
    hour = timedelta(hours=1)
    first, odd = (day(1), day(1) + hour), (day(1) + half, day(1) + half + hour)
    given = [KnownEpoch(*first, HOURLY), KnownEpoch(*odd, HOURLY)]
    assert expected(given, day(1) + 4 * hour) == [
        first,
        odd,
        *((day(1) + each * hour, day(1) + (each + 1) * hour) for each in (2, 3)),
    ]


def test_an_epoch_without_length_is_only_what_it_is():
    moment = KnownEpoch(day(3), day(3), DAILY)
    assert expected([known(1), moment], day(5)) == [*days(1, 2), (day(3), day(3)), *days(4)]
    assert expected([moment], day(5)) == [(day(3), day(3))]


def test_a_cadence_of_minutes_is_followed_no_further_than_asked():
    minutely = Cadence("* * * * *", "Europe/Berlin")
    minute = timedelta(minutes=1)
    ancient = KnownEpoch(day(1), day(1) + minute, minutely)
    assert len(expected([ancient], day(1) + 5 * minute)) == 5


def test_a_schedule_without_a_cadence_has_none_and_a_time_zone_left_out_is_utc():
    assert Cadence.of(None, "Europe/Berlin") is None
    assert Cadence.of("@daily", None) == Cadence("@daily", "UTC")

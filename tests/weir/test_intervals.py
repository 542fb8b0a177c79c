"""An interval in the time zone of its schedule, and one without length."""

import pickle
from datetime import UTC, date, datetime, timedelta

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import files_source
from weir.dataflow.sources import bounds_of, days_in_utc, filled
from weir.errors import Misconfigured
from weir.intervals import in_zone, interval_of, offset_name, time_zone

KOLKATA = "Asia/Kolkata"
NEW_YEAR = (datetime(2026, 1, 1, 18, 30, tzinfo=UTC), datetime(2026, 1, 2, 18, 30, tzinfo=UTC))
"""The second of January in Kolkata."""


def test_a_path_names_the_day_as_it_is_where_the_schedule_is():
    path = "/data/{start_local:%Y-%m-%d}-{end_local:%d}/{start:%Y-%m-%d}.csv"
    assert filled("x", path, NEW_YEAR, KOLKATA) == "/data/2026-01-02-03/2026-01-01.csv"
    assert filled("x", path, NEW_YEAR, "+05:30") == "/data/2026-01-02-03/2026-01-01.csv"
    assert files_source("x", path).options["path"] == path
    with pytest.raises(Misconfigured, check=of_kind("dataflow.placeholder_unknown")):
        files_source("x", "/data/{begin}/*")


@pytest.mark.parametrize(
    ("zone", "day", "hours"), [("Europe/Berlin", (2026, 3, 29), 23), ("America/New_York", (2026, 11, 1), 25)]
)
def test_a_day_has_23_or_25_hours_where_clocks_change(zone, day, hours):
    start = datetime(*day, tzinfo=time_zone(zone))
    end = datetime.combine(date(*day) + timedelta(days=1), datetime.min.time(), time_zone(zone))
    utc = (start.astimezone(UTC), end.astimezone(UTC))
    assert utc[1] - utc[0] == timedelta(hours=hours)
    local = in_zone(utc, zone)
    assert [each.date() for each in local] == [date(*day), date(*day) + timedelta(days=1)]
    assert filled("x", "{start_local:%d %H%z}", utc, zone) == format(start, "%d %H%z")


def test_a_zone_that_is_not_known_is_refused_where_it_is_asked_for():
    assert filled("x", "{start:%d}", NEW_YEAR, "") == "01"
    for zone in ("", "Mars/Base", "../etc/passwd"):
        with pytest.raises(Misconfigured):
            filled("x", "{start_local:%d}", NEW_YEAR, zone)


def test_an_offset_has_a_name_that_is_read_back():
    for offset in (
        timedelta(),
        timedelta(hours=5, minutes=30),
        -timedelta(hours=9, minutes=30),
        timedelta(seconds=17762),
    ):
        assert time_zone(offset_name(offset)).utcoffset(None) == offset


def test_the_end_of_an_interval_without_length_is_refused_and_its_start_is_not():
    moment = interval_of(NEW_YEAR[0], NEW_YEAR[0])
    for each in (moment, in_zone(moment, KOLKATA), pickle.loads(pickle.dumps(moment))):  # noqa: S301
        assert each[0] == NEW_YEAR[0]
        for ask in (lambda each=each: each[1], lambda each=each: each[-1], lambda each=each: tuple(each)):
            with pytest.raises(Misconfigured, match="data_interval_start"):
                ask()
    assert filled("x", "{start_local:%d}", moment, KOLKATA) == "02"
    assert bounds_of(moment, KOLKATA, ["start"]) == {"start": NEW_YEAR[0]}
    with pytest.raises(Misconfigured):
        filled("x", "{start:%d}{end:%d}", moment)
    assert interval_of(*NEW_YEAR) == NEW_YEAR


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("/data/{start:%Y-%m-%d}/*", ["{start_local:%Y-%m-%d}"]),
        ("where day = '{end:%Y%m%d}'", ["{end_local:%Y%m%d}"]),
        ("where day = %(start)s::date and at < %(end)s", ["%(start_local)s::date"]),
        ("where day = cast(%(end)s as date)", ["%(end_local)s::date"]),
        ("WHERE day = to_date({{ ctx.interval[0] }})", ["{{ ctx.local_interval[0].date }}"]),
        ("--day={{ ctx.interval[1].date }}", ["{{ ctx.local_interval[1].date }}"]),
        ("/data/{start_local:%d}/{{start}}/{start:%Y}", []),
        ("where at >= %(start)s and day = %(start_local)s::date", []),
        ("where at >= {{ ctx.interval[0] }}", []),
    ],
)
def test_a_day_in_utc_is_told_where_the_schedule_has_another(text, instead):
    assert [local for _, local in days_in_utc(text, "Asia/Tokyo") if "%Y}" not in local] == instead
    assert list(days_in_utc(text, "UTC")) == list(days_in_utc(text, "Africa/Abidjan")) == []

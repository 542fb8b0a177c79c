"""The stage functions of `dags/flight_history.py`: what is known of each aircraft and route out of New York in 2013.

Invariant: equal flights give equal history, in whatever order their rows come: sums are of integers, ties are broken.

An epoch is one calendar day in New York. Flights are read and cleaned as in `flight_delays`; here only those count that
departed. The history of the days before is not computed again: it is state, which the epoch before has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from weir_spark.region.context import StageContext
    from weir_spark.state.keyed_state import KeyedState


def departures(ctx: StageContext, flights: DataFrame) -> DataFrame:
    """Keep the flights that departed.

    Input: the columns of `flight_delays.clean`. Output: tailnum, origin, dest, day (date, that of the epoch),
    time_hour, departure_delay (bigint, minutes).
    """
    return flights.where(F.col("departure_delay").isNotNull()).select(
        "tailnum",
        "origin",
        "dest",
        F.lit(ctx.interval[0].date()).alias("day"),
        "time_hour",
        "departure_delay",
    )


def aircraft(ctx: StageContext, flights: DataFrame, history: KeyedState) -> DataFrame:  # noqa: ARG001
    """Add the day to the history of each aircraft that departed.

    Input: the columns of `departures`, by tailnum. State: by tailnum, flights (bigint, departures), minutes_late
    (bigint, early departures count as punctual), last_seen (timestamp, the hour of the newest departure), worst_route
    (`EWR-IAH`, that of the longest delay, the earliest of equal ones) and worst_delay (bigint, its minutes). Output:
    the new rows of the state, one for each aircraft of the day. Flights of unknown aircraft are left out.
    """
    known = history.read().selectExpr("tailnum", "struct(*) AS known")
    day = flights.dropna(subset=["tailnum"]).groupBy("tailnum").agg(*_of_day()).join(known, "tailnum", "left")
    # Of equally long delays the earlier day's stays.
    is_worse = F.col("known").isNull() | (F.col("worst_delay") > F.col("known.worst_delay"))
    added = day.select(
        "tailnum",
        _plus_known("flights"),
        _plus_known("minutes_late"),
        "last_seen",
        F.when(is_worse, F.col("worst_route")).otherwise(F.col("known.worst_route")).alias("worst_route"),
        F.when(is_worse, F.col("worst_delay")).otherwise(F.col("known.worst_delay")).alias("worst_delay"),
    )
    history.upsert(added)
    return added


def route_days(ctx: StageContext, flights: DataFrame, days: KeyedState) -> DataFrame:  # noqa: ARG001
    """Keep each route's day as long as it counts.

    Input: the columns of `departures`, by origin, dest and day. State: by the same, for 7 days, flights (bigint,
    departures) and departure_delay (bigint, minutes, early ones negative). Output: the rows of the state that count in
    this epoch, those of its own day among them.
    """
    today = flights.groupBy("origin", "dest", "day").agg(
        F.count("*").alias("flights"), F.sum("departure_delay").cast("bigint").alias("departure_delay")
    )
    days.upsert(today)
    return days.read().unionByName(today)


def rolling(ctx: StageContext, days: DataFrame) -> DataFrame:
    """Sum up the days of each route that count.

    Input: the rows of `route_days`, by origin and dest. Output: day (date, the last one), origin, dest, days (bigint,
    on which it was flown), flights, departure_delay (bigint, minutes, summed), mean_departure_delay (decimal(9,2)).
    """
    summed = days.groupBy("origin", "dest").agg(
        F.count("*").alias("days"),
        F.sum("flights").alias("flights"),
        F.sum("departure_delay").alias("departure_delay"),
    )
    # A mean of doubles would depend on the order of the rows; decimals are divided half away from zero.
    exact = F.col("departure_delay").cast("decimal(18,0)") / F.col("flights").cast("decimal(18,0)")
    return summed.select(
        F.lit(ctx.interval[0].date()).alias("day"),
        "origin",
        "dest",
        "days",
        "flights",
        "departure_delay",
        exact.cast("decimal(9,2)").alias("mean_departure_delay"),
    )


def _of_day() -> list[Column]:
    route = F.concat_ws("-", "origin", "dest")
    earliest_of_longest = F.struct("departure_delay", -F.unix_micros("time_hour"), route)
    late = F.greatest(F.col("departure_delay"), F.lit(0))
    return [
        F.count("*").alias("flights"),
        F.sum(late).cast("bigint").alias("minutes_late"),
        F.max("time_hour").alias("last_seen"),
        F.max_by(route, earliest_of_longest).alias("worst_route"),
        F.max("departure_delay").alias("worst_delay"),
    ]


def _plus_known(name: str) -> Column:
    return (F.col(name) + F.coalesce(F.col(f"known.{name}"), F.lit(0))).alias(name)

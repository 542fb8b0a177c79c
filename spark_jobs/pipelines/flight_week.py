"""The stage of the second example: a week of the reports that the dataflow flight_delays publishes each day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir_spark.region.context import StageContext


def week(ctx: StageContext, reports: DataFrame) -> DataFrame:
    """Sum the reports of up to seven days up.

    Input: day (date), kind, name, flights, cancelled, late, departure_delay, as `report` of flight_delays gives them.
    Output, one row for each kind and name: kind, name, until (date: that of the epoch), days (bigint: on how many it
    has flown), flights, cancelled, late, departure_delay (bigint, the last one in minutes), worst_day (date: that with
    the most minutes of departure delay, the earliest of equal ones).
    """
    worst = F.struct("departure_delay", -F.unix_date("day"))
    return reports.groupBy("kind", "name").agg(
        F.lit(ctx.interval[0].date()).alias("until"),
        F.count_distinct("day").alias("days"),
        *(F.sum(name).alias(name) for name in ("flights", "cancelled", "late", "departure_delay")),
        F.max_by("day", worst).alias("worst_day"),
    )

"""A day's flights many times over, so that what a dataflow costs a row can be told from what it costs a task.

Invariant: copies differ in the flight's number only, so that none is taken for a duplicate of another.
"""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from pipelines import flight_delays

BEYOND_ALL_NUMBERS = 10_000


def copied(flights, spark, copies):
    """Multiply the rows of `flights`, whose columns stay."""
    if copies == 1:
        return flights
    number = F.col("flight") + BEYOND_ALL_NUMBERS * F.col("id")
    return flights.crossJoin(spark.range(copies)).withColumn("flight", number).drop("id")


def flights(ctx, part):
    """The source `flights` of `pipelines.flight_delays`, times the run's parameter `copies`."""
    return copied(flight_delays.flights(ctx, part), ctx.spark, ctx.parameters["copies"])

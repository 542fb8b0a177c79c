"""The five steps of the flights as a careful engineer would write them without Weir, with Parquet between them.

    spark-submit flights_by_hand.py clean|lookups|join|sums|report|everything --day 2013-01-01 --copies 1 --folder PATH

Invariant: a step overwrites what an earlier try of it has left. The functions are those that Weir runs, so that both
compute the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from many_flights import copied
from pyspark.sql import DataFrame, SparkSession

from pipelines import flight_delays

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True)
class Day:
    """One day's data, and the session that computes it: what the stage functions ask of a context."""

    spark: SparkSession
    interval: tuple[datetime, datetime]
    copies: int
    folder: str
    parallelism: int = 1

    def source(self, name):
        """The rows of one of the three files."""
        (part,) = getattr(flight_delays, f"resolve_{name}")(self)
        return getattr(flight_delays, name)(self, part)

    def read(self, name) -> DataFrame:
        """What an earlier step has written."""
        return self.spark.read.parquet(f"{self.folder}/{name}")

    def write(self, name, rows) -> None:
        """Write a step's result in place of any earlier one."""
        rows.write.mode("overwrite").parquet(f"{self.folder}/{name}")


def clean(day):
    """Read and clean the flights."""
    day.write("clean", _cleaned(day))


def lookups(day):
    """Read the day's weather, and the planes."""
    for name in ("weather", "planes"):
        day.write(name, day.source(name))


def join(day):
    """Bring the three together."""
    day.write("join", flight_delays.join(day, day.read("clean"), day.read("weather"), day.read("planes")))


def sums(day):
    """Sum up by carrier and by route."""
    joined = day.read("join")
    day.write("by_carrier", flight_delays.by_carrier(day, joined))
    day.write("by_route", flight_delays.by_route(day, joined))


def report(day):
    """Make one report of both."""
    day.write("report", flight_delays.report(day, day.read("by_carrier"), day.read("by_route")))


def everything(day):
    """All steps in one session: nothing but the report is written."""
    joined = flight_delays.join(day, _cleaned(day), day.source("weather"), day.source("planes")).cache()
    sums = flight_delays.by_carrier(day, joined), flight_delays.by_route(day, joined)
    day.write("report", flight_delays.report(day, *sums))


def _cleaned(day):
    return flight_delays.clean(day, copied(day.source("flights"), day.spark, day.copies))


STEPS = {step.__name__: step for step in (clean, lookups, join, sums, report, everything)}


def run(step, spark, day, copies, folder):
    """Run one step for a day (`2013-01-01`), in `folder/day`."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    STEPS[step](Day(spark, (start, start + timedelta(days=1)), int(copies), f"{folder}/{day}"))


def main():
    """Run the step that the command line names, in a session of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=STEPS)
    for name in ("day", "copies", "folder"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName(f"flights {given.step} {given.day}").getOrCreate()
    run(given.step, spark, given.day, given.copies, given.folder)
    spark.stop()


if __name__ == "__main__":
    main()

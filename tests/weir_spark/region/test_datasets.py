"""Rows of data sets on Spark: a reader of several epochs gets those that were published, divided by keys or whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.weir.datasets.neighbours import DAILY, HOURLY, NeighbouringAirflow, Neighbours
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

import weir
from weir.dataflow import Dataflow, Stage, blocking, dataset, last, sink, source
from weir.formats.codec import region_job_from_json
from weir.formats.region_job import JOB_NAME
from weir.store.catalogue import published

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

def raw(ctx):
    hour = F.lit(ctx.interval[0].hour + 24 * ctx.interval[0].day)
    rows = ctx.spark.range(40).withColumn("hour", hour)
    return rows.select(
        F.when(F.col("id") % 7 > 0, F.concat(F.lit("zone "), F.col("id") % 5)).alias("zone"),
        F.col("hour"),
        (F.col("id") * F.col("hour")).cast("decimal(12,2)").alias("fare"),
        F.array(F.col("id"), F.lit(None)).alias("more"),
    )

def by_zone(ctx, raw):
    return raw

def totals(ctx, zones):
    return zones.groupBy("zone").agg(F.count("*").alias("rows"), F.sum("fare").alias("fare"))

def whole(ctx, zones):
    assert zones.columns == ["fare", "zone"], zones.columns
    return zones.groupBy("zone").agg(F.count("*").alias("rows"), F.sum("fare").alias("fare"))
"""


class NeighbourOnSpark(NeighbouringAirflow, AirflowWithCode):
    """One of several dataflows, whose code is packed and whose regions Spark computes."""


class Town(Neighbours):
    """Dataflows of one module of stage functions."""

    module = ""

    def __init__(self, folder, store, url):
        super().__init__(folder, store=store)
        self.url, self.modules = url, folder / "modules"

    def add(self, flow, every):
        engine = OnSpark(self.url, self.store)
        self.airflows[flow.name] = NeighbourOnSpark(self.services, engine, flow, self, every)
        return self.airflows[flow.name]

    def edit(self, old, new):
        """Deploy other code."""
        file = self.modules / f"{self.module}.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))


DAY = "20130101T000000Z"


def trips(module, by=()):
    """Two subtasks, whose rows are published."""
    stages = [
        source("raw", f"{module}:raw"),
        Stage("by_zone", f"{module}:by_zone", [blocking("raw", by="zone")], parallelism=2),
    ]
    return Dataflow("trips", [*stages, sink("by_zone", "zones", by=by)])


@pytest.fixture
def town(server, store, tmp_path, pipeline):
    found = Town(tmp_path, store, server.url)
    found.module = pipeline(PIPELINE)
    found.add(trips(found.module), HOURLY)
    yield found
    found.ledger.close()


def published_rows(town, sink):
    """The rows that the report's day has of a sink: zone, rows, fare."""
    root = Path(town.store.url.removeprefix("file://"))
    files = [
        file
        for part in published(town.store, "report", sink, DAY).partitions
        for file in (root / part.folder).glob("*.parquet")
    ]
    return {row["zone"]: (row["rows"], int(row["fare"])) for file in files for row in pq.read_table(file).to_pylist()}


def expected(*hours):
    """What plain Python computes of the same hours of the first day."""
    rows = [(f"zone {each % 5}" if each % 7 else None, each * (hour + 24)) for hour in hours for each in range(40)]
    zones = {zone for zone, _ in rows}
    return {zone: (sum(of == zone for of, _ in rows), sum(fare for of, fare in rows if of == zone)) for zone in zones}


def test_all_rows_of_all_epochs_are_read_by_keys_and_whole(town):
    trips = town.airflows["trips"]
    for hour in (21, 22, 23):
        trips.hour_run(1, hour)
        trips.run_until_quiet()
    totals = Stage(
        "totals", f"{town.module}:totals", {"zones": dataset("trips.zones", by="zone", epoch="within")}, parallelism=3
    )
    two = dataset("trips.zones", epoch=last(2), schema="fare DECIMAL(12,2), zone STRING")
    whole = Stage("whole", f"{town.module}:whole", {"zones": two})
    report = town.add(Dataflow("report", [totals, sink(totals, "out"), whole, sink(whole, "two")]), DAILY)
    (run,) = town.run("report", 1)
    assert report.state_of(run) == "success", [task.failed_because for task in report.tasks.values()]
    assert published_rows(town, "out") == expected(21, 22, 23)
    assert published_rows(town, "two") == expected(22, 23)


def test_files_that_are_divided_by_the_reader_s_keys_are_read_in_part_and_others_are_filtered(town):
    hourly = town.airflows["trips"]
    for hour, by in ((20, ()), (21, "zone"), (22, ["zone", "hour"]), (23, "zone")):
        hourly.flow = trips(town.module, by)
        hourly.hour_run(1, hour)
        hourly.run_until_quiet()
    zones = dataset("trips.zones", by="zone", epoch=last(4))
    totals = Stage("totals", f"{town.module}:totals", {"zones": zones}, parallelism=3)
    report = town.add(Dataflow("report", [totals, sink(totals, "out")]), DAILY)
    (run,) = town.run("report", 1)
    assert report.state_of(run) == "success", [task.failed_because for task in report.tasks.values()]
    assert published_rows(town, "out") == expected(20, 21, 22, 23)
    jobs = Path(town.store.url.removeprefix("file://"), "report").rglob(JOB_NAME)
    inputs = [read for job in jobs for read in region_job_from_json(job.read_bytes()).stages[0].inputs]
    assert sorted(each.key_groups for each in inputs) == [(0, 42), (43, 85), (86, 127)]
    layouts = [part.layout[:9] for each in inputs for part in each.partitions]
    assert layouts == 3 * ["plain", "plain", "", "", "by-zone-h", "by-zone-h", "", ""]
    with weir.open("trips", "20130101T230000Z", "zones", services=town.services) as opened:
        assert opened.arrow().column_names == ["zone", "hour", "fare", "more"]


def test_other_rows_of_one_hour_are_in_the_report_and_lost_ones_come_back(town):
    trips = town.airflows["trips"]
    runs = [trips.hour_run(1, hour) for hour in (22, 23)]
    trips.run_until_quiet()
    totals = Stage("totals", f"{town.module}:totals", {"zones": dataset("trips.zones", by="zone", epoch="within")})
    report = town.add(Dataflow("report", [totals, sink(totals, "out")]), DAILY)
    (run,) = town.run("report", 1)
    assert published_rows(town, "out") == expected(22, 23)
    town.edit("ctx.interval[0].hour", "min(ctx.interval[0].hour, 22)")
    trips.clear_run_by_hand(runs[1])
    town.go_on()
    assert report.state_of(run) == "success"
    assert published_rows(town, "out") == expected(22, 22)
    town.lose("trips", "zones", hour=23)
    report.clear_by_hand(run, "totals-out")
    town.go_on()
    assert report.state_of(run) == "success"
    assert trips.task(runs[1], "by_zone-zones", 0).try_number == 3
    assert published_rows(town, "out") == expected(22, 22)

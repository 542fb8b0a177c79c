"""Trips of taxis by zone, one run a day."""

from datetime import UTC, datetime
from pathlib import Path

from weir.dataflow import Dataflow, Stage, blocking, files, files_source, pipelined, sink
from weir_airflow.dag import dataflow_dag

PROJECT = Path(__file__).parents[1]

trips = files_source(
    "trips",
    f"{PROJECT}/data/{{start:%Y-%m-%d}}.csv",
    format="csv",
    schema="trip_id BIGINT, zone STRING, distance DOUBLE",
    reader={"header": "true"},
)
clean = Stage("clean", "trips_stages:clean", [pipelined(trips)])  # in the same Spark plan as `trips`
by_zone = Stage("by_zone", sql="sql/by_zone.sql", inputs=[blocking(clean, by="zone")], parallelism=2)
zones = sink(by_zone, "zones", to=files(f"{PROJECT}/out/zones", partition="day"))

dag = dataflow_dag(
    Dataflow("trips", [trips, clean, by_zone, zones]),
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 3, tzinfo=UTC),
    catchup=True,
    max_active_runs=2,  # days that run side by side, the oldest first
    is_paused_upon_creation=False,
)

"""The week up to each day: a second dataflow, which reads what `flight_delays` publishes and runs when that does.

The stage function is in `spark_jobs/pipelines/flight_week.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, dataset, last, sink
from weir_airflow import dataflow_dag, on_dataset

COLUMNS = "day DATE, kind STRING, name STRING, flights BIGINT, cancelled BIGINT, late BIGINT, departure_delay BIGINT"

week = Stage(
    "week",
    "pipelines.flight_week:week",
    {"reports": dataset("flight_delays.delays", epoch=last(7), schema=COLUMNS)},
)

flow = Dataflow("flight_week", [week, sink(week, "weeks")])

dag = dataflow_dag(
    flow,
    schedule=on_dataset("flight_delays.delays"),
    cadence="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
)

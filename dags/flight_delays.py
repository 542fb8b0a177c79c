"""Delays of the flights out of New York in 2013: every day a report by carrier and by route.

The stage functions are in `spark_jobs/pipelines/flight_delays.py`. Set WEIR_FLIGHTS_LAST_DAY to run fewer days. The
report is also published as files below WEIR_FLIGHTS_LAKE, a local folder, and into the table `delays` of the database
of the Airflow connection WEIR_FLIGHTS_DATABASE, where these are set: `./weir up` sets both.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, expectations, files, pipelined, postgres, sink, source
from weir_airflow.dag import dataflow_dag

FUNCTIONS = "pipelines.flight_delays"
HOUR = ("origin", "time_hour")

flights = source("flights", f"{FUNCTIONS}:flights", resolve=f"{FUNCTIONS}:resolve_flights", parallelism=3)
clean = Stage(
    "clean",
    f"{FUNCTIONS}:clean",
    {"flights": pipelined(flights)},
    parallelism=3,
    quality=expectations("flights_clean"),
)
weather = source(
    "weather",
    f"{FUNCTIONS}:weather",
    resolve=f"{FUNCTIONS}:resolve_weather",
    quality=expectations("weather_hours"),
)
planes = source("planes", f"{FUNCTIONS}:planes", resolve=f"{FUNCTIONS}:resolve_planes")
join = Stage(
    "join",
    f"{FUNCTIONS}:join",
    {
        "flights": blocking(clean, by=HOUR),
        "weather": blocking(weather, by=HOUR),
        "planes": blocking(planes, broadcast=True),
    },
    parallelism=2,
    quality=expectations("flights_joined", policy="backtrack"),
)
by_carrier = Stage("by_carrier", f"{FUNCTIONS}:by_carrier", {"flights": blocking(join, by="carrier")}, parallelism=2)
by_route = Stage("by_route", f"{FUNCTIONS}:by_route", {"flights": blocking(join, by=("origin", "dest"))}, parallelism=2)
report = Stage("report", f"{FUNCTIONS}:report", {"carriers": blocking(by_carrier), "routes": blocking(by_route)})

lake, database = os.environ.get("WEIR_FLIGHTS_LAKE"), os.environ.get("WEIR_FLIGHTS_DATABASE")
targets = [
    *([files(lake, partition="date")] if lake else []),
    *([postgres(database, "delays", create="if_missing")] if database else []),
]

flow = Dataflow(
    "flight_delays",
    [flights, clean, weather, planes, join, by_carrier, by_route, report, sink(report, "delays", to=targets)],
)

dag = dataflow_dag(
    flow,
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime.fromisoformat(os.environ.get("WEIR_FLIGHTS_LAST_DAY", "2013-12-31")).replace(tzinfo=UTC),
    catchup=True,
    max_active_runs=2,
)

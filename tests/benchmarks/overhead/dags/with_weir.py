"""The dataflow of `dags/flight_delays.py`, as it is there and with one subtask a stage."""

from __future__ import annotations

from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir_airflow.dag import dataflow_dag

FUNCTIONS = "pipelines.flight_delays"
HOUR = ("origin", "time_hour")


def flow(name, airports, parallelism, reuse="never"):
    """The stages; `airports` and `parallelism` are 3 and 2 in the original."""
    of_sources = "equal" if reuse == "equal" else None  # their splits have a mark of what they read
    flights = source(
        "flights",
        "many_flights:flights",
        resolve=f"{FUNCTIONS}:resolve_flights",
        parallelism=airports,
        reuse=of_sources,
    )
    clean = Stage("clean", f"{FUNCTIONS}:clean", {"flights": pipelined(flights)}, parallelism=airports)
    weather = source("weather", f"{FUNCTIONS}:weather", resolve=f"{FUNCTIONS}:resolve_weather", reuse=of_sources)
    planes = source("planes", f"{FUNCTIONS}:planes", resolve=f"{FUNCTIONS}:resolve_planes", reuse=of_sources)
    inputs = {
        "flights": blocking(clean, by=HOUR),
        "weather": blocking(weather, by=HOUR),
        "planes": blocking(planes, broadcast=True),
    }
    join = Stage("join", f"{FUNCTIONS}:join", inputs, parallelism=parallelism)
    by_carrier = Stage(
        "by_carrier", f"{FUNCTIONS}:by_carrier", {"flights": blocking(join, by="carrier")}, parallelism=parallelism
    )
    by_route = Stage(
        "by_route", f"{FUNCTIONS}:by_route", {"flights": blocking(join, by=("origin", "dest"))}, parallelism=parallelism
    )
    sums = {"carriers": blocking(by_carrier), "routes": blocking(by_route)}
    report = Stage("report", "edited_report:report" if of_sources else f"{FUNCTIONS}:report", sums)
    stages = [flights, clean, weather, planes, join, by_carrier, by_route, report, sink(report, "delays")]
    return Dataflow(name, stages, parameters={"copies": 1}, reuse=reuse, keep="30 days" if of_sources else None)


COMMON = {"schedule": None, "start_date": datetime(2013, 1, 1, tzinfo=UTC)}

flights_connect = dataflow_dag(flow("flights_connect", 3, 2), **COMMON)
flights_connect_1 = dataflow_dag(flow("flights_connect_1", 1, 1), **COMMON)
flights_reuse = dataflow_dag(flow("flights_reuse", 1, 1, "equal"), **COMMON)

BY_SUBMIT = {**COMMON, "spark_conn_id": "benchmark_submit"}

flights_submit = dataflow_dag(flow("flights_submit", 3, 2), **BY_SUBMIT)
flights_submit_1 = dataflow_dag(flow("flights_submit_1", 1, 1), **BY_SUBMIT)

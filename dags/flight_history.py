"""What is known of each aircraft and route out of New York in 2013, kept from day to day instead of computed anew.

The stage functions are in `spark_jobs/pipelines/flight_history.py`. Set WEIR_FLIGHTS_LAST_DAY to run fewer days.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, pipelined, sink, source
from weir_airflow.dag import dataflow_dag

FLIGHTS = "pipelines.flight_delays"
FUNCTIONS = "pipelines.flight_history"
ROUTE = ("origin", "dest")
ROUTE_DAY = (*ROUTE, "day")

flights = source("flights", f"{FLIGHTS}:flights", resolve=f"{FLIGHTS}:resolve_flights", parallelism=3)
clean = Stage("clean", f"{FLIGHTS}:clean", {"flights": pipelined(flights)}, parallelism=3)
departures = Stage("departures", f"{FUNCTIONS}:departures", {"flights": pipelined(clean)}, parallelism=3)
aircraft = Stage(
    "aircraft",
    f"{FUNCTIONS}:aircraft",
    {"flights": blocking(departures, by="tailnum")},
    parallelism=2,
    state=keyed_state(
        "history",
        key="tailnum",
        schema="tailnum STRING, flights BIGINT, minutes_late BIGINT, last_seen TIMESTAMP, worst_route STRING, "
        "worst_delay BIGINT",
        grows=True,
        quality=expectations("aircraft_history", when="restored"),
    ),
)
route_days = Stage(
    "route_days",
    f"{FUNCTIONS}:route_days",
    {"flights": blocking(departures, by=ROUTE_DAY)},
    parallelism=2,
    state=keyed_state(
        "days",
        key=ROUTE_DAY,
        schema="origin STRING, dest STRING, day DATE, flights BIGINT, departure_delay BIGINT",
        ttl="7 days",
    ),
)
rolling = Stage(
    "rolling",
    f"{FUNCTIONS}:rolling",
    {"days": blocking(route_days, by=ROUTE)},
    quality=expectations("rolling_delays"),
)

flow = Dataflow(
    "flight_history",
    [
        flights,
        clean,
        departures,
        aircraft,
        route_days,
        rolling,
        sink(aircraft, "seen"),
        sink(rolling, "rolling_delays"),
    ],
)

dag = dataflow_dag(
    flow,
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime.fromisoformat(os.environ.get("WEIR_FLIGHTS_LAST_DAY", "2013-12-31")).replace(tzinfo=UTC),
    catchup=True,
    max_active_runs=2,
)

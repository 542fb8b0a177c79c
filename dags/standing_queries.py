"""Queries over the flights out of New York in 2013 that are added, changed and removed while they run.

The queries of a day are lines of JSON in `queries/`, or in the folder that WEIR_QUERIES names. The stage functions are
in `spark_jobs/pipelines/standing_queries.py`. Set WEIR_FLIGHTS_LAST_DAY to run fewer days.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    broadcast_state,
    files_source,
    keyed_state,
    list_state,
    pipelined,
    sink,
    source,
)
from weir_airflow.dag import dataflow_dag

FLIGHTS = "pipelines.flight_delays"
FUNCTIONS = "pipelines.standing_queries"
QUERIES = os.environ.get("WEIR_QUERIES", str(Path(__file__).resolve().parent / "queries"))
SLOTS = ", ".join(f"{name}: DOUBLE" for name in [*(f"sum_{n}" for n in range(6)), *(f"max_{n}" for n in range(4))])

flights = source("flights", f"{FLIGHTS}:flights", resolve=f"{FLIGHTS}:resolve_flights", parallelism=3)
clean = Stage("clean", f"{FLIGHTS}:clean", {"flights": pipelined(flights)}, parallelism=3)
changes = files_source(
    "changes",
    f"{QUERIES}/{{start:%Y-%m-%d}}/*.json",
    format="json",
    schema="name STRING, remove BOOLEAN, filter STRING, key STRING, window ARRAY<STRING>, "
    "aggregates MAP<STRING, STRING>",
    if_empty="empty",
    if_missing="null",
    on_malformed="keep",
)
standing = Stage(
    "standing",
    f"{FUNCTIONS}:standing",
    [blocking(changes)],
    state=broadcast_state("queries", schema="id STRING, name STRING, since STRING, definition STRING, reason STRING"),
)
marks = Stage("marks", f"{FUNCTIONS}:marks", {"flights": blocking(clean)}, state=list_state("arrived"))
pieces = Stage(
    "pieces",
    f"{FUNCTIONS}:pieces",
    {"flights": blocking(clean, by="flight"), "standing": blocking(standing, broadcast=True)},
    parallelism=2,
    # One expression tests a row for all queries: Java compiles it in parts, or not at all.
    spark={"spark.sql.codegen.hugeMethodLimit": "8000"},
)
problems = Stage("problems", f"{FUNCTIONS}:problems", [blocking(pieces), blocking(standing)])
windows = Stage(
    "windows",
    f"{FUNCTIONS}:windows",
    [
        blocking(pieces, by=("query", "key")),
        *(blocking(each, broadcast=True) for each in (standing, problems, marks)),
    ],
    parallelism=2,
    state=keyed_state(
        "open_windows",
        key=("query", "key"),
        schema=f"query STRING, key STRING, open ARRAY<STRUCT<start: TIMESTAMP, end: TIMESTAMP, {SLOTS}>>",
    ),
)

flow = Dataflow(
    "standing_queries",
    [
        *(flights, clean, changes, standing, marks, pieces, problems, windows),
        *(sink(windows, "results"), sink(problems, "wrong"), sink(standing, "known")),
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

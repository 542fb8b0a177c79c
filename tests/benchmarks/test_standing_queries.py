"""What a hundred standing queries cost beside one: seconds of an epoch's pass over a million flights.

    pytest tests/benchmarks/test_standing_queries.py --benchmark-only -s --window-rows 1000000

Each query keeps one flight in a hundred. Seconds are those of one session that is there, without an Airflow task.
"""

from __future__ import annotations

import json
import statistics
import time

import pytest

from pipelines.standing_queries import EVENTS, STANDING, pieces
from weir_spark.region.context import StageContext

ROUNDS = 3


def definition(number):
    """A query of one destination of a hundred."""
    return json.dumps(
        {
            "filter": f"dest = 'D{number}' AND departure_delay > -100",
            "key": ("carrier", "origin")[number % 2],
            "window": ["1 hour"],
            "aggregates": {"flights": "count(*)", "minutes": "sum(departure_delay)", "far": "max(distance)"},
        }
    )


@pytest.mark.spark
def test_a_hundred_queries_cost_little_more_than_one(spark, tmp_path, benchmark, request) -> None:
    count = request.config.getoption("--window-rows")
    spark.conf.set("spark.sql.codegen.hugeMethodLimit", "8000")  # as the DAG has it
    spark.range(0, count, 1, 2).selectExpr(
        "concat('C', id % 16) AS carrier",
        "id % 1000 AS flight",
        "concat('N', id % 4000) AS tailnum",
        "concat('O', id % 3) AS origin",
        "concat('D', abs(xxhash64(id)) % 100) AS dest",
        "timestamp_seconds(1356998400 + id % 86400) AS time_hour",
        "id % 2500 AS distance",
        "'flown' AS status",
        "id % 200 - 20 AS departure_delay",
        "id % 200 - 20 AS arrival_delay",
    ).write.parquet(f"file://{tmp_path}/flights")
    flights = spark.read.schema(EVENTS).parquet(f"file://{tmp_path}/flights")
    context = StageContext(epoch="", interval=(None, None), subtask=0, parallelism=1, parameters={}, spark=spark)
    taken = {}
    for queries in (1, 100):
        rows = [(f"q{each}@e", f"q{each}", "e", definition(each), None) for each in range(queries)]
        standing, seconds = spark.createDataFrame(rows, STANDING), []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = pieces(context, flights, standing).selectExpr("sum(sum_0)").first()[0]
            seconds.append(time.perf_counter() - began)
        taken[queries] = statistics.median(seconds)
        assert abs(found - count * queries / 100) < count / 50
    print(f"\n{count} flights: 1 query {taken[1]:.2f} s, 100 queries {taken[100]:.2f} s: {taken[100] / taken[1]:.1f} x")
    benchmark.extra_info.update({str(queries): seconds for queries, seconds in taken.items()})
    benchmark.pedantic(lambda: None, rounds=1)

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


FILTERS = {
    "one text, looked up": "departure_delay > -100 AND dest = 'D{number}'",
    "texts of a list, looked up": "dest IN ('D{number}', 'X{number}') AND departure_delay > -100",
    "a range, looked up": "distance BETWEEN {low} AND {high} AND departure_delay > -100",
    "expressions, tested": "distance DIV 25 = {number} AND departure_delay > -100",
}
"""Each of a hundred keeps one flight in a hundred."""


def definition(number, condition):
    """A query of one flight of a hundred."""
    return json.dumps(
        {
            "filter": condition.format(number=number, low=number * 25, high=number * 25 + 24),
            "key": ("carrier", "origin")[number % 2],
            "window": ["1 hour"],
            "aggregates": {"flights": "count(*)", "minutes": "sum(departure_delay)", "far": "max(distance)"},
        }
    )


@pytest.mark.spark
@pytest.mark.parametrize("shape", FILTERS)
def test_a_hundred_queries_cost_little_more_than_one(shape, spark, tmp_path, benchmark, request) -> None:
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
        rows = [(f"q{each}@e", f"q{each}", "e", definition(each, FILTERS[shape]), None) for each in range(queries)]
        standing, seconds = spark.createDataFrame(rows, STANDING), []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = pieces(context, flights, standing).selectExpr("sum(sum_0)").first()[0]
            seconds.append(time.perf_counter() - began)
        taken[queries] = statistics.median(seconds)
        assert abs(found - count * queries / 100) < count / 50
    ratio = taken[100] / taken[1]
    print(f"\n{shape}: {count} flights: 1 query {taken[1]:.2f} s, 100 queries {taken[100]:.2f} s: {ratio:.1f} x")
    benchmark.extra_info.update({str(queries): seconds for queries, seconds in taken.items()})
    benchmark.pedantic(lambda: None, rounds=1)

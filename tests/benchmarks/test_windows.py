"""What windows over epochs cost: seconds of an epoch, against an aggregation of the same rows that keeps nothing.

    pytest tests/benchmarks/test_windows.py --benchmark-only -s --window-rows 1000000

Each epoch is an hour of rows, of which a tenth is of the hour before. Seconds are those of one session that is there.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812
from tests.builders.state_chain import StateChain

from weir.dataflow.state import keyed_state
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state
from weir_spark.windows import window, windowed

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
KEYS = 10_000
ALL = (0, 127)
EPOCHS = 4
KINDS = {
    "partial sums": ({"n": "count(*)", "total": "sum(fare)"}, "n: BIGINT, total: BIGINT"),
    "rows": (
        {"n": "count(*)", "middle": "percentile(fare, 0.5)"},
        "rows: ARRAY<STRUCT<at: TIMESTAMP, fare: BIGINT>>",
    ),
}


def rows_of(spark, hour, count):
    """Rows of an hour, by key; each tenth is of the hour before."""
    begun = int((FIRST + timedelta(hours=hour)).timestamp())
    late = "CASE WHEN id % 10 = 0 THEN 3600 ELSE 0 END"
    return spark.range(0, count, 1, 2).select(
        F.expr(f"abs(xxhash64(id, {hour})) % {KEYS}").alias("k"),
        F.expr(f"timestamp_seconds({begun} - {late} + id % 3600)").alias("at"),
        F.expr("id % 1000").alias("fare"),
    )


def written(rows, folder):
    rows.write.mode("overwrite").parquet(f"file://{folder}")


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_of_windows_costs_as_an_aggregation_does(spark, store, tmp_path, benchmark, request, kind) -> None:
    count, (aggregates, kept) = request.config.getoption("--window-rows"), KINDS[kind]
    schema = f"k BIGINT, open ARRAY<STRUCT<start: TIMESTAMP, end: TIMESTAMP, {kept}>>"
    chain = StateChain(store, keyed_state("windows", key="k", schema=schema))
    taken, plain = [], []
    for hour in range(EPOCHS):
        written(rows_of(spark, hour, count), tmp_path / str(hour))
        rows = spark.read.parquet(f"file://{tmp_path}/{hour}")
        ended = FIRST + timedelta(hours=hour + 1)
        marks = [(ended - timedelta(minutes=70), ended - timedelta(minutes=10))]
        of = spark.createDataFrame(marks, "before TIMESTAMP, watermark TIMESTAMP")
        epoch = f"{FIRST + timedelta(hours=hour):%Y%m%dT%H%M%SZ}"
        began = time.perf_counter()
        state = KeyedState(StoredState(spark, chain.read(epoch), ALL))
        written(windowed(rows, of, state, "k", window("at", "1 hour"), aggregates), tmp_path / "fired")
        chain.go_on(epoch, {ALL: write_state(state, "windows", chain.output(epoch), store)})
        taken.append(time.perf_counter() - began)
        began = time.perf_counter()
        named = [F.expr(text).alias(name) for name, text in aggregates.items()]
        written(rows.groupBy("k", F.window("at", "1 hour")).agg(*named), tmp_path / "plain")
        plain.append(time.perf_counter() - began)
    fired = spark.read.parquet(f"file://{tmp_path}/fired").selectExpr("sum(n)", "count(DISTINCT window)").first()
    assert tuple(fired) == (count, 1)  # nine tenths of the hour before, and a tenth of this epoch's rows
    own, other = statistics.median(taken[1:]), statistics.median(plain[1:])
    print(f"\n{kind}: {count} rows an epoch: {own:.2f} s, {own / other:.1f} x an aggregation of the epoch's rows alone")
    benchmark.extra_info.update({"windowed": own, "plain": other})
    benchmark.pedantic(lambda: None, rounds=1)

"""Keyed state over many epochs, with its checkpoints and compactions; then a restore's scan, and a rescale from 2 to 3.

    WEIR_BENCH_KEYS=1000000 WEIR_BENCH_SHARE=0.01 WEIR_BENCH_EPOCHS=50 \\
    pytest tests/benchmarks/test_state_epochs.py --benchmark-only -s

prints the tables of docs/measurements.md; WEIR_BENCH_INCREMENTAL says how epochs are written. There is no scheduler: a
fake Airflow runs the tasks one after the other, so that seconds are those of Spark's jobs, without the starts of tasks.
What one epoch costs beside a full rewrite and a MERGE is in test_state.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from changing_epochs import Changing, Epoch, run_of
from pyspark.sql import SparkSession

import weir
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.state.compaction_rules import bytes_of
from weir.units import format_size, size_from_text

KEYS = int(os.environ.get("WEIR_BENCH_KEYS", "1000000"))
SHARE = float(os.environ.get("WEIR_BENCH_SHARE", "0.01"))
EPOCHS = int(os.environ.get("WEIR_BENCH_EPOCHS", "50"))
BUDGET = os.environ.get("WEIR_BENCH_BUDGET", "8 MB")
INCREMENTAL = os.environ.get("WEIR_BENCH_INCREMENTAL", "true")
"""As `incremental=` of the state: true, false or auto."""

RESTORED = 20
"""Behind so many epochs all of the state is read, as a restore or a first use does."""

BUDGET_BYTES = size_from_text("budget", BUDGET)
SCHEMA = "id BIGINT, name STRING, n BIGINT, amount DOUBLE, seen TIMESTAMP"


def changing(parallelism: int) -> Dataflow:
    """The dataflow, with a parallelism of its state."""
    how: bool | Literal["auto"] = "auto" if INCREMENTAL == "auto" else INCREMENTAL == "true"
    state = keyed_state("state", key="id", schema=SCHEMA, budget=BUDGET, incremental=how)
    return Dataflow(
        "changing",
        [
            source("changes", "changing_keys:changes"),
            Stage(
                "update",
                "changing_keys:update",
                {"changes": blocking("changes", by="id")},
                parallelism=parallelism,
                state=state,
            ),
            sink("update", "done"),
        ],
        parameters={"keys": KEYS, "share": SHARE},
    )


@pytest.mark.timeout(4 * 3600)
def test_many_epochs_a_restore_and_a_rescale(benchmark: Any, server: Any, spark: SparkSession, tmp_path: Path) -> None:
    changing_keys = Changing(server.url, tmp_path, changing(2))
    found: list[Epoch] = benchmark.pedantic(lambda: list(_epochs(changing_keys, spark)), rounds=1)
    first, later = found[0], found[1:]
    changed, compacted = sum(each.changed for each in later), sum(each.compacted for each in later)
    print(f"\n{KEYS:,} keys, {SHARE:.1%} of them in an epoch, {len(found)} epochs; all: {format_size(first.changed)}")
    print(f"written for each byte that changed: {1 + compacted / changed:.2f} on average, {_worst(later)} at worst")
    print(f"a full rewrite each time: {first.changed * len(later) / (changed + compacted):.1f} times as many bytes")
    print(f"runs to merge: at most {max(each.runs for each in found)}")
    assert max(each.runs for each in found) <= 9
    assert 1 + compacted / changed <= 3 + BUDGET_BYTES * len(later) / changed


def _epochs(changing_keys: Changing, spark: SparkSession) -> Iterator[Epoch]:
    print("\n| epoch | changed | compacted | state | at rest | runs | written/changed | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for number in range(1, EPOCHS + 1):
        each = changing_keys.epoch(number)
        print(each, flush=True)
        yield each
        if number == min(RESTORED, EPOCHS):
            _scan(changing_keys, spark, each)
    _rescale(changing_keys, EPOCHS + 1)


def _scan(changing_keys: Changing, spark: SparkSession, at: Epoch) -> None:
    """Read all of the state as its files are, and as one run of it: what a restore that scans once would read."""
    with weir.open("changing", state="state", services=changing_keys.airflow.services) as state:
        rows = state.spark(spark)
        seconds = _timed(lambda: rows.write.format("noop").mode("overwrite").save())
        whole = str(changing_keys.store.spark_url("whole"))
        rows.write.parquet(whole)
        once = spark.read.parquet(whole)
        plain = _timed(lambda: once.write.format("noop").mode("overwrite").save())
        one_key = _timed(lambda: state.get(KEYS // 2))
        told = f"{state.rows:,} rows of {format_size(state.bytes)} in {state.runs} runs"
    print(
        f"restore behind epoch {at.number}: {told}, all of them read in {seconds:.1f} s; as one file in {plain:.1f} s"
    )
    print(f"one key by weir state get: {one_key * 1000:.0f} ms")


def _rescale(changing_keys: Changing, number: int) -> None:
    changing_keys.airflow.deploy(changing(3))
    each = changing_keys.epoch(number)
    parts = [manifest.state.files for manifest in changing_keys.manifests(run_of(number)) if manifest.state is not None]
    own = [sum(bytes_of(file, file.key_groups) for file in files) for files in parts]
    print(f"rescaled from 2 to 3: {each}")
    print(
        f"bytes of each new subtask: {', '.join(map(format_size, own))} of {format_size(each.state)}; "
        "none written again"
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _worst(epochs: list[Epoch]) -> str:
    return f"{max(each.written for each in epochs):.2f}"

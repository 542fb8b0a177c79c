"""The stage functions of a small dataflow to break on purpose: numbers -> doubled -> totals, perhaps running ones.

Invariant: all that a test may change is in one JSON file, named by the dataflow's parameter `control`:
- `count` (default 100) and `add` (default 0): the numbers are add .. add + count - 1. They are read whenever the source
  runs, on purpose: a source that gives other rows when it runs again is what tests want to survive.
- `forget` (default false): `running_totals` does not add what was before.
- `milliseconds_a_row` (default 0): how long Spark itself dwells on each row of `doubled`.
- `spoil` (default false): `doubled` gives its values with the wrong sign.
- `epochs`: any of these by the epoch's key, for that epoch alone.
- for `dags/ladder.py` alone: `dags`, `parallelism`, `functions`, `restart`, `last_day`.

Beside it, a file `hold-<stage>` makes every subtask of that stage write its process id to `reached-<stage>-<subtask>`
and wait until the hold is deleted; a file `fail-<stage>` makes it raise. `<stage>-<epoch>` is one epoch of a stage.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from weir_spark.region.context import StageContext
    from weir_spark.state.keyed_state import KeyedState

BUCKETS = 10
_HELD_AT_MOST_SECONDS = 300


def numbers(ctx: StageContext) -> DataFrame:
    """Give every `parallelism`-th of the numbers. Output: number, bucket (bigint, number modulo 10)."""
    _stop_here("numbers", ctx)
    control = _control(ctx)
    first, count = control.get("add", 0), control.get("count", 100)
    rows = ctx.spark.range(first + ctx.subtask, first + count, ctx.parallelism, 1).withColumnRenamed("id", "number")
    return rows.withColumn("bucket", F.col("number") % BUCKETS)


def doubled(ctx: StageContext, numbers: DataFrame) -> DataFrame:
    """Double each number. Input: the columns of `numbers`. Output: bucket, number, value (bigint)."""
    control = _control(ctx)  # first: a hold then says that it has been read
    pause, factor = control.get("milliseconds_a_row", 0), -2 if control.get("spoil", False) else 2
    _stop_here("doubled", ctx)
    rows = numbers.select("bucket", "number", (F.col("number") * factor).alias("value"))
    return rows.where(_slept(pause)) if pause else rows


def totals(ctx: StageContext, doubled: DataFrame) -> DataFrame:
    """Sum up by bucket. Input: the columns of `doubled`. Output: bucket, numbers, total (bigint)."""
    _stop_here("totals", ctx)
    sums = (F.count("*").alias("numbers"), F.sum("value").alias("total"))
    return doubled.groupBy("bucket").agg(*sums)


def running_totals(ctx: StageContext, doubled: DataFrame, before: DataFrame) -> DataFrame:
    """Add the totals of the epoch to those `before`, which have the same columns. `forget` begins anew."""
    sums = totals(ctx, doubled)
    if _control(ctx).get("forget", False):
        return sums
    both = sums.unionByName(before.select(*sums.columns))
    return both.groupBy("bucket").agg(F.sum("numbers").alias("numbers"), F.sum("total").alias("total"))


def recent(ctx: StageContext, sums: DataFrame) -> DataFrame:
    """Add up the totals of several epochs of another dataflow. Output: the columns of `totals`."""
    _stop_here("recent", ctx)
    return sums.groupBy("bucket").agg(F.sum("numbers").alias("numbers"), F.sum("total").alias("total"))


def kept_totals(ctx: StageContext, doubled: DataFrame, history: KeyedState) -> DataFrame:
    """Give what `running_totals` gives, whose rows so far are kept as state."""
    rows = running_totals(ctx, doubled, history.read())
    history.upsert(rows)
    return rows


def expected_running_totals(control: Mapping[str, Any], epochs: Sequence[str]) -> list[dict[str, int]]:
    """Compute without Spark what the last of `epochs`, which read each other, is to publish, sorted by bucket."""
    sums: dict[int, dict[str, int]] = {}
    for epoch in epochs:
        sums = {} if _of_epoch(control, epoch).get("forget", False) else sums
        for row in expected_totals(control, epoch):
            before = sums.get(row["bucket"], {"numbers": 0, "total": 0})
            sums[row["bucket"]] = row | {name: row[name] + before[name] for name in before if name != "bucket"}
    return [sums[bucket] for bucket in sorted(sums)]


def expected_totals(control: Mapping[str, Any], epoch: str = "") -> list[dict[str, int]]:
    """Compute without Spark what is to be published, sorted by bucket."""
    settings = _of_epoch(control, epoch)
    first, count = settings.get("add", 0), settings.get("count", 100)
    buckets = [[n for n in range(first, first + count) if n % BUCKETS == bucket] for bucket in range(BUCKETS)]
    return [
        {"bucket": bucket, "numbers": len(members), "total": 2 * sum(members)}
        for bucket, members in enumerate(buckets)
        if members
    ]


def nothing(ctx: StageContext, **_inputs: DataFrame) -> None:
    """Forget to return anything."""


def keyless(ctx: StageContext, numbers: DataFrame) -> DataFrame:
    """Take the place of `doubled`, but lose the column that `totals` is keyed by."""
    return doubled(ctx, numbers).drop("bucket")


def nested_key(ctx: StageContext, numbers: DataFrame) -> DataFrame:
    """Take the place of `doubled`, with a key of a type that has no hash in Weir."""
    return doubled(ctx, numbers).withColumn("bucket", F.array("bucket"))


def _control(ctx: StageContext) -> dict[str, Any]:
    return _of_epoch(json.loads(Path(ctx.parameters["control"]).read_text()), ctx.epoch)


def _of_epoch(control: Mapping[str, Any], epoch: str) -> dict[str, Any]:
    return {**control, **control.get("epochs", {}).get(epoch, {})}


def _stop_here(stage: str, ctx: StageContext) -> None:
    folder = Path(ctx.parameters["control"]).parent
    for name in (stage, f"{stage}-{ctx.epoch}"):
        if (folder / f"fail-{name}").exists():
            raise ValueError(f"{stage}[{ctx.subtask}] fails on purpose: {folder / f'fail-{name}'} exists")
        _stop_while(folder / f"hold-{name}", folder / f"reached-{name}-{ctx.subtask}")


def _stop_while(hold: Path, reached: Path) -> None:
    if not hold.exists():
        return
    reached.write_text(str(os.getpid()))
    deadline = time.monotonic() + _HELD_AT_MOST_SECONDS
    while hold.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{hold} is still there after {_HELD_AT_MOST_SECONDS} s: a test forgot to delete it")
        time.sleep(0.05)


def _slept(milliseconds: int) -> Column:
    """Hold for every row, after a pause in the JVM, which an interrupt ends as it ends any other work of Spark."""
    pause = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(milliseconds).cast("bigint"))
    return F.coalesce(pause, F.lit("")) != "never"

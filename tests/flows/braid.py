"""The stage functions of four strands that read each other index by index: numbers -> doubled -> totals.

Invariant: all that a test may change is beside the JSON file that the dataflow's parameter `control` names: its `add`
(default 0) is the first number; a file `hold-numbers` makes strand 3 write its process id to `reached-numbers-3` and
wait until the hold is deleted; a file `fail-numbers` makes it raise.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir_spark.region.context import StageContext

STRANDS = 4
STOPPED = 3
_COUNT = 100
_BUCKETS = 10
_HELD_AT_MOST_SECONDS = 300


def numbers(ctx: StageContext) -> DataFrame:
    """Give every fourth of a hundred numbers. Output: number, bucket (bigint, number modulo 10)."""
    control = Path(ctx.parameters["control"])
    first = json.loads(control.read_text()).get("add", 0)
    if ctx.subtask == STOPPED:
        _stop_here(control.parent)
    rows = ctx.spark.range(first + ctx.subtask, first + _COUNT, STRANDS, 1).withColumnRenamed("id", "number")
    return rows.withColumn("bucket", F.col("number") % _BUCKETS)


def doubled(ctx: StageContext, numbers: DataFrame) -> DataFrame:
    """Double each number. Input: the columns of `numbers`. Output: bucket, value (bigint)."""
    return numbers.select("bucket", (F.col("number") * 2).alias("value"))


def totals(ctx: StageContext, doubled: DataFrame) -> DataFrame:
    """Sum up by bucket. Input: the columns of `doubled`. Output: bucket, numbers, total (bigint)."""
    return doubled.groupBy("bucket").agg(F.count("*").alias("numbers"), F.sum("value").alias("total"))


def expected_totals(first: list[int]) -> list[dict[str, int]]:
    """Compute without Spark what is to be published, sorted by bucket, from the first number of each strand's set."""
    values = [number for strand, add in enumerate(first) for number in range(add + strand, add + _COUNT, STRANDS)]
    buckets = [[number for number in values if number % _BUCKETS == bucket] for bucket in range(_BUCKETS)]
    return [
        {"bucket": bucket, "numbers": len(members), "total": 2 * sum(members)} for bucket, members in enumerate(buckets)
    ]


def _stop_here(folder: Path) -> None:
    if (folder / "fail-numbers").exists():
        raise OSError("numbers[3] fails on purpose")
    hold = folder / "hold-numbers"
    if not hold.exists():
        return
    (folder / f"reached-numbers-{STOPPED}").write_text(str(os.getpid()))
    deadline = time.monotonic() + _HELD_AT_MOST_SECONDS
    while hold.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{hold} is still there after {_HELD_AT_MOST_SECONDS} s: a test forgot to delete it")
        time.sleep(0.05)

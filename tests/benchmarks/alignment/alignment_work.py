"""Rows that are divided anew by each stage, and what a stage remembers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir_spark.region.context import StageContext
    from weir_spark.state.keyed_state import KeyedState

ROWS = 100_000


def numbers(ctx: StageContext) -> DataFrame:
    """Give every `parallelism`-th number of the epoch."""
    rows = ctx.spark.range(ctx.subtask, ROWS, ctx.parallelism, 1)
    return rows.withColumn("n", F.xxhash64("id", F.lit(ctx.epoch)))


def shuffle1(ctx: StageContext, rows: DataFrame, kept1: KeyedState) -> DataFrame:
    """Keep the newest number of each id, and give all rows on."""
    return _kept(rows, kept1)


def shuffle2(ctx: StageContext, rows: DataFrame, kept2: KeyedState) -> DataFrame:
    """Do the same."""
    return _kept(rows, kept2)


def shuffle3(ctx: StageContext, rows: DataFrame, kept3: KeyedState) -> DataFrame:
    """Do the same."""
    return _kept(rows, kept3)


def shuffle4(ctx: StageContext, rows: DataFrame, kept4: KeyedState) -> DataFrame:
    """Do the same."""
    return _kept(rows, kept4)


def _kept(rows: DataFrame, kept: KeyedState) -> DataFrame:
    kept.upsert(rows)
    return rows.withColumn("n", F.xxhash64("id", "n"))

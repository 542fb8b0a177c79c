"""A dataflow with nothing but a keyed state: each epoch some of its keys change, in the first one all are set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir_spark.region.context import StageContext
    from weir_spark.state.keyed_state import KeyedState

FIRST = "20130101T000000Z"
SCHEMA = "id BIGINT, name STRING, n BIGINT, amount DOUBLE, seen TIMESTAMP"
VALUES = "id BIGINT, value BINARY"
"""The schema of `values`, as SCHEMA is that of `changes`."""


def changes(ctx: StageContext) -> DataFrame:
    """The rows of an epoch, by id: all in the first, later a share of them, other ones each time."""
    keys, share = ctx.parameters["keys"], ctx.parameters["share"]
    ids = ctx.spark.range(0, keys, 1, 2)
    mixed = F.xxhash64("id", F.lit(ctx.epoch))
    rows = ids if ctx.epoch == FIRST else ids.where(F.pmod(mixed, F.lit(1_000_000)) < int(share * 1_000_000))
    return rows.select(
        "id",
        F.concat(F.lit("N"), F.col("id").cast("string"), F.lit("EWR")).alias("name"),
        F.pmod(mixed, F.lit(100_000)).alias("n"),
        (F.pmod(mixed, F.lit(10_000_019)) / 100).alias("amount"),
        F.timestamp_seconds(F.unix_timestamp(F.lit(ctx.interval[0])) + F.pmod(mixed, F.lit(86_400))).alias("seen"),
    )


def values(ctx: StageContext) -> DataFrame:
    """As `changes`, with rows of 200 bytes that no compression makes smaller, and in several subtasks."""
    keys, share = ctx.parameters["keys"], ctx.parameters["share"]
    ids = ctx.spark.range(ctx.subtask, keys, ctx.parallelism, 2)
    mixed = F.xxhash64("id", F.lit(ctx.epoch))
    rows = ids if ctx.epoch == FIRST else ids.where(F.pmod(mixed, F.lit(1_000_000)) < int(share * 1_000_000))
    parts = [F.sha2(F.concat_ws(" ", "id", F.lit(f"{ctx.epoch} {part}")), 512) for part in range(3)]
    return rows.select("id", F.unhex(F.concat(*parts)).alias("value"))


def update(ctx: StageContext, changes: DataFrame, state: KeyedState) -> DataFrame:
    """Set the rows; nothing is published of them."""
    state.upsert(changes, blind=ctx.parameters.get("is_blind", False))
    return changes.limit(0)

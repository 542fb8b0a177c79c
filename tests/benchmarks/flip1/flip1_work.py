"""The stages of a query like TPC-H's third one, each of which takes the same seconds, and the same steps by hand.

Invariant: a stage is as long as it is told to be, however many cores there are: one task of Spark sleeps for it. So the
time to finish is made of the work that is repeated, and of what a restart costs, not of who gets the processor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEMS, ORDERS, CUSTOMERS = 1_000, 100, 10


def orders(ctx):
    """Give every `parallelism`-th order, and whose it is."""
    rows = ctx.spark.range(ctx.subtask, ORDERS, ctx.parallelism, 1).withColumnRenamed("id", "order")
    return _worked(ctx, rows.withColumn("customer", F.col("order") % CUSTOMERS))


def items(ctx):
    """Give every `parallelism`-th item, of which order it is and what it costs."""
    rows = ctx.spark.range(ctx.subtask, ITEMS, ctx.parallelism, 1).withColumnRenamed("id", "amount")
    return _worked(ctx, rows.withColumn("order", F.col("amount") % ORDERS))


def joined(ctx, orders, items):
    """Give the amounts of each customer."""
    return _worked(ctx, items.join(orders, "order").select("order", "customer", "amount"))


def revenue(ctx, joined):
    """Sum up by customer."""
    return _worked(ctx, joined.groupBy("customer").agg(F.sum("amount").alias("revenue")))


def expected():
    """The rows of `revenue`, computed without Spark."""
    customers = [[each for each in range(ITEMS) if each % ORDERS % CUSTOMERS == one] for one in range(CUSTOMERS)]
    return [{"customer": one, "revenue": sum(members)} for one, members in enumerate(customers)]


def _worked(ctx, rows: DataFrame) -> DataFrame:
    """The rows, and none more, which one more partition of Spark finds out after the seconds of the parameter."""
    milliseconds = F.lit(int(1000 * ctx.parameters["seconds"])).cast("bigint")
    pause = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), milliseconds)
    columns = (F.lit(None).cast(each.dataType).alias(each.name) for each in rows.schema)
    slept = ctx.spark.range(0, 1, 1, 1).where(F.coalesce(pause, F.lit("")) == "never")
    return rows.unionByName(slept.select(*columns))


# By hand


@dataclass(frozen=True)
class Step:
    """One subtask of a stage, as the functions above ask for it, with Parquet files between the stages."""

    spark: SparkSession
    folder: str
    subtask: int
    parallelism: int
    parameters: dict[str, Any] = field(default_factory=dict)

    def read(self, stage: str, parallelism: int) -> DataFrame:
        """What all subtasks of an earlier stage have written."""
        parts = [self.spark.read.parquet(f"{self.folder}/{stage}/{each}") for each in range(parallelism)]
        return reduce(lambda one, other: one.unionByName(other), parts)

    def mine(self, rows: DataFrame, key: str) -> DataFrame:
        """This subtask's share of the rows."""
        return rows.where(F.pmod(F.hash(key), F.lit(self.parallelism)) == self.subtask)


def run(stage: str, step: Step, parallelism: int) -> None:
    """Run one subtask, and overwrite what an earlier try of it has left."""
    if stage == "joined":
        inputs = [step.mine(step.read(each, parallelism), "order") for each in ("orders", "items")]
    else:
        inputs = [step.read("joined", parallelism)] if stage == "revenue" else []
    rows = {"orders": orders, "items": items, "joined": joined, "revenue": revenue}[stage](step, *inputs)
    rows.write.mode("overwrite").parquet(f"{step.folder}/{stage}/{step.subtask}")

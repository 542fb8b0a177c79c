"""States that a stage reads and another one of its task keeps, on Spark: each is as the epoch before has left it."""

from __future__ import annotations

import pytest
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

import weir
from weir.coordination.services import Services
from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    broadcast_state,
    keyed_state,
    list_state,
    pipelined,
    previous,
    sink,
    source,
)
from weir.errors import Misconfigured
from weir_spark.state.read_only import StateOfOther

pytestmark = pytest.mark.spark

STAGES = """
from pyspark.sql import functions as F


def flights(ctx):
    return ctx.spark.range(6).selectExpr("concat('N', id) tail", f"{int(ctx.epoch[6:8])} day")


def kept(ctx, flights, totals, days, rates):
    known = totals.read(flights)
    total = (F.coalesce("n", F.lit(0)) + F.col("day")).alias("n")
    rows = flights.join(known, "tail", "left").select("tail", "day", total)
    totals.upsert(rows.select("tail", "n"))
    days.add(int(ctx.epoch[6:8]))
    rates.update(ctx.spark.sql(f"select {int(ctx.epoch[6:8])} rate"))
    return rows


def seen(ctx, rows, before, days, rates):
    rate = rates.read().agg(F.max("rate")).head()[0]
    known = before.read(rows.where("tail <> 'N5'")).withColumnRenamed("n", "before")
    found = rows.join(known, "tail", "left")
    more = [F.lit(str(days.get())).alias("days"), F.lit(rate).cast("int").alias("rate")]
    return found.select("tail", "n", "before", *more)


def grasping(ctx, rows, before, days, rates):
    before.upsert(rows.select("tail", "n"))
    return rows
"""


def flow(module, function="seen"):
    states = [
        keyed_state("totals", key="tail", schema="tail STRING, n INT"),
        list_state("days"),
        broadcast_state("rates", schema="rate INT"),
    ]
    reader = {
        "rows": pipelined("kept"),
        "before": previous("totals"),
        "days": previous("days"),
        "rates": previous("rates"),
    }
    return Dataflow(
        "flow",
        [
            source("flights", f"{module}:flights"),
            Stage("kept", f"{module}:kept", [blocking("flights", by="tail")], 2, state=states),
            Stage("seen", f"{module}:{function}", reader, 2),
            sink("seen", "out"),
        ],
    )


@pytest.fixture
def days(server, store, pipeline, tmp_path):
    """Compute days of the dataflow whose reading stage has a function of this name."""
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, OnSpark(server.url, store), None)

    def compute(count, function="seen"):
        airflow.flow = flow(pipeline(STAGES), function)
        for day in range(1, count + 1):
            airflow.dag_run(day)
            airflow.run_until_quiet()
        return airflow

    yield compute
    ledger.close()


def test_states_are_read_as_the_epoch_before_has_left_them(days) -> None:
    airflow = days(3)
    assert set(airflow.states().values()) == {"success"}
    for day, total, before, list_of_days in ((1, 1, None, []), (2, 3, 1, [1]), (3, 6, 3, [1, 2])):
        rate = day - 1 or None
        with weir.open("flow", f"2013010{day}T000000Z", "out", services=airflow.services) as published:
            rows = sorted(tuple(row.values()) for row in published.arrow().to_pylist())
        assert rows == [(f"N{i}", total, None if i == 5 else before, str(list_of_days), rate) for i in range(6)]


def test_a_state_is_changed_by_the_stage_that_keeps_it_alone(days) -> None:
    airflow = days(1, "grasping")
    reasons = {task.failed_because for task in airflow.tasks.values() if task.failed_because}
    (told,) = {each for each in reasons if "only reads it" in each}
    assert "state 'totals': the stage 'seen' only reads it" in told
    assert "so upsert is not there: change it in the stage that keeps it" in told


def test_what_a_state_is_not_read_by_is_told() -> None:
    state = StateOfOther(object(), "totals", "seen")
    for ask, call in (
        (state.get, "get()"),
        (state.read, "read()"),
        (lambda: state.per_key, "per_key"),
    ):
        with pytest.raises(Misconfigured, check=of_kind("state.only_read", state="totals", call=call)):
            ask()

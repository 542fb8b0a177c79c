"""Keyed state on real Spark, over epochs: what is read is what a plain computation over all days gives."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.store.catalogue import published

AIRCRAFT = """
import json
from pathlib import Path
from pyspark.sql import functions as F

def flights(ctx):
    rows = json.loads(Path(%r).read_text()).get(ctx.epoch, [])
    return ctx.spark.createDataFrame([tuple(row) for row in rows], "tail STRING, n BIGINT")

def aircraft(ctx, flights, history):
    today = flights.where("n > 0").groupBy("tail").agg(F.sum("n").alias("today"))
    known = history.read()
    rows = today.join(known, "tail", "left").select("tail", (F.coalesce("n", F.lit(0)) + F.col("today")).alias("n"))
    history.upsert(rows)
    history.delete(flights.where("n = 0").select("tail"))
    return rows
"""


@pytest.mark.spark
def test_a_state_goes_on_from_epoch_to_epoch(server, store, tmp_path, pipeline):
    days = tmp_path / "days.json"
    module = pipeline(AIRCRAFT % str(days))
    flow = Dataflow(
        "flow",
        [
            source("flights", f"{module}:flights"),
            Stage(
                "aircraft",
                f"{module}:aircraft",
                [blocking("flights", by="tail")],
                parallelism=2,
                state=keyed_state("history", key="tail", schema="tail STRING, n BIGINT"),
            ),
            sink("aircraft", "known"),
        ],
    )
    days.write_text(
        json.dumps(
            {
                "20130101T000000Z": [["a", 1], ["b", 2], ["c", 3]],
                "20130102T000000Z": [["a", 10], ["c", 0]],
                "20130103T000000Z": [["c", 5], ["a", 1]],
            }
        )
    )
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, OnSpark(server.url, store), flow)
    for day in (1, 2, 3):
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    told = published(store, "flow", "known", "20130103T000000Z")
    files = [store.spark_url(f"{part.folder}/{name}") for part in told.partitions for name in part.files]
    rows = pa.concat_tables([pq.read_table(each.removeprefix("file://")) for each in files]).to_pylist()
    assert sorted((row["tail"], row["n"]) for row in rows) == [("a", 12), ("c", 5)]
    ledger.close()

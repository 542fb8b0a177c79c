"""State that was restored, on real Spark: a fork and a moved savepoint go on as the one that never failed."""

from __future__ import annotations

import shutil
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from weir.coordinator.restore import Wish, restore
from weir.coordinator.savepoint import Asked, create
from weir.coordinator.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source
from weir.ledger.models import ResultRow
from weir.results.codec import manifest_from_json, region_report_from_json
from weir.store.published import published
from weir.store.store import Store
from weir.testing.airflow import FakeAirflow
from weir.testing.ledgers import new_ledger
from weir_spark.connect import ConnectEngine

AIRCRAFT = """
from pyspark.sql import functions as F

DAYS = {
    "20130101T000000Z": [("a", 1), ("b", 2), ("c", 3)],
    "20130102T000000Z": [("a", 10), ("c", 0)],
    "20130103T000000Z": [("a", 1), ("b", 1), ("c", 5)],
}

def flights(ctx):
    return ctx.spark.createDataFrame(DAYS[ctx.epoch], "tail STRING, n BIGINT")

def aircraft(ctx, flights, history, epochs):
    today = flights.where("n > 0").groupBy("tail").agg(F.sum("n").alias("today"))
    total = (F.coalesce("n", F.lit(0)) + F.col("today")).alias("n")
    rows = today.join(history.read(), "tail", "left").select("tail", total)
    history.upsert(rows)
    history.delete(flights.where("n = 0").select("tail"))
    epochs.update([*epochs.get(), ctx.epoch])
    return rows
"""


class OnSpark:
    """A Connect server in the place of the fake engine."""

    def __init__(self, url, store):
        self.engine, self.store = ConnectEngine(url, retries=2), store

    def run(self, job, during):
        self.engine.run(job, str(uuid.uuid4()), lambda line: None)
        during()
        return region_report_from_json(self.store.read(job.report))


class Deployment:
    """A ledger and a store, with an Airflow that asks a Connect server."""

    def __init__(self, folder, url, module, store=None):
        self.url, self.module = url, module
        self.store = store or Store.open(str(folder / "store"))
        self.ledger = new_ledger(folder / "ledger.db")
        self.services = Services(self.ledger, self.store)
        self.services.store_id()

    def airflow(self, name, parallelism):
        return FakeAirflow(self.services, OnSpark(self.url, self.store), self.flow(name, parallelism))

    def flow(self, name, parallelism):
        return Dataflow(
            name,
            [
                source("flights", f"{self.module}:flights"),
                Stage(
                    "aircraft",
                    f"{self.module}:aircraft",
                    [blocking("flights", by="tail")],
                    parallelism=parallelism,
                    state=(
                        keyed_state("history", key="tail", schema="tail STRING, n BIGINT"),
                        list_state("epochs", union=True),
                    ),
                ),
                sink("aircraft", "known"),
            ],
        )

    def published(self, name, epoch):
        told = published(self.store, name, "known", epoch)
        files = [self.store.spark_url(f"{part.folder}/{each}") for part in told.partitions for each in part.files]
        rows = pa.concat_tables([pq.read_table(each.removeprefix("file://")) for each in files]).to_pylist()
        return sorted((row["tail"], row["n"]) for row in rows)

    def manifests(self, name, epoch):
        with self.ledger.transaction() as session:
            query = select(ResultRow).where(
                ResultRow.run == f"{name}@{epoch}", ResultRow.stage == "history", ResultRow.is_current
            )
            rows = list(session.scalars(query.order_by(ResultRow.subtask)))
        return [manifest_from_json(self.store.read(f"{row.folder}/manifest.json")) for row in rows]


def run_days(airflow, *days):
    for day in days:
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}


@pytest.mark.spark
def test_a_fork_and_a_moved_savepoint_go_on_as_the_one_that_never_failed(server, store, tmp_path, pipeline):
    origin = Deployment(tmp_path, server.url, pipeline(AIRCRAFT), store)
    airflow = origin.airflow("flow", 2)
    run_days(airflow, 1, 2)
    (tmp_path / "usb").mkdir()
    (tmp_path / "elsewhere").mkdir()
    create(origin.services, Asked("flow", to=str(tmp_path / "usb"), name="mine"), Store.open)
    shutil.move(tmp_path / "usb" / "mine", tmp_path / "moved")
    restore(origin.services, Wish("flow", "2", fork="forked"), Store.open)
    elsewhere = Deployment(tmp_path / "elsewhere", server.url, origin.module)
    restore(elsewhere.services, Wish("flow", str(tmp_path / "moved")), Store.open)
    shutil.rmtree(tmp_path / "moved")
    run_days(airflow, 3)
    run_days(origin.airflow("forked", 3), 3)
    run_days(elsewhere.airflow("flow", 2), 3)
    right = [("a", 12), ("b", 3), ("c", 5)]
    told = [
        origin.published("flow", "20130103T000000Z"),
        origin.published("forked", "20130103T000000Z"),
        elsewhere.published("flow", "20130103T000000Z"),
    ]
    assert told == [right, right, right]
    one, other = (each.manifests("flow", "20130103T000000Z") for each in (origin, elsewhere))
    assert [str(each.digest) for each in one] == [str(each.digest) for each in other]
    forked = origin.manifests("forked", "20130103T000000Z")
    assert sum(each.rows for each in forked) == 3
    assert {file.folder.split("/")[0] for each in forked for file in each.state.files} == {"forked"}
    for each in (origin, elsewhere):
        each.ledger.close()

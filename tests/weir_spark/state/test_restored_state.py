"""State that was restored, on real Spark: a fork and a moved savepoint go on as the one that never failed."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, keyed_state, list_state, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import ResultRow
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create
from weir.store.catalogue import published
from weir.store.store import Store

AIRCRAFT = """
from pyspark.sql import functions as F

DAYS = {
    "20130101T000000Z": [("a", 1), ("b", 2), ("c", 3)],
    "20130102T000000Z": [("a", 10), ("c", 0)],
    "20130103T000000Z": [("a", 1), ("b", 1), ("c", 5)],
}

def flights(ctx):
    return ctx.spark.createDataFrame(DAYS[ctx.epoch], "tail STRING, n BIGINT")

def aircraft(ctx, flights, history, epochs, own, rates):
    today = flights.where("n > 0").groupBy("tail").agg(F.sum("n").alias("today"))
    total = (F.coalesce("n", F.lit(0)) + F.col("today")).alias("n")
    rows = today.join(history.read(), "tail", "left").select("tail", total)
    history.upsert(rows)
    history.delete(flights.where("n = 0").select("tail"))
    epochs.add(f"{ctx.epoch}/{ctx.subtask}")
    own.add(f"{ctx.epoch}/{ctx.subtask}")
    rates.update(rates.read().unionByName(ctx.spark.createDataFrame([(ctx.epoch,)], "epoch STRING")))
    return rows
"""


class Deployment:
    """A ledger and a store, with an Airflow that asks a Connect server."""

    def __init__(self, folder, url, module, store=None):
        self.url, self.module = url, module
        self.store = store or Store.open(str(folder / "store"))
        self.ledger = new_ledger(folder / "ledger.db")
        self.services = Services(ledger=self.ledger, store=self.store)
        self.services.store_id()

    def airflow(self, name, parallelism):
        return AirflowWithCode(self.services, OnSpark(self.url, self.store), self.flow(name, parallelism))

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
                        list_state("own"),
                        broadcast_state("rates", schema="epoch STRING"),
                    ),
                ),
                sink("aircraft", "known"),
            ],
        )

    def published(self, name, epoch):
        told = published(self.store, name, "known", epoch)
        rows = self.rows(part.folder + "/" + each for part in told.partitions for each in part.files)
        return sorted((row["tail"], row["n"]) for row in rows)

    def rows(self, files):
        paths = [self.store.spark_url(each).removeprefix("file://") for each in files]
        return pa.concat_tables(map(pq.read_table, paths)).to_pylist()

    def results(self, name, epoch, stage):
        """The manifests of the current results of a stage, each with its folder, by subtask."""
        with self.ledger.transaction() as session:
            query = select(ResultRow).where(
                ResultRow.run == f"{name}@{epoch}", ResultRow.stage == stage, ResultRow.is_current
            )
            rows = list(session.scalars(query.order_by(ResultRow.subtask)))
        return [(from_json(Manifest, self.store.read(f"{row.folder}/manifest.json")), row.folder) for row in rows]

    def manifests(self, name, epoch):
        return [manifest for manifest, _ in self.results(name, epoch, "history")]

    def kept(self, name, epoch, stage):
        """What the subtasks have left of a list or of broadcast state."""
        left = self.results(name, epoch, stage)
        rows = [self.rows(f"{folder}/{file.name}" for file in manifest.files) for manifest, folder in left]
        return [sorted(row.get("element", row.get("epoch")).strip('"') for row in each) for each in rows]


def run_days(airflow, *days):
    for day in days:
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}


@pytest.mark.soak
@pytest.mark.spark
def test_a_fork_and_a_moved_savepoint_go_on_as_the_one_that_never_failed(server, store, tmp_path, pipeline):
    origin = Deployment(tmp_path, server.url, pipeline(AIRCRAFT), store)
    airflow = origin.airflow("flow", 2)
    run_days(airflow, 1, 2)
    (tmp_path / "usb").mkdir()
    (tmp_path / "elsewhere").mkdir()
    create(origin.services, SavepointRequest("flow", to=str(tmp_path / "usb"), name="mine"))
    shutil.move(tmp_path / "usb" / "mine", tmp_path / "moved")
    restore(origin.services, RestoreRequest("flow", "2", fork="forked"))
    elsewhere = Deployment(tmp_path / "elsewhere", server.url, origin.module)
    restore(elsewhere.services, RestoreRequest("flow", str(tmp_path / "moved")))
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
    for each, name, parallelism in ((origin, "flow", 2), (elsewhere, "flow", 2), (origin, "forked", 3)):
        added = [f"201301{day:02d}T000000Z/{subtask}" for day in (1, 2) for subtask in range(2)]
        added += [f"20130103T000000Z/{subtask}" for subtask in range(parallelism)]
        union, split = (each.kept(name, "20130103T000000Z", stage) for stage in ("epochs", "own"))
        assert [sorted(element for part in parts for element in part) for parts in (union, split)] == [added, added]
        assert [len(part) for part in split] == ([3, 3] if parallelism == 2 else [3, 2, 2])
        rates = each.kept(name, "20130103T000000Z", "rates")
        assert rates == [["20130101T000000Z", "20130102T000000Z", "20130103T000000Z"]] * len(rates)
    forked = origin.manifests("forked", "20130103T000000Z")
    assert sum(each.rows for each in forked) == 3
    assert {file.folder.split("/")[0] for each in forked for file in each.state.files} == {"forked"}
    for each in (origin, elsewhere):
        each.ledger.close()

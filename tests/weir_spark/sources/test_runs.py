"""Runs with ready-made sources, on Spark Connect: what a later attempt reads, what is recorded, and what is left."""

import json as text
import uuid
from io import BytesIO

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir.sinks.kafka_sink import read_committed
from tests.weir_spark.on_spark import AirflowWithCode
from tests.weir_spark.sources.conftest import looked_up

from weir.connections import Connection, LookUps, variable_from_environment
from weir.coordination.services import Services
from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    delta_source,
    files_source,
    jdbc_source,
    json,
    kafka,
    kafka_source,
    keyed_state,
    postgres_source,
    sink,
)
from weir.formats.codec import from_json
from weir.formats.region_job import RegionReport
from weir.ledger.database.tables import ResultRow
from weir.store.catalogue import published
from weir.store.walk import files_below
from weir.upkeep import look_for_late_files_everywhere
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

def copied(ctx, orders):
    return orders

def opened(ctx, events):
    return events.select("partition", "offset", "value.*")

def totals(ctx, rows, history):
    today = rows.groupBy("k").agg(F.sum("v").alias("today"))
    known = history.read(today).select("k", "v")
    both = today.join(known, "k", "left").select("k", (F.coalesce("v", F.lit(0)) + F.col("today")).alias("v"))
    history.upsert(both)
    return both
"""
EPOCH = "20130101T000000Z"


class World:
    """A dataflow under the fake Airflow, whose tasks have connections."""

    def __init__(self, url, store, folder, module):
        self.url, self.store, self.folder, self.module = url, store, folder, module
        self.ledger = new_ledger(folder / "ledger.db")
        self.errors = []

    def deploy(self, *stages, connections=()):
        look_up = looked_up(*connections)
        services = Services(ledger=self.ledger, store=self.store, now=lambda: self.airflow.time, connections=look_up)
        self.services = services
        self.engine = ConnectEngine(self.url, retries=2, look_ups=LookUps(look_up, variable_from_environment))
        self.airflow = AirflowWithCode(services, self, Dataflow("flow", stages))
        raised = self.airflow._raised
        self.airflow._raised = lambda *of: (self.errors.append(of[-1]), raised(*of))

    def run(self, job, during):
        self.engine.run(job, str(uuid.uuid4()), lambda line: None)
        during()
        return from_json(RegionReport, self.store.read(job.report))

    def day(self, number):
        run = self.airflow.dag_run(number)
        self.airflow.run_until_quiet()
        return run

    def again(self, run, task):
        self.airflow.clear_by_hand(run, task)
        self.airflow.run_until_quiet()

    def digests(self, sink, epoch=EPOCH):
        return [part.digest for part in published(self.store, "flow", sink, epoch).partitions]

    def published(self, sink, epoch):
        parts = published(self.store, "flow", sink, epoch).partitions
        files = [self.store.read(f"{part.folder}/{file}") for part in parts for file in part.files]
        return sorted(tuple(row.values()) for data in files for row in pq.read_table(BytesIO(data)).to_pylist())

    def rows_of(self, table, *columns):
        with self.ledger.transaction() as session:
            return [tuple(getattr(row, name) for name in columns) for row in session.scalars(select(table))]


@pytest.fixture
def world(server, store, tmp_path, pipeline):
    made = World(server.url, store, tmp_path, pipeline(PIPELINE))
    yield made
    made.ledger.close()


def test_a_later_attempt_reads_the_version_of_its_run_or_says_that_it_was_vacuumed(world):
    lake = str(world.folder / "lake")
    write_deltalake(lake, pa.table({"v": [1, 2]}))
    orders = delta_source("orders", lake)
    copied = Stage("copied", f"{world.module}:copied", [blocking(orders)])
    world.deploy(orders, copied, sink(copied, "copy"))
    run = world.day(1)
    before = world.digests("copy")

    write_deltalake(lake, pa.table({"v": [3]}), mode="append")
    DeltaTable(lake).delete("v = 1")
    world.again(run, "orders")
    assert (world.errors, world.digests("copy")) == ([], before)
    assert world.airflow.executed(run) == {"orders[0]": 2, "copied-copy[0]": 1, "weir_close[0]": 1}

    DeltaTable(lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    world.again(run, "orders")
    assert world.airflow.task(run, "orders").state == "failed"
    assert f"version 0 of the Delta table {lake} cannot be read any more" in str(world.errors[-1])
    assert world.digests("copy") == before


def test_rows_of_postgresql_are_loaded_for_an_attempt_and_a_change_is_noticed(world, postgres):
    shop, change_of = _shop(postgres)
    change_of("create table orders (v bigint, at timestamptz)")
    change_of("insert into orders values (1, '2013-01-01 05:00Z'), (2, '2013-01-01 23:59Z'), (3, '2013-01-02 00:00Z')")
    orders = postgres_source("orders", "shop", "select v from orders where at >= %(start)s and at < %(end)s")
    copied = Stage("copied", f"{world.module}:copied", [blocking(orders)])
    world.deploy(orders, copied, sink(copied, "copy"), connections=[shop])
    run = world.day(1)
    before = world.digests("copy")
    assert published(world.store, "flow", "copy", EPOCH).partitions[0].rows == 2
    world.again(run, "orders")
    assert (world.digests("copy"), world.airflow.executed(run)["copied-copy[0]"]) == (before, 1)
    change_of("update orders set v = 7 where v = 2")
    world.again(run, "orders")
    assert world.errors == []
    assert world.digests("copy") != before
    assert world.airflow.executed(run)["copied-copy[0]"] == 2
    assert [differs is not None for _, differs in world.rows_of(ResultRow, "id", "differs_from")].count(True) >= 1

    paths = [each.path for each in files_below(world.store, ["flow"])]
    assert paths
    assert not [path for path in paths if "/loaded/" in path]
    secret = postgres.password.encode()
    assert not [path for path in paths if secret in world.store.read(path)]
    assert secret not in b"".join(file.read_bytes() for file in world.folder.glob("ledger.db*"))


@pytest.mark.soak
def test_a_late_file_is_in_the_state_of_its_day_and_of_the_next(world):
    days = {1: [(1, 10), (2, 20)], 2: [(1, 1), (3, 30)]}

    def arrives(day, file, rows):
        folder = world.folder / f"2013-01-{day:02d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{file}.csv").write_text("".join(f"{k},{v}\n" for k, v in rows))

    def summed(day):
        known = [row for each in range(1, day + 1) for row in days[each]]
        return [(key, sum(v for k, v in known if k == key)) for key in sorted({k for k, _ in days[day]})]

    path = f"{world.folder}/{{start:%Y-%m-%d}}/*.csv"
    rows = files_source("rows", path, format="csv", schema="k BIGINT, v BIGINT", late="correct")
    history = keyed_state("history", key="k", schema="k BIGINT, v BIGINT")
    totals = Stage("totals", f"{world.module}:totals", [blocking(rows, by="k")], state=history)
    world.deploy(rows, totals, sink(totals, "summed"))
    for number, arrived in days.items():
        arrives(number, "a", arrived)
        world.day(number)
    arrives(1, "late", [(1, 5), (3, 7)])
    look_for_late_files_everywhere(world.services).require_whole()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    days[1] += [(1, 5), (3, 7)]
    assert world.errors == []
    assert [world.published("summed", f"2013010{day}T000000Z") for day in (1, 2)] == [summed(1), summed(2)]


@pytest.mark.xdist_group("kafka")
def test_days_go_from_kafka_to_kafka_once_each(world, kafka_broker):
    """Also what is computed again; a day in between has nothing."""
    client = {"bootstrap.servers": kafka_broker.address, "log_level": 0}
    connection = kafka_broker.connection("broker", **{"sasl.password": "of-the-broker"})
    producer = Producer(client)
    taken, given = (kafka_broker.create_topic(name) for name in ("taken", "given"))
    events = kafka_source("events", "broker", topic=taken, value=json("v BIGINT"))
    opened = Stage("opened", f"{world.module}:opened", [blocking(events, by="offset")])
    to = kafka("broker", topic=given, key="v")
    world.deploy(events, opened, sink(opened, "given", to=to), connections=[connection])
    sent = [[1, 2, 3], [], [4, 5]]
    for number, values in enumerate(sent, 1):
        for value in values:
            producer.produce(taken, text.dumps({"v": value}))
        assert producer.flush(30) == 0
        run = world.day(number)
        world.again(run, "events")
        world.again(run, "weir_close")
    assert world.errors == []
    by_epoch = {}
    for record in read_committed(client, given, 1):
        epoch = dict(record.headers())["weir.epoch"].decode()
        by_epoch.setdefault(epoch, []).append(text.loads(record.value())["v"])
    assert {epoch: sorted(values) for epoch, values in by_epoch.items()} == {
        "20130101T000000Z": [1, 2, 3],
        "20130103T000000Z": [4, 5],
    }
    files = [world.store.read(each.path) for each in files_below(world.store, ["flow"])]
    assert not [data for data in files if b"of-the-broker" in data]
    assert b"of-the-broker" not in b"".join(file.read_bytes() for file in world.folder.glob("ledger.db*"))


@pytest.mark.xdist_group("kafka")
def test_a_lost_result_of_a_source_that_is_copied_has_the_first_rows_though_the_source_lost_them(
    world, postgres, kafka_broker
):
    shop, change_of = _shop(postgres)
    change_of("create table orders (v bigint, at timestamptz, raw bytea, price numeric)")
    change_of("insert into orders values (1, '2013-01-01 05:00Z', '\\x00ff', 1.10), (2, '2013-01-01 23:59Z', null, -7)")
    visits = _in_derby(world.url, [(1, "2013-01-01"), (2, "2013-01-01")])
    topic, client = kafka_broker.create_topic("kept"), {"bootstrap.servers": kafka_broker.address, "log_level": 0}
    producer = Producer(client)
    for value in (1, 2, 3):
        producer.produce(topic, text.dumps({"v": value}), partition=0)
    assert producer.flush(30) == 0
    query = "select * from orders where at >= %(start)s and at < %(end)s"
    sources = [
        postgres_source("orders", "shop", query, keep="copy"),
        jdbc_source("visits", "visits", "select * from VISITS where DAY = '{start:%Y-%m-%d}'", keep="copy"),
        kafka_source("events", "broker", topic=topic, value=json("v BIGINT"), keep="copy"),
    ]
    names = [each.name for each in sources]
    connections = [shop, visits, kafka_broker.connection("broker")]
    world.deploy(*sources, *(sink(each, f"{each}_copy") for each in names), connections=connections)
    run = world.day(1)
    before = [world.digests(f"{each}_copy") for each in names]

    change_of("update orders set v = 7")
    _in_derby(world.url, [(3, "2013-01-01")])
    admin = AdminClient(client)
    for answer in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        answer.result(30)
    for (folder,) in world.rows_of(ResultRow, "folder"):
        world.store.delete_folder(folder)
    world.again(run, "weir_close")
    assert world.airflow.state_of(run) == "success"
    assert [world.digests(f"{each}_copy") for each in names] == before
    assert {each: world.airflow.executed(run)[f"{each}-{each}_copy[0]"] for each in names} == dict.fromkeys(names, 2)


def _shop(postgres):
    """A new database, and what changes it."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    url = psycopg2.extensions.parse_dsn(postgres.url(name).replace("+psycopg2", ""))
    shop = Connection(
        id="shop",
        kind="postgres",
        host="127.0.0.1",
        port=postgres.port,
        database=name,
        login=url["user"],
        password=postgres.password,
    )
    return shop, _changes(postgres.url(name))


def _in_derby(server, rows):
    """Have Derby, which the server's Spark has, hold these rows only."""
    driver, url = "org.apache.derby.jdbc.EmbeddedDriver", "jdbc:derby:memory:kept;create=true"
    session = SparkSession.builder.remote(server).create()
    try:
        writer = session.createDataFrame(rows, "ID INT, DAY STRING").write.format("jdbc").mode("overwrite")
        types = "DAY VARCHAR(10)"
        writer.options(url=url, dbtable="VISITS", driver=driver, user="me", createTableColumnTypes=types).save()
    finally:
        session.stop()
    return Connection(id="visits", kind="jdbc", host=url, login="me", password="", extra={"driver_class": driver})


def _changes(url):
    def change(statement):
        connection = psycopg2.connect(url.replace("+psycopg2", ""))
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    return change

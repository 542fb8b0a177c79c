"""A state whose columns are declared otherwise from epoch to epoch, on real Spark: old files are read right."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.dataflow.state_evolution import is_readable
from weir.dataflow.state_schema import fields_of_ddl
from weir.formats.codec import from_json
from weir.formats.manifest import READ_OPTIONS, Manifest
from weir.ledger.database.tables import ResultRow
from weir.store.catalogue import published

AIRCRAFT = """
from pyspark.sql import functions as F

DAYS = {"20130101T000000Z": [("a", 1), ("b", 2)], "20130102T000000Z": [("a", 10)], "20130103T000000Z": [("b", 1)]}

def flights(ctx):
    return ctx.spark.createDataFrame(DAYS.get(ctx.epoch, []), "tail STRING, today BIGINT")

def aircraft(ctx, flights, history):
    known = history.read()
    others = {field.name: field.dataType for field in known.schema.fields if field.name not in ("tail", "n")}
    n = (F.coalesce("n", F.lit(0)) + F.col("today")).cast(known.schema["n"].dataType).alias("n")
    new = [F.lit("1.5" if name == "x" else None).cast(kind).alias(name) for name, kind in others.items()]
    history.upsert(flights.join(known.select("tail", "n"), "tail", "left").select("tail", n, *new))
    return known.select("tail", F.to_json(F.struct(*known.columns)).alias("row"))
"""

SCHEMAS = (
    "tail STRING, n INT, x FLOAT",
    "tail STRING, seen DATE, n BIGINT, x DOUBLE",
    "tail STRING, seen DATE, n BIGINT",
    "tail STRING, seen DATE, n BIGINT, x STRING",
)


def flow(module, schema):
    history = keyed_state("history", key="tail", schema=schema)
    stage = Stage("aircraft", f"{module}:aircraft", [blocking("flights", by="tail")], state=history)
    return Dataflow("flow", [source("flights", f"{module}:flights"), stage, sink("aircraft", "known")])


def states(ledger, store):
    with ledger.transaction() as session:
        query = select(ResultRow.folder).where(ResultRow.stage == "history", ResultRow.is_current)
        folders = list(session.scalars(query.order_by(ResultRow.run)))
    return [from_json(Manifest, store.read(f"{folder}/manifest.json")) for folder in folders]


def what_was_published(store, epoch):
    told = published(store, "flow", "known", epoch)
    files = [store.spark_url(f"{part.folder}/{name}") for part in told.partitions for name in part.files]
    tables = [pq.read_table(each.removeprefix("file://")) for each in files]
    return {row["tail"]: json.loads(row["row"]) for table in tables for row in table.to_pylist()}


@pytest.mark.soak
@pytest.mark.spark
def test_columns_come_go_and_become_wider_and_no_old_value_comes_back(server, store, tmp_path, pipeline):
    module = pipeline(AIRCRAFT)
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, OnSpark(server.url, store), flow(module, SCHEMAS[0]))
    read = []
    for day, schema in enumerate(SCHEMAS, 1):
        airflow.deploy(flow(module, schema))
        airflow.dag_run(day)
        airflow.run_until_quiet()
        read.append(what_was_published(store, f"2013010{day}T000000Z"))
    assert {state for task, state in airflow.states().items() if "compact" not in task} == {"success"}
    assert read == [
        {},
        {"a": {"tail": "a", "n": 1, "x": 1.5}, "b": {"tail": "b", "n": 2, "x": 1.5}},
        {"a": {"tail": "a", "n": 11}, "b": {"tail": "b", "n": 2}},
        {"a": {"tail": "a", "n": 11}, "b": {"tail": "b", "n": 3}},
    ]
    found = states(ledger, store)
    assert [[file.epoch[6:8] for file in each.state.files] for each in found] == [["01"], ["01", "02"], ["03"], ["03"]]
    assert [each.digest.rows for each in found] == [2, 2, 2, 2]
    ledger.close()


WIDER = [
    ("tinyint", "bigint", "-5Y", -5),
    ("tinyint", "smallint", "-5Y", -5),
    ("smallint", "int", "-300S", -300),
    ("int", "bigint", "-70000", -70000),
    ("float", "double", "float(1.5)", 1.5),
    ("decimal(7,2)", "decimal(12,2)", "-12345.67BD", Decimal("-12345.67")),
    ("decimal(12,2)", "decimal(25,2)", "-12345.67BD", Decimal("-12345.67")),
    ("struct<a:int>", "struct<a:bigint,b:string>", "named_struct('a', 7)", {"a": 7, "b": None}),
    ("array<struct<a:int>>", "array<struct<a:bigint,b:string>>", "array(named_struct('a', 7))", [{"a": 7, "b": None}]),
    ("map<string,float>", "map<string,double>", "map('x', float(0.5))", {"x": 0.5}),
]


@pytest.mark.spark
def test_what_may_become_wider_is_read_as_it_was_written(spark, tmp_path):
    found = []
    for place, (was, now, value, _) in enumerate(WIDER):
        folder = str(tmp_path / str(place))
        written = spark.sql(f"SELECT 1 AS k, CAST({value} AS {was}) AS v UNION ALL SELECT 2, CAST(NULL AS {was})")
        written.coalesce(1).write.parquet(folder)
        rows = spark.read.options(**READ_OPTIONS).schema(f"k INT, v {now}").parquet(folder)
        found.append([row.asDict(recursive=True)["v"] for row in rows.orderBy("k").collect()])
    assert found == [[expected, None] for *_, expected in WIDER]


@pytest.mark.parametrize(("was", "now"), [each[:2] for each in WIDER])
def test_it_is_just_that_which_a_state_is_let_go_on_with(was, now):
    assert is_readable(kind(was), kind(now))
    assert not is_readable(kind(now), kind(was))


def kind(text):
    return fields_of_ddl(f"v {text}")["v"].kind

"""`weir compare`, as a person types it, on runs that Spark has computed."""

from __future__ import annotations

import importlib
import json
import re
import sys
import uuid
from pathlib import Path

import pytest
from sqlalchemy import func, select
from tests.builders.ledgers import new_ledger
from tests.weir.command_line import invoked, use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.ledger.database.tables import AttemptRow, LeaseRow
from weir.store.store import Store

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

def trips(ctx):
    rows = [(id, ["north", "south", "west", None][id % 4], id / 4) for id in range(12)]
    longer = 1.0 if ctx.epoch.startswith("20130102") else 0.0
    found = ctx.spark.createDataFrame(rows, "id BIGINT, zone STRING, distance DOUBLE")
    return found.withColumn("distance", F.col("distance") + F.when(F.col("id") % 4 == 1, longer).otherwise(0.0))

def by_zone(ctx, trips, totals):
    found = trips.groupBy("zone").agg(F.sum("distance").alias("distance"), F.count("*").alias("trips"))
    known = found.where("zone IS NOT NULL")
    totals.upsert(known.select("zone", "distance"))
    return found
"""
DAG = """
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir_airflow.dag import dataflow_dag

totals = keyed_state("totals", key="zone", schema="zone STRING, distance DOUBLE")
trips = source("trips", "MODULE:trips")
by_zone = Stage("by_zone", "MODULE:by_zone", [blocking(trips, by="zone")], parallelism=2, state=totals)
flow = Dataflow("trips", [trips, by_zone, sink(by_zone, "zones")], keep="60 days")
dag = dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""
OTHER_COLUMNS = """return found.select(F.lit("x").alias("more"), F.col("distance").cast("float"), "zone", "trips")
"""
FIRST, SECOND, OTHER = "trips@20130101T000000Z", "trips@20130102T000000Z", "others@20130101T000000Z"


def dataflow(name, module, parallelism):
    totals = keyed_state("totals", key="zone", schema="zone STRING, distance DOUBLE")
    trips = source("trips", f"{module}:trips")
    by_zone = Stage("by_zone", f"{module}:by_zone", [blocking(trips, by="zone")], parallelism=parallelism, state=totals)
    return Dataflow(name, [trips, by_zone, sink(by_zone, "zones")], keep="60 days")


@pytest.fixture(scope="module")
def places(server, tmp_path_factory):
    """Two days of a dataflow, and one of another of other parallelism, in a ledger and a store."""
    folder = tmp_path_factory.mktemp("compared")
    module = f"pipeline_{uuid.uuid4().hex[:12]}"
    (folder / f"{module}.py").write_text(PIPELINE)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    store = Store.open(str(folder / "store"))
    store.initialise()
    ledger = new_ledger(folder / "ledger.db")
    services = Services(ledger=ledger, store=store)
    (folder / "dag.py").write_text(DAG.replace("MODULE", module))
    for name, parallelism, days in (("trips", 2, (1, 2)), ("others", 3, (1,))):
        airflow = AirflowWithCode(services, OnSpark(server.url, store), dataflow(name, module, parallelism))
        for day in days:
            airflow.dag_run(day)
            airflow.run_until_quiet()
    with ledger.transaction() as session:
        assert [row.error for row in session.scalars(select(AttemptRow)) if row.error] == []
    yield {"folder": folder, "module": module, "ledger": ledger}
    ledger.close()
    sys.path.remove(str(folder))


@pytest.fixture
def environment(places, monkeypatch):
    use(monkeypatch, places["folder"], columns=110)
    return places


def leases(places):
    with places["ledger"].transaction() as session:
        return session.scalar(select(func.count()).select_from(LeaseRow))


def test_two_runs_are_compared_result_by_result(environment, server):
    done = invoked("compare", FIRST, SECOND, "--remote", server.url, "--json")
    found = json.loads(done.stdout)["comparison"]
    assert (done.exit_code, found["a"], found["b"]) == (1, FIRST, SECOND)
    of = {each["a"]: each for each in found["results"]}
    assert {name: each["outcome"] for name, each in of.items()} == dict.fromkeys(["trips", "totals", "zones"], "differ")
    trips, totals, zones = (of[name]["rows"] for name in ("trips", "totals", "zones"))
    assert (trips["key"], trips["repeated"]) == (None, [{"key": ["zone"], "a": 4, "b": 4}])
    assert (trips["only_in_a"], trips["only_in_b"], trips["changed"], trips["total"]) == (3, 3, 0, 15)
    assert (zones["key"], zones["columns"], zones["share"]) == (["zone"], {"distance": 1}, 0.25)
    assert zones["first"] == [
        {
            "rows_a": 1,
            "rows_b": 1,
            "a": {"zone": "south", "distance": 3.75, "trips": 3},
            "b": {"zone": "south", "distance": 6.75, "trips": 3},
            "columns": ["distance"],
        }
    ]
    assert (totals["key"], totals["changed"]) == (["zone"], 1)
    assert leases(environment) == 0


def test_the_page_shows_what_the_command_prints(environment, server):
    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
    [(words, picture)] = re.findall(r"(?s)```\n\$ weir (compare trips@.*?)\n(.*?)```", page)
    done = invoked(*words.split(), "--remote", server.url)
    assert (done.exit_code, done.stdout) == (1, picture)


def test_dataflows_of_other_parallelism_are_equal(environment, monkeypatch):
    """By their digests alone: no Spark could be started."""
    monkeypatch.setattr("sys.executable", "/no/python")
    done = invoked("compare", FIRST, OTHER, "--json")
    found = json.loads(done.stdout)["comparison"]
    assert (done.exit_code, [(each["a"], each["outcome"]) for each in found["results"]]) == (
        0,
        [("trips", "equal"), ("totals", "equal"), ("zones", "equal")],
    )


def test_a_named_key_that_is_not_unique_is_told(environment, server):
    done = invoked(
        "compare", FIRST, SECOND, "--stage", "trips", "--key", "ZONE", "--limit", "1", "--remote", server.url
    )
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    repeated = "4 of its values are repeated in A, 4 in B. Rows with these are never changed"
    assert f"  the key (zone) is not unique: {repeated}" in lines
    assert "  6 of 15 rows differ, 40.00%" in lines
    assert "│ south │ A (3 times), B (3 times) │ id: 1, distance: 0.25 -> id: 1, distance: 1.25 │" in lines
    assert lines[-1] == "└───────┴──────────────────────────┴────────────────────────────────────────────────┘"


def test_files_that_spark_cannot_read_are_told_beside_the_result(environment, server):
    """Their sizes and footers are right, so that only reading them finds it."""
    [file] = (environment["folder"] / "store/trips/20130102T000000Z/zones/plain").glob("0/*/*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(len(whole[4:40])) + whole[40:])
    try:
        done = invoked("compare", FIRST, SECOND, "--stage", "zones", "--remote", server.url)
    finally:
        file.write_bytes(whole)
    assert done.exit_code == 1
    assert "zones v1 │ differ" in done.stdout
    assert "the rows were not compared: SparkException: [FAILED_READ_FILE" in done.stdout
    assert file.name in done.stdout


def test_what_new_code_computes_is_compared_with_what_the_run_stores(environment):
    """Of a stage whose rows only a sink stores."""
    dag_file, module = environment["folder"] / "dag.py", environment["module"]
    words = ["try", str(dag_file), "by_zone", "--epoch", "2013-01-01", "--dataflow", "trips", "--compare"]
    same = invoked(*words, "--json")
    found = json.loads(same.stdout)
    assert (same.exit_code, found["error"]) == (0, None)
    assert (found["comparison"]["a"], found["comparison"]["version_a"], found["comparison"]["b"]) == (
        "zones",
        1,
        "by_zone",
    )
    assert (found["comparison"]["outcome"], found["comparison"]["by_digest"]) == ("equal", True)
    code = environment["folder"] / f"{module}.py"
    code.write_text(PIPELINE.replace('F.count("*")', '(F.count("*") + 1)').replace("return found\n", OTHER_COLUMNS))
    try:
        other = invoked(*words)
    finally:
        code.write_text(PIPELINE)
    assert other.exit_code == 1
    lines = other.stdout.splitlines()
    assert "A is what the run stores, B what was computed: differ" in lines
    assert "  columns only in B: more string" in lines
    assert "  column distance is double in A and float in B: its values were not compared" in lines
    assert "  4 of 4 rows differ, 100.00%" in lines
    assert "│ south │ both │ trips: 3 -> 4 │" in lines
    assert lines[-1] == "Nothing was stored."
    assert leases(environment) == 0

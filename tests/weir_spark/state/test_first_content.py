"""What docs/state.md shows about a table that is the first content of a state does so."""

import re
from datetime import date
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.ledgers import new_ledger
from tests.builders.state_chain import StateChain
from tests.weir_spark.on_spark import AirflowWithCode
from tests.weir_spark.sources.conftest import resolved

from weir.code.functions import load
from weir.coordination.services import Services
from weir.dataflow import Dataflow, sink, source
from weir.reading.opening import open_results
from weir_spark.region import region
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

SECTION = (
    (Path(__file__).parents[3] / "docs/state.md")
    .read_text()
    .split("\n## First content from a table that exists\n")[1]
    .split("\n## ")[0]
)
EXPORT, DECLARATION, FUNCTION = re.findall(r"(?s)```python\n(.*?)```", SECTION)
FUNCTIONS = """
from pyspark.sql import functions as F


def flights(ctx):
    rows = [(tailnum, ctx.interval[0].date()) for tailnum in ("N1", "N1", "N3")]
    return ctx.spark.createDataFrame(rows, "tailnum STRING, date DATE")


"""
OLD = [("N1", 10, date(2012, 12, 30)), ("N2", 20, date(2012, 12, 31))]
FLIGHTS = [(tailnum, date(2013, 1, 1)) for tailnum in ("N1", "N1", "N3")]
AFTER_TWO_DAYS = {"N1": 14, "N2": 20, "N3": 2}
ALL = (0, 127)


@pytest.fixture
def declared(pipeline, tmp_path):
    """The source and the stage that the page declares, of tables in this test's folder."""
    functions = pipeline(FUNCTIONS + FUNCTION)
    here = DECLARATION.replace("/lake", str(tmp_path)).replace("pipelines.delays", functions)
    module = import_module(pipeline(f"from weir.dataflow import Stage, blocking, files_source, keyed_state\n{here}"))
    return module.before, module.aircraft


def exported(folder):
    """The table of the old job, where the page writes it."""
    made = folder / re.search(r'"/lake/(aircraft_before/2013-01-01)"', EXPORT)[1]
    made.mkdir(parents=True)
    columns = zip(*OLD, strict=True)
    pq.write_table(pa.table(dict(zip(("tailnum", "flights", "seen"), columns, strict=True))), made / "part-0.parquet")
    return made


def test_the_table_is_read_in_the_first_epoch_only(declared, tmp_path):
    before, _ = declared
    table = exported(tmp_path)
    assert [len(split["files"]) for split in resolved(before)] == [1]
    table.rename(table.with_name("2013-01-02"))  # so is the date of the epoch that looks another one
    assert [len(split["files"]) for split in resolved(before)] == [0]


@pytest.mark.spark
def test_the_function_goes_on_from_the_table_and_then_from_its_state(spark, store, declared):
    _, stage = declared
    (state,), aircraft = stage.states, load(stage.function, "aircraft")
    chain = StateChain(store, state)
    for day, rows in (("20130101T000000Z", OLD), ("20130102T000000Z", [])):
        history = KeyedState(StoredState(spark, chain.read(day, ALL), ALL))
        flights = spark.createDataFrame(FLIGHTS, "tailnum STRING, date DATE")
        aircraft(None, flights, spark.createDataFrame(rows, state.schema), history)
        chain.go_on(day, {ALL: write_state(history, state.name, chain.output(day), store)})
    content = KeyedState(StoredState(spark, chain.read("20130103T000000Z", ALL), ALL)).read()
    assert {row.tailnum: row.flights for row in content.collect()} == AFTER_TWO_DAYS


class InThisSession:
    """Computes regions in the shared session, in the place of the fake engine."""

    def __init__(self, spark, store):
        self._spark, self._store = spark, store

    def run(self, job, during=lambda: None):
        report = region.run(job, self._spark, self._store, lambda _line: None)
        during()
        return report


@pytest.mark.spark
@pytest.mark.soak
def test_a_dataflow_of_two_subtasks_begins_with_the_table(spark, store, declared, tmp_path):
    exported(tmp_path)
    flights = source("flights", declared[1].function.replace(":aircraft", ":flights"))
    stages = [flights, *declared, sink("aircraft", "seen")]
    services = Services(ledger=new_ledger(tmp_path / "ledger.db"), store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, InThisSession(spark, store), Dataflow("flow", stages))
    for day in (1, 2):
        airflow.dag_run(day)
        airflow.run_until_quiet()
    with open_results("flow", state="history", services=services) as history:
        assert {row["tailnum"]: row["flights"] for row in history.arrow().to_pylist()} == AFTER_TWO_DAYS
    services.ledger.close()

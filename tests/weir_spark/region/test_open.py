"""`weir.open` on what Spark has written: Arrow and Spark give the same rows, of every type."""

import importlib
import sys
import uuid
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode

import weir
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import OF_RESULT
from weir.formats.region_job import RegionReport
from weir.ledger.database.tables import AttemptRow
from weir.retention.release import delete_released, release
from weir.state.spark_schema import arrow_schema, spark_ddl
from weir.store.store import Store
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

TYPES = '''
    id,
    cast(id as string) text, cast(cast(id as string) as binary) bytes, id % 2 = 0 even,
    cast(id % 100 as tinyint) tiny, cast(id as smallint) small, cast(id as int) whole,
    cast(id as float) single, cast(id as double) real, cast(id as decimal(20, 4)) exact,
    date'2013-01-01' + cast(id as int) day,
    timestamp'2013-01-01 12:00:00.123456' at, timestamp_ntz'2013-01-01 12:00:00.123456' at_there,
    named_struct('a b', id, 'c`d', array(cast(id as string), null)) nested,
    map(cast(id as string), array(named_struct('x', id))) named,
    cast(null as string) nothing, id `odd, name`
'''


def numbers(ctx):
    return ctx.spark.range(0, 1000, 1, 3)


def typed(ctx, numbers):
    return ctx.spark.sql("select " + TYPES + " from {numbers}", numbers=numbers)


def none(ctx, typed):
    return typed.where("id < 0")


def count(ctx, none):
    return none.groupBy().agg(F.count("id").alias("n"))
"""


class SparkEngine:
    """A Connect server in the place of the fake engine."""

    def __init__(self, url, store):
        self._engine, self._store = ConnectEngine(url), store

    def run(self, job, during):
        self._engine.run(job, str(uuid.uuid4()), lambda _line: None)
        during()
        return from_json(RegionReport, self._store.read(job.report))


@pytest.fixture(scope="module")
def airflow(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    name = f"pipeline_{uuid.uuid4().hex[:12]}"
    (folder / f"{name}.py").write_text(PIPELINE)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    store = Store.open(str(folder / "store"))
    store.initialise()
    flow = Dataflow(
        "flow",
        [
            source("numbers", f"{name}:numbers"),
            Stage("typed", f"{name}:typed", [blocking("numbers", by="id")], parallelism=2),
            Stage("none", f"{name}:none", [blocking("typed")]),
            Stage("count", f"{name}:count", [blocking("none", by="id")]),
            sink("count", "published"),
        ],
    )
    ledger = new_ledger(folder / "ledger.db")
    airflow = AirflowWithCode(Services(ledger=ledger, store=store), SparkEngine(server.url, store), flow)
    airflow.dag_run()
    airflow.run_until_quiet()
    with ledger.transaction() as session:
        errors = [row.error for row in session.scalars(select(AttemptRow)) if row.error]
    assert errors == []
    yield airflow
    ledger.close()
    sys.path.remove(str(folder))


@pytest.fixture
def opened(airflow):
    made = []

    def open_it(stage=None):
        made.append(weir.open("flow", stage=stage, services=airflow.services))
        return made[-1]

    yield open_it
    for each in made:
        each.close()


def same(table, frame):
    """Whether Arrow and Spark read the same rows and columns."""
    theirs = frame.toArrow()
    assert table.column_names == theirs.column_names == frame.columns
    key = table.column_names[0]
    assert table.sort_by(key).to_pylist() == theirs.sort_by(key).to_pylist()
    return table.num_rows


def test_arrow_and_spark_give_the_same_rows_of_every_type(opened, spark):
    typed = opened("typed")
    assert same(typed.arrow(), typed.spark(spark)) == typed.rows == 1000
    assert len(typed.partitions) == 2


def test_a_keyed_result_has_the_columns_of_its_stage(opened, spark):
    numbers = opened("numbers")
    assert numbers.spark(spark).columns == numbers.arrow().column_names == ["id"]
    assert same(numbers.arrow(), numbers.spark(spark)) == 1000


def test_no_rows_have_columns_too(opened, spark):
    none, typed = opened("none"), opened("typed")
    assert same(none.arrow(), none.spark(spark)) == none.rows == 0
    assert none.arrow().schema == typed.arrow().schema


def test_what_is_published_is_what_is_given(opened, spark):
    assert opened().arrow().to_pylist() == [{"n": 0}]
    assert opened().spark(spark).collect()[0].n == 0


def test_the_digest_of_all_partitions_is_that_of_all_rows(opened, spark):
    """Equal rows have equal digests, in one partition or in two."""
    from weir_spark.results import digest

    typed = opened("typed")
    frame = typed.spark(spark)
    seen = digest.observe(frame, version=OF_RESULT)
    seen.rows.write.format("noop").mode("overwrite").save()
    assert typed.digest == str(digest.to_digest(frame.schema, seen.measures(seen.rows), version=OF_RESULT))


def test_spark_reads_what_was_open_though_room_was_needed(airflow, spark):
    frame = weir.open("flow", stage="typed", services=airflow.services).spark(spark)  # nobody keeps it
    release(airflow.services, "flow", is_reclaiming=True)
    gone = delete_released(airflow.services, "flow")
    assert {each.stage for each in gone} == {"numbers", "none"}
    assert frame.count() == 1000


def test_arrows_types_are_those_that_spark_reads(opened, spark):
    schema = opened("typed").spark(spark).schema
    assert spark.createDataFrame([], spark_ddl(schema.json())).schema.simpleString() == schema.simpleString()
    assert arrow_schema(schema.json()).names == schema.fieldNames()


def test_the_files_are_there(opened):
    assert all(Path(file.removeprefix("file:")).exists() for file in opened("typed").files)

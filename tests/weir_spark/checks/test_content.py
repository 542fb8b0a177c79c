"""The digest of a result's rows, computed again from its files, is the one that was committed, or tells on them.

That of keyed state is computed from all files that its epochs have left.
"""

import hashlib
import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812  # as everywhere
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode
from typer.testing import CliRunner

import weir_spark
from weir.cli.main import app
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, keyed_state, list_state, sink, source
from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import Manifest
from weir.formats.paths import MANIFEST
from weir.formats.programs import ResultToCheck, answer_from_json
from weir.formats.region_job import RegionReport
from weir.ledger.database.tables import ResultRow
from weir.store.catalogue import published
from weir.store.seal import seal
from weir.topology.partitions import PLAIN, Layout
from weir.typed_json import message_to_json
from weir_spark.checks.content import content_of
from weir_spark.results import writer
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

PROGRAM = Path(weir_spark.__file__).parents[1] / "compare_content.py"


@pytest.fixture
def written(spark, jobs, store):
    """Write some rows as a region does, and ask for their digest."""
    session = spark

    def write(rows, layout=PLAIN, rule=PLAIN_RULE):
        output = jobs.output("numbers", layout)
        done = writer.report(writer.write(rows, "numbers", output, rule), "numbers", output, store)
        files = tuple(f"{output.spark_folder}/{file.name}" for file in done.files)
        return ResultToCheck(
            number=7,
            name="numbers[0]",
            files=files,
            spark_schema=done.spark_schema,
            is_keyed=bool(layout.keys),
            expected=str(done.digest),
            rule=rule,
        )

    return session, write


def rows_of(session):
    return session.range(1000).select(
        "id",
        F.when(F.col("id") % 7 != 0, F.col("id") / 3).alias("third"),
        F.array(F.col("id"), F.lit(None).cast("long")).alias("pair"),
        F.timestamp_seconds("id").alias("at"),
    )


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (PLAIN, PLAIN_RULE),
        (Layout(("id",), 32), PLAIN_RULE),
        (Layout(("id",), 32), DigestRule({"third": 3}, ("at",))),
    ],
)
def test_the_rows_of_a_result_have_the_digest_that_was_committed(written, layout, rule):
    session, write = written
    asked = write(rows_of(session), layout, rule)
    assert content_of(session, asked).digest == asked.expected
    assert content_of(session, asked).error == ""


def test_other_rows_have_another(written):
    session, write = written
    right, other = write(rows_of(session)), write(rows_of(session).where("id != 5"))
    mixed = ResultToCheck(
        number=7, name="", files=other.files, spark_schema=right.spark_schema, is_keyed=False, expected=right.expected
    )
    assert content_of(session, mixed).digest == other.expected != right.expected


def test_unreadable_files_have_no_digest(written, store):
    session, write = written
    asked = write(rows_of(session))
    gone = ResultToCheck(
        number=7,
        name="",
        files=(store.spark_url("flow/none.parquet"),),
        spark_schema=asked.spark_schema,
        is_keyed=False,
        expected=asked.expected,
    )
    assert content_of(session, gone).digest is None
    assert "none.parquet" in content_of(session, gone).error


@pytest.mark.soak
def test_the_program_answers_by_lines(server, written, tmp_path):
    session, write = written
    asked = write(rows_of(session))
    request = tmp_path / "request.json"
    request.write_text(message_to_json([asked]))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(request), "--remote", server.url],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (answer,) = filter(None, map(answer_from_json, done.stdout.splitlines()))
    assert (answer.number, answer.digest) == (7, asked.expected)


PIPELINE = """
def numbers(ctx):
    return ctx.spark.range(100)


def report(ctx, numbers):
    return numbers.where("id % 2 = 0")
"""


class SparkEngine:
    """A Connect server in the place of the fake engine."""

    def __init__(self, url, store):
        self._engine, self._store = ConnectEngine(url), store

    def run(self, job, during):
        self._engine.run(job, str(uuid.uuid4()), lambda _line: None)
        during()
        return from_json(RegionReport, self._store.read(job.report))


@pytest.fixture
def world(server, store, pipeline, tmp_path, monkeypatch):
    """A run that has gone through on Spark, in the environment's ledger and store."""
    module = pipeline(PIPELINE)
    flow = Dataflow(
        "flow",
        [
            source("numbers", f"{module}:numbers"),
            Stage("report", f"{module}:report", [blocking("numbers", by="id")]),
            sink("report", "published"),
        ],
    )
    url = f"sqlite:///{tmp_path}/ledger.db"
    services = Services(ledger=new_ledger(tmp_path / "ledger.db"), store=store)
    airflow = AirflowWithCode(services, SparkEngine(server.url, store), flow)
    airflow.dag_run()
    airflow.run_until_quiet()
    monkeypatch.setenv("WEIR_STORE", store.url)
    monkeypatch.setenv("WEIR_LEDGER", url)
    monkeypatch.delenv("WEIR_API", raising=False)
    return airflow


def results_of(airflow, stage):
    with airflow.services.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow).where(ResultRow.stage == stage).order_by(ResultRow.id)))


def rewrite(airflow, row, spark):
    """Let a result hold other rows, in files that are as its manifest says."""
    store, path = airflow.services.store, f"{row.folder}/{MANIFEST}"
    manifest = from_json(Manifest, store.read(path))
    for file in manifest.files:
        store.delete(f"{row.folder}/{file.name}")
    other = spark.range(50).withColumn("_weir_key_group", F.lit(3)) if manifest.keys else spark.range(49)
    other.coalesce(1).write.mode("append").parquet(store.spark_url(row.folder))
    store.delete(path)
    forged = to_json(replace(manifest, files=seal(store, row.folder)))
    store.create(path, forged)
    with airflow.services.ledger.transaction("flow") as session:
        found = session.get_one(ResultRow, row.id)
        found.manifest_sha256 = hashlib.sha256(forged).hexdigest()
        found.bytes = sum(file.bytes for file in from_json(Manifest, forged).files)


def typed(*words):
    done = CliRunner().invoke(app, ["verify", *words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


STATES = """
def days(ctx, history, offsets, rates):
    first = int(ctx.epoch[6:8])
    rows = ctx.spark.range(first, first + 20)
    history.upsert(rows.selectExpr("id", "id / 3 AS third"))
    history.delete(rows.where("id % 10 = 0"))
    offsets.add(ctx.epoch)
    rates.update(ctx.spark.range(3))
    return rows
"""


@pytest.fixture
def state_world(server, store, pipeline, tmp_path, monkeypatch):
    """Three days of keyed state whose rows expire after two, a list, and broadcast state, all on Spark."""
    states = (
        keyed_state("history", key="id", schema="id BIGINT NOT NULL, third DOUBLE", ttl="2 days"),
        list_state("offsets"),
        broadcast_state("rates", schema="id BIGINT"),
    )
    days = source("days", f"{pipeline(STATES)}:days", state=states)
    flow = Dataflow("flow", [days, sink("days", "published")], keep="60 days")
    services = Services(ledger=new_ledger(tmp_path / "ledger.db"), store=store)
    airflow = AirflowWithCode(services, SparkEngine(server.url, store), flow)
    for day in (1, 2, 3):
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    monkeypatch.setenv("WEIR_STORE", store.url)
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.delenv("WEIR_API", raising=False)
    return airflow


def with_other_values(airflow, row):
    """Let the file that an epoch has written of a state have other values, and its manifest say so; its path."""
    store, path = airflow.services.store, f"{row.folder}/{MANIFEST}"
    manifest = from_json(Manifest, store.read(path))
    (file,) = manifest.files
    at = store.spark_url(f"{row.folder}/{file.name}").removeprefix("file://")
    rows = pq.read_table(at)
    store.delete(path)
    pq.write_table(rows.set_column(1, "third", pc.add(rows["third"], 1.0)), at)
    files = seal(store, row.folder)
    named = tuple(replace(each, file=files[0]) if each.folder == row.folder else each for each in manifest.state.files)
    forged = to_json(replace(manifest, files=files, state=replace(manifest.state, files=named)))
    store.create(path, forged)
    with airflow.services.ledger.transaction("flow") as session:
        found = session.get_one(ResultRow, row.id)
        found.manifest_sha256, found.bytes = hashlib.sha256(forged).hexdigest(), files[0].bytes
    return f"{row.folder}/{file.name}"


def test_the_rows_of_states_are_read_from_all_their_files_and_others_are_quarantined(state_world, server):
    right = typed("flow", "--content", "--remote", server.url)
    assert (right["bad"], right["misfits"]) == ([], [])
    of_states = results_of(state_world, "history")
    assert len(of_states) == 3
    last = of_states[-1]
    file = with_other_values(state_world, last)
    found = typed("flow", "--content", "--remote", server.url, "--repair")
    assert [(each["stage"], each["subtask"], each["outcome"]) for each in found["bad"]] == [
        ("history", last.subtask, "quarantined")
    ]
    assert {each["path"] for each in found["misfits"]} == {file, "flow/_checkpoints/00000003.json"}
    state_world.deliver_clears()
    state_world.run_until_quiet()
    old, new = (
        each for each in results_of(state_world, "history") if (each.run, each.subtask) == (last.run, last.subtask)
    )
    assert (old.state, new.state, new.digest) == ("superseded", "finished", old.digest)


@pytest.mark.parametrize("stage", [pytest.param("numbers", marks=pytest.mark.soak), "published"])
def test_rows_other_than_the_committed_ones_are_quarantined_and_recomputed(world, server, spark, stage):
    (row,) = results_of(world, stage)
    rewrite(world, row, spark)
    found = typed("flow", "--content", "--remote", server.url, "--repair")
    assert [(each["stage"], each["outcome"]) for each in found["bad"]] == [(stage, "quarantined")]
    world.deliver_clears()
    world.run_until_quiet()
    old, new = results_of(world, stage)
    assert (old.state, new.state, new.digest) == ("superseded", "finished", old.digest)
    pointer = published(world.services.store, "flow", "published", "20130101T000000Z")
    assert pointer.version == (2 if stage == "published" else 1)
    assert pointer.partitions[0].folder == results_of(world, "published")[-1].folder
    assert typed("flow")["bad"] == []

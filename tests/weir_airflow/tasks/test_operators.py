"""The operators and the retry policy in Airflow's own `dag.test()`, with a real Spark Connect server and ledger."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from tests.weir_airflow.deployed import deployed

from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.ledger import Ledger

pytestmark = pytest.mark.spark

FLOWS = '''
import json, os
from datetime import datetime, timedelta, UTC
from pathlib import Path
from airflow.sdk import DAG, CronDataIntervalTimetable, task
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryRule
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow import dataflow_dag, dataflow_group, on_dataset

START = datetime(2013, 1, 1, tzinfo=UTC)
CONTROL = os.environ["WEIR_TEST_CONTROL"]

def flow(name):
    numbers = source("numbers", "rapids_stages:numbers", parallelism=2)
    totals = Stage("totals", "rapids_stages:totals", [blocking("numbers", by="bucket")], parallelism=2)
    return Dataflow(name, [numbers, totals, sink("totals", "sums")], parameters={"control": CONTROL})

def tell(context):
    with (Path(CONTROL) / "told").open("a") as file:
        print(context["dag"].dag_id, context["ti"].task_id, context["ti"].map_index, file=file)

TOLD = {"on_retry_callback": tell, "on_failure_callback": tell}
dataflow_dag(flow("stumble"), schedule="@daily", start_date=START, retries=1, retry_delay=timedelta(0))
dataflow_dag(flow("fall"), schedule="@daily", start_date=START, retries=0, default_args=TOLD)
dataflow_dag(flow("follow"), schedule=on_dataset("stumble.sums"), cadence="@daily", retries=0)
dataflow_dag(
    flow("mind"),
    schedule="@daily",
    start_date=START,
    restart={"restart-strategy.type": "none"},
    retry_policy=ExceptionRetryPolicy([RetryRule("builtins.ValueError", retry_delay=timedelta(0), reason="it passes")]),
    failure_enrichers=["rapids_stages:owner"],
    default_args=TOLD,
)

def braid(name):
    """Numbers and the rows that are kept of them, index by index; then sums over all of them."""
    numbers = source("numbers", "rapids_stages:numbers", parallelism=4)
    kept = Stage("kept", "rapids_stages:kept", [blocking("numbers", pointwise=True)], parallelism=4)
    totals = Stage("totals", "rapids_stages:totals", {"numbers": blocking("kept")})
    return Dataflow(name, [numbers, kept, totals, sink("totals", "sums")], parameters={"control": CONTROL})

dataflow_dag(braid("braid"), schedule="@daily", start_date=START)
dataflow_dag(braid("frayed"), schedule="@daily", start_date=START, retries=0)

between = source("between", "rapids_stages:between")
moments = Dataflow("moments", [between, sink(between, "found")])
dataflow_dag(moments, start_date=START, retries=3, retry_delay=timedelta(0))

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("rapids", schedule=daily, start_date=START, default_args=TOLD) as dag:
    group = dataflow_group(flow("rapids"))

    @task
    def lose():
        """Delete, once, all data files of numbers[1] in the layout that `totals` reads."""
        mark = Path(CONTROL) / "lost"
        if (Path(CONTROL) / "lose").exists() and not mark.exists():
            mark.touch()
            for file in Path(os.environ["WEIR_STORE"]).glob("rapids/*/numbers/*/1/*/*.parquet"):
                file.unlink()

    dag.task_dict["rapids.numbers"] >> lose() >> dag.task_dict["rapids.totals-sums"]
'''

STAGES = """
import os
from pathlib import Path
from pyspark.sql import functions as F

def numbers(ctx):
    if ctx.subtask == 3 and (Path(ctx.parameters["control"]) / "break").exists():
        raise ValueError("broken on purpose")
    return ctx.spark.range(ctx.subtask, 100, ctx.parallelism).select("id", (F.col("id") % 10).alias("bucket"))

def between(ctx):
    start, end = ctx.interval
    return ctx.spark.range(100).where(f"id between {start.timestamp()} and {end.timestamp()}")

def owner(failure):
    return {"owner": f"{failure.region}[{failure.subtask}] by {failure.error}"}

def kept(ctx, numbers):
    mark = Path(ctx.parameters["control"]) / "lose-3"
    if ctx.subtask == 3 and mark.exists():
        mark.unlink()
        for file in Path(os.environ["WEIR_STORE"]).glob("braid/*/numbers/*/3/*/*.parquet"):
            file.unlink()
    return numbers

def totals(ctx, numbers):
    stumble = Path(ctx.parameters["control"]) / "stumble"
    if stumble.exists() and ctx.subtask == 0:
        if stumble.read_text() == "once":
            stumble.unlink()
        raise ValueError("stumbled on purpose")
    return numbers.groupBy("bucket").agg(F.sum("id").alias("total"))
"""


@pytest.fixture(scope="module")
def world(airflow_home, server, tmp_path_factory):
    """Store, ledger, connections, stages and DAG files; the folder by which a test makes stages fail."""
    folder = tmp_path_factory.mktemp("world")
    with deployed(airflow_home, folder, server, "rapids_stages", STAGES, FLOWS, WEIR_TEST_CONTROL=str(folder)):
        yield folder


@pytest.fixture
def run(world):
    """Run a DAG for a day: the run's state, and by task instance its state, tries and result."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
    assert not bag.import_errors

    def test(dag_id, day, hour=0, **changed):
        for name, value in changed.items():
            setattr(bag.dags[dag_id], name, value)
        dag_run = bag.dags[dag_id].test(logical_date=datetime(2013, 1, day, hour, tzinfo=UTC))
        with create_session() as session:
            tis = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id=dag_run.run_id).all()
            states = {(ti.task_id.rpartition(".")[2], ti.map_index): (ti.state, ti.try_number) for ti in tis}
            pushed = session.query(XComModel).filter_by(dag_id=dag_id, run_id=dag_run.run_id, key="return_value")
            results = {
                (row.task_id.rpartition(".")[2], row.map_index): XComModel.deserialize_value(row) for row in pushed
            }
            names = {ti.rendered_map_index for ti in tis}
        return dag_run.state, states, results, names

    return test


def published(world, name, day):
    """The rows of the newest version: the total of each bucket."""
    import pyarrow.parquet as parquet

    from weir.formats.paths import pointer_folder
    from weir.formats.pointer import newest, pointer_from_json

    store = world / "store"
    # A run that is triggered by hand at midnight has the interval that has just ended.
    epoch = f"{datetime(2013, 1, day, tzinfo=UTC) - timedelta(days=1):%Y%m%dT%H%M%SZ}"
    versions = store / pointer_folder(name, "sums", epoch)
    pointer = pointer_from_json((versions / newest(each.name for each in versions.iterdir())).read_bytes())
    files = [store / each.folder / file for each in pointer.partitions for file in each.files]
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    return {row["bucket"]: row["total"] for row in rows}


EXPECTED = {bucket: sum(range(bucket, 100, 10)) for bucket in range(10)}


def told(world):
    """Whom the users' callbacks at a retry and at a failure have told of, by DAG."""
    file, found = world / "told", {}
    for line in file.read_text().splitlines() if file.exists() else ():
        dag_id, _, task = line.partition(" ")
        found.setdefault(dag_id, []).append(task)
    return found


def test_a_run_computes_publishes_and_shows_what_it_did(run, world):
    state, tasks, results, names = run("stumble", 1)
    assert state == "success"
    assert set(tasks.values()) == {("success", 1)}
    assert {"numbers[0]", "numbers[1]", "totals-sums[0]", "totals-sums[1]"} <= names
    assert sum(results["numbers", index]["rows"] for index in (0, 1)) == 100
    assert results["numbers", 0]["bytes"] > 0
    assert results["numbers", 0]["attempt"].startswith("t0001-")
    assert published(world, "stumble", 1) == EXPECTED
    epoch, events = "20121231T000000Z", asset_events("stumble.sums")
    assert {each.partition_key for each in events} == {None, epoch}
    (digest,) = {each.extra["digest"] for each in events}
    assert [each.extra for each in events] == 2 * [{"epoch": epoch, "version": 1, "rows": 10, "digest": digest}]


def asset_events(name):
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        of_name = session.query(AssetModel.id).filter_by(name=name)
        return session.query(AssetEvent).filter(AssetEvent.asset_id.in_(of_name)).all()


def failure_of(world, dag_id, task_id):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        return next(ti.note for ti in session.query(TaskInstance).filter_by(dag_id=dag_id, task_id=task_id) if ti.note)


def test_what_lies_in_an_interval_without_length_is_refused_in_one_try_when_it_begins_or_is_asked_for(run, world):
    from airflow.sdk import CronTriggerTimetable

    state, tasks, _, _ = run("moments", 3)
    assert (state, tasks["between-found", -1]) == ("failed", ("failed", 1))
    assert "data_interval_start" in failure_of(world, "moments", "between-found")
    # A timetable that has promised intervals, and gives none.
    state, tasks, _, _ = run("fall", 3, timetable=CronTriggerTimetable("@daily", timezone="UTC"))
    assert (state, tasks["numbers", 0]) == ("failed", ("failed", 1))
    note = failure_of(world, "fall", "numbers")
    assert "CronDataIntervalTimetable('0 0 * * *')" in note
    assert "2013-01-03T00:00:00+00:00 to 2013-01-03T00:00:00+00:00" in note
    assert sorted(told(world)["fall"]) == ["numbers 0", "numbers 1"]
    with Ledger.open(f"sqlite:///{world}/ledger.db").transaction() as session:
        assert session.query(RunRow).filter_by(dataflow="fall").all() == []


def test_a_dataflow_that_data_sets_schedule_is_tried_by_the_start_of_an_epoch(run, world):
    state, tasks, _, _ = run("follow", 2)
    assert (state, set(tasks.values())) == ("success", {("success", 1)})
    assert {each.partition_key for each in asset_events("follow.sums")} == {None, "20130102T000000Z"}
    with Ledger.open(f"sqlite:///{world}/ledger.db").transaction() as session:
        (row,) = session.query(RunRow).filter_by(dataflow="follow").all()
        day = datetime(2013, 1, 2, tzinfo=UTC)
        assert (row.interval_start, row.interval_end) == (day, day + timedelta(days=1))
    state, tasks, _, _ = run("follow", 3, hour=5)
    assert (state, tasks["numbers", 0]) == ("failed", ("failed", 1))
    assert "no partition key" in failure_of(world, "follow", "numbers")


@pytest.fixture
def statsd():
    """A StatsD server, to which Airflow exports its metrics with the tags of Influx."""
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability import stats
    from tests.weir_airflow.statsd import StatsdServer

    server = StatsdServer()
    logger = server.logger(influxdb_tags_enabled=True, statsd_influxdb_enabled=True)
    stats.initialize(factory=lambda: logger, export_legacy_names=False)
    yield server
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
    server.close()


def test_a_lost_result_is_recomputed_by_its_producer_alone_and_a_statsd_server_is_told(run, world, statsd, monkeypatch):
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    (world / "lose").touch()
    state, tasks, _, _ = run("rapids", 1)
    assert state == "success"
    assert tasks["numbers", 1] == ("success", 2)
    assert tasks["numbers", 0] == ("success", 1)
    assert tasks["lose", -1] == ("success", 1)
    assert published(world, "rapids", 1) == EXPECTED
    counts = Counter()
    for name, value, _ in statsd.received():
        if name.startswith("airflow.weir."):
            counts[name] += value
    of_numbers = "airflow.weir.attempts,dataflow=rapids,task_id=rapids.numbers"
    assert counts[f"{of_numbers},state=committed,failure=none"] == 3
    assert counts["airflow.weir.losses,dataflow=rapids,cause=missing"] == 1
    assert counts["airflow.weir.recomputed.bytes,dataflow=rapids,cleared_by=weir"] > 0
    assert counts["airflow.weir.spared.seconds,dataflow=rapids"] > 0
    assert "rapids" not in told(world)  # nobody has to know


@pytest.mark.soak
def test_a_stage_that_fails_once_is_restarted_by_the_users_retries(run, world):
    (world / "stumble").write_text("once")
    state, tasks, _, _ = run("stumble", 2)
    assert state == "success"
    assert (tasks["totals-sums", 0], tasks["totals-sums", 1]) == (("success", 2), ("success", 1))
    assert published(world, "stumble", 2) == EXPECTED


def test_a_users_retry_policy_overrides_the_strategy_and_a_mended_failure_leaves_labels(run, world):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    (world / "stumble").write_text("once")
    state, states, _, _ = run("mind", 7)
    assert (state, states["totals-sums", 0]) == ("success", ("success", 2))
    assert told(world)["mind"] == ["totals-sums 0"]
    with create_session() as session:
        [ti] = session.query(TaskInstance).filter_by(dag_id="mind", task_id="totals-sums", map_index=0)
        note = ti.note
    assert note.startswith("Weir: healed: ")
    assert "ValueError" in note
    ledger = Ledger.open(f"sqlite:///{world}/ledger.db")
    with ledger.transaction() as session:
        rows = session.query(AttemptRow).join(RunRow, RunRow.id == AttemptRow.run).filter(RunRow.dataflow == "mind")
        [labels] = [row.labels for row in rows if row.failure]
    ledger.close()
    assert labels == {"type": "application", "exception": "ValueError", "owner": "totals-sums[0] by ValueError"}


@pytest.mark.soak
def test_without_retries_a_failure_is_final(run, world):
    (world / "stumble").write_text("always")
    try:
        state, tasks, _, _ = run("fall", 1)
    finally:
        (world / "stumble").unlink()
    assert state == "failed"
    assert tasks["totals-sums", 0] == ("failed", 1)
    assert tasks["weir_close", -1][0] == "upstream_failed"


def test_an_index_whose_input_is_lost_is_recomputed_with_its_producer_and_no_other(run, world):
    (world / "lose-3").touch()
    state, tasks, _, names = run("braid", 1)
    assert state == "success"
    assert {"numbers[3]", "kept[0]"} <= names
    assert {task: tries for task, (_, tries) in tasks.items() if tries > 1} == {("numbers", 3): 2, ("kept", 3): 2}
    assert published(world, "braid", 1) == EXPECTED


@pytest.mark.soak
def test_an_index_that_fails_for_good_stops_no_other_index(run, world):
    (world / "break").touch()
    try:
        state, tasks, _, _ = run("frayed", 1)
    finally:
        (world / "break").unlink()
    assert state == "failed"
    assert [tasks["numbers", index][0] for index in range(4)] == ["success", "success", "success", "failed"]
    assert [tasks["kept", index][0] for index in range(4)] == ["success", "success", "success", "upstream_failed"]
    assert tasks["totals-sums", -1][0] == "upstream_failed"

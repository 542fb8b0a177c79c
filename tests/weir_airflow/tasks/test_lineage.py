"""Lineage as OpenLineage's own provider asks for it: data sets with their stable names, and run facets."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from tests.weir.small_dataflow import ladder

from weir.connections import Connection
from weir.coordination.services import Services
from weir.dataflow import (
    delta,
    delta_source,
    files,
    files_source,
    iceberg,
    iceberg_source,
    jdbc_source,
    postgres,
    postgres_source,
    sink,
    source,
    target,
)
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir.telemetry.lineage import Dataset, DatasetKind
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine

provided = pytest.mark.skipif(find_spec("openlineage") is None, reason="OpenLineage's provider is not installed")

CONNECTIONS = {
    "pg": Connection(id="pg", kind="postgres", host="db.example.org", database="reports", password="hunter2"),
    "lake": Connection(id="lake", kind="iceberg", host="https://catalog.example.org/api"),
}


def test_without_the_provider_nothing_of_openlineage_is_imported():
    modules = "weir_airflow, weir_airflow.tasks.operators, weir_airflow.tasks.running, weir_airflow.recovery.failing"
    code = f"import sys, {modules}; assert not [name for name in sys.modules if 'lineage' in name and 'weir' in name]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def names(airflow_home):
    """The names of what a stage reads or publishes."""
    from weir_airflow.tasks.lineage import names_of

    def of(stage, kind):
        return names_of(Dataset(dataflow="trips", stage=stage, kind=kind), "s3://bucket/weir", CONNECTIONS.__getitem__)

    return of


@provided
def test_results_and_versions_have_a_place_in_the_store_whatever_the_epoch(names):
    plain = source("numbers", "m:numbers")
    assert names(plain, DatasetKind.RESULT) == [("s3://bucket", "weir/trips/numbers")]
    assert names(plain, DatasetKind.SOURCE) == []  # a function may read anything
    assert names(sink("numbers", "report"), DatasetKind.PUBLISHED) == [("s3://bucket", "weir/_sinks/trips/report")]


@provided
@pytest.mark.parametrize(
    ("to", "name"),
    [
        (files("s3://lake/delays"), ("s3://lake", "delays")),
        (delta("/data/tables/delays"), ("file", "/data/tables/delays")),
        (postgres("pg", "daily.delays"), ("postgres://db.example.org:5432", "reports.daily.delays")),
        (postgres("pg", "delays"), ("postgres://db.example.org:5432", "reports.public.delays")),
        (iceberg("lake.days.delays"), ("https://catalog.example.org/api", "days.delays")),
    ],
    ids=str,
)
def test_a_target_has_the_name_of_its_table_or_folder(names, to, name):
    assert names(sink("numbers", "report", to=to), DatasetKind.PUBLISHED)[1:] == [name]


@provided
def test_a_target_of_ones_own_has_no_name(names):
    own = sink("numbers", "report", to=target("m:Own"))
    assert len(names(own, DatasetKind.PUBLISHED)) == 1


@provided
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (files_source("a", "/data/flights/{start:%Y-%m-%d}/*.parquet"), [("file", "/data/flights")]),
        (files_source("a", "s3://raw/flights-{start:%Y}.csv", format="csv", schema="a INT"), [("s3://raw", "/")]),
        (files_source("a", "/data/all.parquet"), [("file", "/data/all.parquet")]),
        (delta_source("a", "s3://lake/t"), [("s3://lake", "t")]),
        (iceberg_source("a", "lake.days.t"), [("https://catalog.example.org/api", "days.t")]),
        (
            postgres_source("a", "pg", "SELECT * FROM daily.t JOIN u USING (k) WHERE at >= {start}"),
            [("postgres://db.example.org:5432", f"reports.{table}") for table in ("daily.t", "public.u")],
        ),
    ],
    ids=["files", "files of a bucket", "one file", "delta", "iceberg", "postgres"],
)
def test_a_ready_made_source_has_the_name_of_what_it_reads(names, stage, expected):
    assert sorted(names(stage, DatasetKind.SOURCE)) == expected


@provided
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (source("a", "m:a", asset="file:///data/calls"), [("file", "/data/calls")]),
        (jdbc_source("a", "db", "SELECT 1", asset="file:///data/calls"), [("file", "/data/calls")]),
        (delta_source("a", "s3://lake/t", asset="file:///data/calls"), [("s3://lake", "t")]),
        (source("a", "m:a", asset="calls"), []),
        (source("a", "m:a", asset="airflow://calls"), []),
    ],
    ids=["a function", "jdbc", "a table of its own", "a name alone", "a URI that Airflow refuses"],
)
def test_a_source_without_a_place_has_the_name_of_its_asset(names, stage, expected):
    assert names(stage, DatasetKind.SOURCE) == expected


@provided
def test_a_connection_that_is_missing_leaves_out_its_name_only(names):
    to = [files("/data/delays"), postgres("gone", "delays")]

    def look_up(conn_id):
        from weir.errors import Misconfigured

        raise Misconfigured(f"{conn_id} is not defined")

    from weir_airflow.tasks.lineage import names_of

    stage = sink("numbers", "report", to=to)
    found = names_of(Dataset(dataflow="trips", stage=stage, kind=DatasetKind.PUBLISHED), "/weir", look_up)
    assert found == [("file", "/weir/_sinks/trips/report"), ("file", "/data/delays")]


@pytest.fixture(scope="module")
def events(airflow_home, tmp_path_factory):
    """What the provider extracts of a try of a task, after a run of the small dataflow in which a result was lost."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from airflow.utils.state import TaskInstanceState

    from weir_airflow import dataflow_dag

    folder = tmp_path_factory.mktemp("world")
    url, stored = f"sqlite:///{folder}/ledger.db", folder / "store"
    stored.mkdir()
    ledger, store, flow = Ledger.open(url), Store.open(str(stored)), ladder()
    airflow = FakeAirflow(Services(ledger=ledger, store=store, now=lambda: airflow.time), FakeEngine(store, {}), flow)
    run = airflow.dag_run(1)
    airflow.run_until_quiet()
    for attempt in stored.glob("ladder/*/joined/*/1/*"):
        for file in attempt.iterdir():
            file.unlink()
    airflow.clear_by_hand(run, "totals", 0)
    airflow.run_until_quiet()
    ledger.close()
    dag = dataflow_dag(flow, dag_id=airflow.dag_id, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))

    def of(task_id, state, index=-1, try_number=1):
        ti = SimpleNamespace(dag_id=airflow.dag_id, run_id=run, task_id=task_id, map_index=index, try_number=try_number)
        task = dag.task_dict[task_id]
        found = task.unmap({"subtask": index}) if index >= 0 else task
        return ExtractorManager().extract_metadata(SimpleNamespace(run_id=run), found, TaskInstanceState(state), ti)

    of.store = stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_LEDGER", url)
        patch.setenv("WEIR_STORE", str(stored))
        yield of


def place(dataset):
    return dataset.namespace, dataset.name


@provided
def test_a_task_that_succeeds_has_inputs_outputs_and_its_attempt(events):
    found = events("totals", "success", 1)
    assert [place(each) for each in found.inputs] == [("file", f"{events.store}/ladder/joined")]
    (written,) = found.outputs
    assert place(written) == ("file", f"{events.store}/ladder/totals")
    assert written.outputFacets["outputStatistics"].rowCount >= 0
    assert written.outputFacets["outputStatistics"].size > 0
    assert [each.name for each in written.facets["schema"].fields]
    assert written.facets["version"].datasetVersion == "20130101T000000Z"
    facet = found.run_facets["weir_attempt"]
    assert (facet.state, facet.origin, facet.parentFailure) == ("committed", "first", None)
    assert facet.digests


@provided
def test_a_failed_try_claims_no_outputs_and_the_repair_names_its_failure(events):
    failed = events("totals", "failed", 0, try_number=2)
    assert failed.outputs == []
    assert [place(each) for each in failed.inputs] == [("file", f"{events.store}/ladder/joined")]
    repair = events("joined", "success", 1, try_number=2)
    assert repair.run_facets["weir_attempt"].parentFailure["attempt"] == failed.run_facets["weir_attempt"].attempt
    assert repair.outputs


@provided
def test_a_task_that_starts_says_what_it_is_to_read(events):
    started = events("totals", "running", 0)
    assert [place(each) for each in started.inputs] == [("file", f"{events.store}/ladder/joined")]
    assert (started.outputs, started.run_facets) == ([], {})


@provided
def test_the_closing_task_publishes(events):
    closed = events("weir_close", "success")
    assert [place(each) for each in closed.outputs] == [("file", f"{events.store}/_sinks/ladder/delays")]
    assert closed.outputs[0].facets["version"].datasetVersion == "20130101T000000Z v1"
    assert events("weir_close", "failed").outputs == []


@provided
def test_a_nested_column_has_its_type_in_words_and_its_fields(airflow_home):
    from weir_airflow.tasks.lineage import _facets

    inner = {"type": "struct", "fields": [{"name": "x", "type": "long"}]}
    many = {"type": "map", "keyType": "string", "valueType": {"type": "array", "elementType": inner}}
    schema = {"fields": [{"name": "p", "type": inner}, {"name": "q", "type": many}]}
    stage = source("numbers", "m:numbers")
    known = Dataset(dataflow="t", stage=stage, kind=DatasetKind.RESULT, spark_schema=json.dumps(schema))
    first, second = _facets(known)["schema"].fields
    assert (first.type, [each.name for each in first.fields]) == ("struct<x:long>", ["x"])
    assert (second.type, second.fields) == ("map<string,array<struct<x:long>>>", [])

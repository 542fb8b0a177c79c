"""Lineage: what attempts have read and written, as versions of data sets; what has not committed wrote nothing."""

from __future__ import annotations

import json

import pytest
from tests.weir.datasets.neighbours import Neighbours, trips

from weir.coordination.values import TaskKey
from weir.dataflow import Dataflow, Stage, blocking, dataset, last, sink
from weir.telemetry.lineage import DatasetKind, declared_lineage, lineage_of
from weir.topology.regions import Topology

EPOCH = "20130101T000000Z"


@pytest.fixture
def told(done):
    """What a try of a task of the run has read and written."""
    run = "scheduled__2013-01-01"

    def of(task, index=-1, try_number=1):
        return lineage_of(done.services, "ladder", TaskKey(done.airflow.dag_id, run, task, index), try_number)

    done.run = run
    return of


def versions(datasets):
    return {(each.stage.name, each.kind, each.version) for each in datasets}


def test_a_task_reads_results_of_stages_and_writes_those_of_its_own(told):
    found = told("totals", 1)
    assert versions(found.inputs) == {("joined", DatasetKind.RESULT, EPOCH)}
    assert versions(found.outputs) == {("totals", DatasetKind.RESULT, EPOCH)}
    (read,), (written,) = found.inputs, found.outputs
    assert read.rows > 0
    assert written.bytes > 0
    assert json.loads(written.spark_schema)["type"] == "struct"
    assert (found.state, found.origin, found.failure, found.parent) == ("committed", "first", None, None)
    assert found.digests
    assert all(partition.startswith("totals[1] ") for partition in found.digests)


def test_the_closing_task_writes_the_published_versions_of_the_sinks(told):
    found = told("weir_close")
    assert versions(found.inputs) == {("delays", DatasetKind.RESULT, EPOCH)}
    assert versions(found.outputs) == {("delays", DatasetKind.PUBLISHED, f"{EPOCH} v1")}
    assert found.outputs[0].rows == found.inputs[0].rows
    assert found.outputs[0].spark_schema


def test_a_failed_try_has_written_nothing_and_its_repair_names_it(done, told):
    done.lose("joined", 1)
    done.airflow.clear_by_hand(done.run, "totals", 0)
    done.airflow.run_until_quiet()
    failed, repair, again = told("totals", 0, 2), told("joined", 1, 2), told("totals", 0, 3)
    assert (failed.outputs, failed.digests, failed.failure) == ((), {}, "backtrack")
    assert {each.stage.name for each in failed.inputs} == {"joined"}
    assert repair.origin == "cleared by weir"
    assert repair.parent.attempt == failed.attempt
    assert repair.parent.cause
    assert repair.parent.failover is not None
    assert (again.state, again.origin) == ("committed", "retry")
    assert (again.parent.attempt, again.parent.failover) == (failed.attempt, None)
    assert again.outputs


def test_what_failed_before_it_was_registered_has_no_lineage_but_what_is_declared(done, told):
    assert told("totals", 0, 7) is None
    declared = declared_lineage(Topology(done.airflow.flow), "joined")
    assert versions(declared.inputs) == {("clean", DatasetKind.RESULT, ""), ("weather", DatasetKind.RESULT, "")}
    assert declared.outputs == ()
    read = declared_lineage(Topology(done.airflow.flow), "raw-clean").inputs
    assert versions(read) == {("raw", DatasetKind.SOURCE, "")}


@pytest.fixture
def town(tmp_path):
    """Trips, whose zones a dataflow reads into a stage of that name: the last two days."""
    town = Neighbours(tmp_path)
    town.add(trips())
    read = Stage("zones", "pipelines.report:zones", {"x": dataset("trips.zones", epoch=last(2))})
    town.add(
        Dataflow("report", [read, Stage("made", "pipelines.report:made", [blocking("zones")]), sink("made", "out")])
    )
    town.run("trips", 1, 2)
    town.run("report", 1, 2)
    return town


def of_task(town, dataflow, task, index=-1, day=2):
    key = TaskKey(dataflow, f"scheduled__2013-01-{day:02d}", task, index)
    return lineage_of(town.services, dataflow, key, 1)


def test_a_data_set_that_is_read_is_what_its_own_dataflow_has_published(town):
    (published,) = of_task(town, "trips", "weir_close").outputs
    (read,) = of_task(town, "report", "zones", day=1).inputs
    assert (read.kind, read.place, read.version) == (DatasetKind.PUBLISHED, ("trips", "zones"), f"{EPOCH} v1")
    assert (published.kind, published.place) == (read.kind, read.place)
    assert (read.rows, read.spark_schema) == (published.rows, published.spark_schema)


def test_of_several_epochs_the_newest_is_named_first(town):
    (read,) = of_task(town, "report", "zones").inputs
    assert read.version == f"20130102T000000Z v1, {EPOCH} v1"
    assert read.rows == 4


def test_a_stage_of_the_same_name_is_another_data_set(town):
    assert [each.place for each in of_task(town, "report", "zones").outputs] == [("report", "zones")]
    assert [each.place for each in of_task(town, "report", "made-out").inputs] == [("report", "zones")]


def test_a_data_set_is_declared_before_anything_was_read(town):
    declared = declared_lineage(Topology(town.airflows["report"].flow), "zones").inputs
    assert [(each.place, each.kind, each.version) for each in declared] == [
        (("trips", "zones"), DatasetKind.PUBLISHED, "")
    ]

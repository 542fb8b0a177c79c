"""The fire drill on real Spark: damage that no comparison of bytes can find is found in the rows."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode
from tests.weir_spark.state.test_restored_state import OnSpark
from typer.testing import CliRunner

from weir.cli.main import app
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, list_state, sink, source
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import CheckOutcome
from weir.formats.codec import from_json, to_json
from weir.formats.savepoint import SAVEPOINT
from weir.integrity.expectation_checks import check_expectations
from weir.integrity.restore_test import run_restore_test
from weir.snapshots.savepoint import SavepointRequest, create
from weir.store.seal import seal
from weir.store.store import Store
from weir_spark.checks.integrity import check_all

pytestmark = pytest.mark.spark

STAGES = """
from pyspark.sql import functions as F

def flights(ctx):
    return ctx.spark.range(20).select(F.col("id").cast("string").alias("tail"), F.col("id").alias("n"))

def aircraft(ctx, flights, history, epochs):
    history.upsert(flights)
    epochs.update([*epochs.get(), ctx.epoch])
    return flights
"""
SUITE = {
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 0, "max_value": 99}}
    ]
}
GROUP = "_weir_key_group"
COUNTED = {"weir_digest_as_recorded", "weir_rows_as_recorded"}


def flow():
    history = keyed_state(
        "history",
        key="tail",
        schema="tail STRING, n BIGINT",
        grows=True,
        quality=expectations("small", when="restored"),
    )
    aircraft = Stage(
        "aircraft", "checked_stages:aircraft", [blocking("flights", by="tail")], state=(history, list_state("epochs"))
    )
    return Dataflow("flow", [source("flights", "checked_stages:flights"), aircraft, sink("aircraft", "known")])


@pytest.fixture(scope="module")
def world(server, tmp_path_factory):
    """A day of a dataflow with state, and a savepoint of it: services, and the folder of the savepoint."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "checked_stages.py").write_text(STAGES)
    (folder / "suites").mkdir()
    (folder / "suites" / "small.json").write_text(json.dumps(SUITE))
    store, ledger = Store.open(str(folder / "store")), new_ledger(folder / "ledger.db")
    services = Services(ledger=ledger, store=store, expectations=str(folder / "suites"))
    services.store_id()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        airflow = AirflowWithCode(services, OnSpark(server.url, store), flow())
        airflow.dag_run(1)
        airflow.run_until_quiet()
        assert set(airflow.states().values()) == {"success"}
        create(services, SavepointRequest("flow", to=str(folder), name="whole"))
        yield services, folder
    sys.modules.pop("checked_stages", None)
    ledger.close()


def altered(folder, to, change):
    """A savepoint of which a file of state has other rows, as if they had been checkpointed so: all bytes agree."""
    shutil.copytree(folder / "whole", to)
    store = Store.open(str(to))
    made = from_json(Checkpoint, store.read(SAVEPOINT))
    ((state,), (part,)) = made.states, made.states[0].partitions
    (file,) = part.files
    path = to / file.path
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    (sealed,) = seal(store, file.folder)
    files = (replace(file, file=sealed),)
    states = (replace(state, partitions=(replace(part, files=files),)),)
    (to / SAVEPOINT).write_bytes(to_json(replace(made, states=states)))
    return str(to)


def with_column(table, name, values):
    at = table.schema.get_field_index(name)
    return table.set_column(
        at, table.schema.field(at), pa.chunked_array([pa.array(values, table.schema.field(at).type)])
    )


def other_row(table):
    return with_column(table, "n", [1000, *table["n"].to_pylist()[1:]])


def row_less(table):
    return table.slice(1)


def foreign_and_twice(table):
    """A row in another key group than that of its key, and another one a second time."""
    groups = table[GROUP].to_pylist()
    foreign = with_column(table, GROUP, [(groups[0] + 1) % 128, *groups[1:]])
    return pa.concat_tables([foreign, table.slice(1, 1)])


def as_text(table):
    at = table.schema.get_field_index("n")
    return table.set_column(at, "n", pc.cast(table["n"], pa.string()))


def drilled(world, spark, which):
    services, _ = world
    return run_restore_test(services, "flow", which, lambda job: check_all(job, spark, lambda _line: None))


def failed(found):
    return {
        each.type
        for check in found.checks
        for each in check.results
        if check.outcome is CheckOutcome.FAILED and not each.success
    }


def test_intact_results_pass_all_checks(world, spark):
    found = drilled(world, spark, None)
    assert (found.is_right, failed(found)) == (True, set())
    history = [each for each in found.checks if each.stage == "history"]
    assert [(each.suite, each.rows) for each in history] == [("weir", 20), ("weir", 20), ("small", 20)]
    assert {each.stage for each in found.checks} == {"history", "epochs"}
    assert not list((world[1] / "store").glob("_drills/*"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (other_row, {"weir_digest_as_recorded", "expect_column_values_to_be_between"}),
        (foreign_and_twice, {"weir_keys_in_key_groups", "weir_keys_unique", *COUNTED}),
        (as_text, {"weir_readable"}),  # its footer has the columns that Spark once wrote
    ],
)
def test_rows_that_are_not_as_they_were_are_found_although_all_bytes_agree(world, spark, tmp_path, change, expected):
    assert failed(drilled(world, spark, altered(world[1], tmp_path / "altered", change))) == expected


def test_committed_results_are_checked_on_request(world, spark):
    services, _ = world
    found = check_expectations(services, "flow", lambda job: check_all(job, spark, lambda _line: None))
    assert {(each.stage, each.suite, each.outcome) for each in found.checks} == {
        ("history", "weir", CheckOutcome.PASSED),
        ("history", "small", CheckOutcome.PASSED),
    }


def test_on_the_command_line_by_a_program_of_its_own(world, server, tmp_path, monkeypatch):
    services, folder = world
    monkeypatch.setenv("WEIR_STORE", str(folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
    monkeypatch.setenv("WEIR_EXPECTATIONS", str(folder / "suites"))
    spoiled = altered(folder, tmp_path / "altered", row_less)
    words = ["verify", "flow", "--expectations", "--savepoint", spoiled, "--remote", server.url, "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    (looked,) = json.loads(done.stdout)["looked_at"]
    assert (looked["is_right"], looked["is_recorded"]) == (False, True)
    wrong = {result["type"] for check in looked["checks"] for result in check["results"] if not result["success"]}
    assert wrong == {"weir_digest_as_recorded", "weir_rows_as_recorded", "weir_rows_never_fewer"}

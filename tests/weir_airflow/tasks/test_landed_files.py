"""A folder that files arrive in, read by daily epochs in Airflow's own `dag.test()`, with a real Spark."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from tests.weir_airflow.deployed import deployed

from weir.formats.paths import pointer_folder
from weir.formats.pointer import newest, pointer_from_json

pytestmark = pytest.mark.spark

FLOW = """
import os
from datetime import datetime, timedelta, UTC
from weir.dataflow import Dataflow, Stage, blocking, files_source, sink
from weir_airflow import dataflow_dag

LANDING = os.environ["WEIR_TEST_LANDING"]
landed = files_source("landed", f"{LANDING}/*.csv", format="csv", schema="id BIGINT", read="new", parallelism=2)
orders = Stage("orders", "landed_stages:orders", [blocking(landed)], parallelism=1)
flow = Dataflow("landed", [landed, orders, sink(orders, "landed_orders")], parameters={"landing": LANDING})
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC), retries=0)
"""

STAGES = """
from pathlib import Path

def orders(ctx, landed):
    if (Path(ctx.parameters["landing"]) / "break").exists():
        raise ValueError("broken on purpose")
    return landed
"""


@pytest.fixture
def day(tmp_path, airflow_home, server):
    """Run a day, whose DagRun is created again where it has had one; answers its state."""
    (tmp_path / "landing").mkdir()
    environ = {"WEIR_TEST_LANDING": str(tmp_path / "landing")}
    with deployed(airflow_home, tmp_path, server, "landed_stages", STAGES, FLOW, "landed", **environ):
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], bundle_name="dags-folder")
        yield lambda number: str(bag.dags["landed"].test(logical_date=datetime(2013, 1, number, tzinfo=UTC)).state)


def arrives(folder, name, *ids):
    (folder / "landing" / f"{name}.csv").write_text("".join(f"{each}\n" for each in ids))


def published(folder, number):
    """The ids in the newest version of a day, which a run at midnight has of the day before."""
    epoch = f"{datetime(2013, 1, number, tzinfo=UTC) - timedelta(days=1):%Y%m%dT%H%M%SZ}"
    versions = folder / "store" / pointer_folder("landed", "landed_orders", epoch)
    pointer = pointer_from_json((versions / newest(each.name for each in versions.iterdir())).read_bytes())
    files = [folder / "store" / each.folder / file for each in pointer.partitions for file in each.files]
    return sorted(row["id"] for file in files for row in pq.read_table(file).to_pylist())


def test_each_file_is_in_one_epoch_also_of_one_that_failed_and_one_that_is_computed_again(day, tmp_path):
    arrives(tmp_path, "b", 1, 2)
    assert day(1) == "success"
    arrives(tmp_path, "c", 3)
    (tmp_path / "landing" / "break").touch()
    assert day(2) == "failed"
    (tmp_path / "landing" / "break").unlink()
    arrives(tmp_path, "a", 4, 5)
    assert day(3) == "success"
    arrives(tmp_path, "d", 6)
    assert [day(2), day(1)] == ["success", "success"]
    assert [published(tmp_path, number) for number in (1, 2, 3)] == [[1, 2], [3], [4, 5]]

"""Closing tasks that are killed at every step, a hundred times a target: readers that are not ours see whole versions.

A step is a change of ledger or store, or a line of the target. Each third time the ledger is lost right there, and
rebuilt from the store.
"""

from __future__ import annotations

import io
import json
import random
import sys
from contextlib import closing

import psycopg2
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tests.servers.s3 import client_of, running_s3
from tests.weir.reading.parquet_world import ParquetEngine, ReaderWorld
from tests.weir.sinks.delta_sink import by_duckdb
from tests.weir.small_dataflow import ladder
from tests.weir.state.test_checkpoint_kills import DyingLedger, DyingStore, Fate

from weir.coordination.services import Services
from weir.dataflow import Dataflow, delta, files, iceberg, postgres, sink
from weir.rebuild.rebuild import rebuild
from weir.sinks import folders
from weir.sinks.targets import files as files_module
from weir.sinks.targets import files_on_s3 as s3_module
from weir.sinks.targets import postgres as postgres_module
from weir.store.catalogue import published
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.upkeep import TARGETS, settle_everywhere

EPOCH = "20130101T000000Z"
CLOSE = "weir_close"
KILLS = 100


class Files:
    """Files in a local folder, as Arrow reads them."""

    modules = (files_module, folders)

    def __init__(self, folder, _request, _monkeypatch):
        self.root = folder / "lake" / "delays"
        self.root.parent.mkdir()
        self.target = files(str(self.root), partition="day")

    def rows(self):
        folder = self.root / "day=2013-01-01"
        return ds.dataset(folder.resolve(), format="parquet").to_table().to_pylist() if folder.exists() else []


class FilesOnS3:
    """Files on S3, as plain requests read them."""

    modules = (s3_module, folders)

    def __init__(self, _folder, request, monkeypatch):
        server = request.getfixturevalue("s3_server")
        name = f"{abs(hash(request.node.nodeid))}"
        monkeypatch.setenv(
            "AIRFLOW_CONN_AWS_ID",
            json.dumps({"conn_type": "aws", "login": "a", "password": "b", "extra": {"endpoint_url": server.url}}),
        )
        self.client, self.key = client_of(server.url), f"{name}/day=2013-01-01/data.parquet"
        self.target = files(f"s3://lake/{name}", partition="day", conn_id="aws_id")

    def rows(self):
        if not self.client.list_objects_v2(Bucket="lake", Prefix=self.key).get("Contents"):
            return []
        return pq.read_table(io.BytesIO(self.client.get_object(Bucket="lake", Key=self.key)["Body"].read())).to_pylist()


class Postgres:
    """A table, as any client reads it."""

    modules = (postgres_module,)

    def __init__(self, _folder, request, monkeypatch):
        server = request.getfixturevalue("postgres")
        self.url = server.url(f"kills_{abs(hash(request.node.nodeid)) % 10**8}").replace("+psycopg2", "")
        monkeypatch.setenv("AIRFLOW_CONN_REPORTS", self.url)
        self.target = postgres("reports", "delays", create="if_missing")

    def rows(self):
        with closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute("select to_regclass('delays')")
            if cursor.fetchone()[0] is None:
                return []
            cursor.execute("select k, content, at from delays where _epoch = %s", (EPOCH,))
            return [dict(zip(("k", "content", "at"), row, strict=True)) for row in cursor.fetchall()]


class Delta:
    """A Delta Lake table, as DuckDB reads it."""

    def __init__(self, folder, _request, _monkeypatch):
        from weir.sinks.targets import delta as module

        self.modules, self.root = (module, folders), folder / "lake" / "delays"
        self.root.parent.mkdir()
        self.target = delta(str(self.root), create="if_missing")

    def rows(self):
        if not DeltaTable.is_deltatable(str(self.root)):
            return []
        table = by_duckdb(DeltaTable(str(self.root))).project('k, content, "at"').to_arrow_table()
        return table.to_pylist()


class Iceberg:
    """An Apache Iceberg table, as PyIceberg reads it, with all of its modules that a commit comes through."""

    def __init__(self, folder, _request, monkeypatch):
        from weir.sinks.targets import iceberg as module
        from weir.sinks.targets import iceberg_epoch

        self.modules = (module, iceberg_epoch, folders)
        extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))
        self.catalog = load_catalog("lake", **extra)
        self.catalog.create_namespace("db")
        self.target = iceberg("lake.db.delays", create="if_missing")

    def rows(self):
        if not self.catalog.table_exists("db.delays"):
            return []
        return self.catalog.load_table("db.delays").scan().to_arrow().to_pylist()


@pytest.fixture(scope="module")
def s3_server():
    with running_s3() as server:
        server.make_bucket("lake")
        yield server


def expected(world):
    """The rows of the published version, by its pointer; None where none is published."""
    pointer = published(world.store, "ladder", "delays", EPOCH)
    if pointer is None:
        return []
    paths = [f"{part.folder}/{name}" for part in pointer.partitions for name in part.files]
    return [row for path in paths for row in pq.read_table(io.BytesIO(world.store.read(path))).to_pylist()]


def in_order(rows):
    return sorted(({**row, "at": row["at"] and row["at"].timestamp()} for row in rows), key=lambda row: row["k"])


def killing(place, fate):
    """A trace that counts the lines of a target's modules, too, and kills at the same count."""
    names = {module.__file__ for module in place.modules}

    def trace(frame, event, _argument):
        if frame.f_code.co_filename not in names:
            return None
        if event == "line" and fate.left > 0:
            fate.step()
        return trace

    return trace


def doomed(world, fate):
    """The world as a process sees it that `fate` kills."""
    services = Services(
        ledger=DyingLedger(world.ledger, fate), store=DyingStore(world.store, fate), now=lambda: world.airflow.time
    )
    airflow = FakeAirflow(services, ParquetEngine(services.store, world.content), world.airflow.flow)
    for name in ("tasks", "time", "clear_numbers", "queued", "incarnations", "marks", "run_notes"):
        setattr(airflow, name, getattr(world.airflow, name))
    return airflow


@pytest.mark.soak
@pytest.mark.parametrize("ledger", ["sqlite", "postgresql"])
@pytest.mark.parametrize("kind", [Files, FilesOnS3, Postgres, Delta, Iceberg])
def test_a_hundred_killed_closing_tasks_leave_whole_versions_and_the_rows_of_a_run_without_faults(
    kind, ledger, tmp_path, request, monkeypatch
):
    draw = random.Random(f"{kind.__name__} {ledger}")
    empty = request.getfixturevalue("empty_postgres_ledger") if ledger == "postgresql" else None
    place = kind(tmp_path, request, monkeypatch)
    flow = Dataflow("ladder", [*ladder().stages[:-1], sink("report", "delays", to=place.target)])
    world = ReaderWorld(tmp_path / "world", flow, empty)
    run = world.run(1)
    assert in_order(place.rows()) == in_order(expected(world)) != []
    kills = rebuilt = lines = 0
    while kills < KILLS:
        before = in_order(place.rows())
        world.content["routes"] = f"content {lines}"
        world.airflow.clear_by_hand(run, "routes")
        world.airflow.clear_by_hand(run, CLOSE)
        while (task := world.airflow._ready()).key.task_id != CLOSE:
            world.airflow.step(task)
        lines += 1
        fate = Fate(draw.choice([draw.randint(1, 40), draw.randint(1, 400)]))
        dying = doomed(world, fate)
        usual = sys.gettrace()
        sys.settrace(killing(place, fate))
        try:
            dying.step(task)
        except Killed:
            pass
        finally:
            sys.settrace(usual)
        world.airflow.time = dying.time
        kills += fate.left <= 0
        after = in_order(expected(world))
        assert in_order(place.rows()) in (before, after), f"killed at {fate}"
        if kills % 3 == 0:
            world.lose_ledger()
            world.airflow.engine = ParquetEngine(world.store, world.content)
            rebuild(world.services, "ladder")
            settle_everywhere(world.services, TARGETS).require_whole()
            rebuilt += 1
        world.airflow.run_until_quiet()
        assert world.airflow.state_of(run) == "success"
        assert in_order(place.rows()) == in_order(expected(world)) != []
    assert rebuilt > KILLS / 4

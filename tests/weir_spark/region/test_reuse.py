"""On Spark: what a task takes is right to the row, and is taken only where all that made it is equal."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.ledger.database.tables import AttemptRow
from weir.store.catalogue import published
from weir_spark.session import packages

pytestmark = pytest.mark.spark

STAGES = {
    "planes": "def planes(ctx):\n    return ctx.spark.range(20).selectExpr('id AS plane', 'id % 3 AS maker')\n",
    "flights": (
        "def flights(ctx):\n"
        "    day = ctx.interval[0].day\n"
        "    return ctx.spark.range(60).selectExpr('id % 20 AS plane', f'id * {day} AS miles')\n"
    ),
    "makers": "def makers(ctx, planes):\n    return planes.groupBy('maker').count()\n",
    "known": "def known(ctx, makers):\n    return makers.where('count > 6')\n",
    "dated": "def dated(ctx, planes):\n    return planes.selectExpr('plane', f\"'{ctx.epoch}' AS epoch\")\n",
    "whole": (
        "import dataclasses\n\ndef whole(ctx, planes):\n"
        "    return planes.where(f'plane < {dataclasses.replace(ctx, subtask=5).subtask}')\n"
    ),
    "asks": "def asks(ctx, planes):\n    return planes.crossJoin(ctx.spark.range(3)).select('plane')\n",
    "today": (
        "import pyspark.sql.functions as F\n\ndef today(ctx, planes):\n    return planes.select(F.current_date())\n"
    ),
    "miles": (
        "def miles(ctx, flights, planes):\n"
        "    return flights.join(planes, 'plane').groupBy('maker').sum('miles').toDF('maker', 'miles')\n"
    ),
}
OF_PLANES = ("dated", "whole", "asks", "today")
SAME = {"makers", "known"}


def miles_of(day):
    """What plain Python computes of the flights of a day."""
    found = {}
    for each in range(60):
        maker = each % 20 % 3
        found[maker] = found.get(maker, 0) + each * day
    return found


@pytest.fixture
def airflow(server, store, tmp_path, pipeline):
    """A fake Airflow with one dataflow, whose stages have a module each, and real Spark."""
    folder = tmp_path / "modules"
    names = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in STAGES}
    pipeline("")
    for name, text in STAGES.items():
        (folder / f"{names[name]}.py").write_text(text)
    at = {name: f"{module}:{name}" for name, module in names.items()}
    stages = [
        *(source(name, at[name]) for name in ("planes", "flights")),
        Stage("makers", at["makers"], [blocking("planes", by="maker")], parallelism=2),
        Stage("known", at["known"], [blocking("makers")]),
        *(Stage(name, at[name], [blocking("planes")]) for name in OF_PLANES),
        Stage("miles", at["miles"], [blocking("flights", by="plane"), blocking("planes", by="plane")], parallelism=2),
        *(sink(name, f"{name}_out") for name in ("known", "miles", *OF_PLANES)),
    ]
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: found.time)
    flow = Dataflow("shop", stages, reuse="equal", keep="30 days")
    found = AirflowWithCode(services, OnSpark(server.url, store), flow)
    found.files = {name: folder / f"{module}.py" for name, module in names.items()}
    yield found
    ledger.close()


def run(airflow, *days):
    for day in days:
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}, [
        each.failed_because for each in airflow.tasks.values() if each.failed_because
    ]


def taken(airflow, day):
    """The stages of a day of which all tasks have taken their results."""
    with airflow.services.ledger.transaction() as session:
        rows = list(session.scalars(select(AttemptRow).where(AttemptRow.run == f"shop@201301{day:02d}T000000Z")))
    computed = {row.region for row in rows if "taken" not in (row.metrics or {})}
    return {row.region.partition("-")[0] for row in rows if row.region not in computed}


def edit(airflow, stage, old, new):
    file = airflow.files[stage]
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def files_of(airflow, name, day):
    store, epoch = airflow.services.store, f"201301{day:02d}T000000Z"
    root = Path(store.url.removeprefix("file://"))
    parts = published(store, "shop", f"{name}_out", epoch).partitions
    return [file for part in parts for file in (root / part.folder).glob("*.parquet")]


def rows(airflow, name, day):
    files = files_of(airflow, name, day)
    return sorted((tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()), key=str)


def test_only_what_is_made_of_the_same_is_taken_and_all_rows_are_right(airflow, monkeypatch):
    run(airflow, 1, 2)
    edit(airflow, "makers", "def", "# a comment\ndef")
    run(airflow, 3)
    assert taken(airflow, 3) == SAME
    for day in (1, 2, 3):
        miles = rows(airflow, "miles", day)
        assert {of: sum(each for maker, each in miles if maker == of) for of, _ in miles} == miles_of(day)
        assert rows(airflow, "known", day) == [(0, 7), (1, 7)]
        assert {epoch for _, epoch in rows(airflow, "dated", day)} == {f"201301{day:02d}T000000Z"}
    edit(airflow, "known", "> 6", "> 0")
    run(airflow, 4)
    assert taken(airflow, 4) == {"makers"}
    assert rows(airflow, "known", 4) == [(0, 7), (1, 7), (2, 6)]
    monkeypatch.setattr("weir_spark.region.region.packages", lambda: "upgraded")
    run(airflow, 5)
    assert taken(airflow, 5) == set()
    edit(airflow, "planes", "id % 3", "id % 2")
    run(airflow, 6)
    assert taken(airflow, 6) == set()
    assert rows(airflow, "known", 6) == [(0, 10), (1, 10)]


def test_a_file_that_was_damaged_is_not_taken_and_nothing_of_it_is_left(airflow):
    run(airflow, 1, 2)
    *_, file = files_of(airflow, "known", 2)
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    run(airflow, 3)
    assert taken(airflow, 3) == {"makers"}
    there = files_of(airflow, "known", 3)
    manifest = json.loads((there[0].parent / "manifest.json").read_text())
    assert {each.name for each in there} == {each["name"] for each in manifest["files"]}
    assert manifest["session"]["python.packages"] == packages()
    assert rows(airflow, "known", 3) == [(0, 7), (1, 7)]

"""On Spark: what a task takes is right to the row, and is taken only where all that made it is equal."""

from __future__ import annotations

import importlib
import json
import os
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir.checking import write_suite
from tests.weir.command_line import typed, use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    expectations,
    files_source,
    keyed_state,
    list_state,
    pipelined,
    sink,
    source,
)
from weir.ledger.database.tables import AttemptRow, QualityCheckRow
from weir.store.catalogue import published
from weir_spark.session import packages, sql_settings

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
    "named": "def named(ctx, codes):\n    return codes.where('maker < 2')\n",
    "flown": (
        "import pyspark.sql.functions as F\n\ndef flown(ctx, flights, seen, planes_of):\n"
        "    new = flights.groupBy('plane').agg(F.sum('miles').alias('miles'))\n"
        "    old = seen.read(new).withColumnRenamed('miles', 'before')\n"
        "    found = new.join(old, 'plane', 'left')\n"
        "    found = found.withColumn('miles', F.col('miles') + F.coalesce('before', F.lit(0)))\n"
        "    seen.upsert(found.select('plane', 'miles'))\n"
        "    planes_of.add(ctx.epoch)\n"
        "    return found.select('plane', 'miles')\n"
    ),
    "longest": "def longest(ctx, flown):\n    return flown.where('miles >= 0')\n",
    "miles": (
        "def miles(ctx, flights, planes):\n"
        "    return flights.join(planes, 'plane').groupBy('maker').sum('miles').toDF('maker', 'miles')\n"
    ),
}
OF_PLANES = ("dated", "whole", "asks", "today")
SAME = {"makers", "known", "codes", "vouched"}
"""The first stages of the regions that take what the day before has made."""


def miles_of(day):
    """What plain Python computes of the flights of a day."""
    found = {}
    for each in range(60):
        maker = each % 20 % 3
        found[maker] = found.get(maker, 0) + each * day
    return found


class Modules:
    """The modules of the stages, each of which has one of its own, and the file that one of them reads."""

    def __init__(self, folder, file):
        self.file = file
        names = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in STAGES}
        self.files = {name: folder / f"{module}.py" for name, module in names.items()}
        self.at = {name: f"{module}:{name}" for name, module in names.items()}
        for name, text in STAGES.items():
            self.files[name].write_text(text)

    def of_file(self):
        """A ready-made source and a stage that is checked, in one task."""
        yield files_source("codes", str(self.file), format="csv", schema="maker INT, name STRING")
        yield Stage("named", self.at["named"], [pipelined("codes")], quality=expectations("named"))
        yield sink("named", "named_out")

    def of_state(self):
        """A state that each day adds to, and checks, and what is made of its rows."""
        yield source("flights", self.at["flights"])
        states = [
            keyed_state(
                "seen", key="plane", schema="plane BIGINT, miles BIGINT", grows=True, quality=expectations("seen_rows")
            ),
            list_state("planes_of"),
        ]
        yield Stage("flown", self.at["flown"], [blocking("flights", by="plane")], parallelism=2, state=states)
        yield Stage("longest", self.at["longest"], [blocking("flown")])
        yield sink("longest", "longest_out")

    def of_shop(self):
        """Sources and stages of one's own."""
        at = self.at
        yield from (source(name, at[name]) for name in ("planes", "flights"))
        yield Stage("makers", at["makers"], [blocking("planes", by="maker")], parallelism=2)
        yield Stage("known", at["known"], [blocking("makers")])
        yield from (Stage(name, at[name], [blocking("planes")]) for name in OF_PLANES)
        yield Stage("vouched", at["asks"], [blocking("planes")], reuse="equal")
        yield Stage("vouched_dated", at["dated"], [blocking("planes")], reuse="equal")
        of_both = [blocking("flights", by="plane"), blocking("planes", by="plane")]
        yield Stage("miles", at["miles"], of_both, parallelism=2)
        yield from (sink(name, f"{name}_out") for name in ("known", "miles", "vouched", "vouched_dated", *OF_PLANES))


@pytest.fixture
def modules(tmp_path, pipeline):
    (tmp_path / "codes.csv").write_text("0,Boeing\n1,Airbus\n2,Cessna\n")
    write_suite(tmp_path / "suites", "named", ("expect_table_row_count_to_equal", {"kwargs": {"value": 2}}))
    pipeline("")
    return Modules(tmp_path / "modules", tmp_path / "codes.csv")


@pytest.fixture
def deployed(server, store, tmp_path, modules):
    """Answers a fake Airflow with a dataflow of the stages that are given, and real Spark."""
    ledger = new_ledger(tmp_path / "ledger.db")

    def deploy(*stages):
        services = Services(ledger=ledger, store=store, now=lambda: found.time, expectations=str(tmp_path / "suites"))
        flow = Dataflow("shop", stages, reuse="equal", keep="30 days", retained_checkpoints=9)
        found = AirflowWithCode(services, OnSpark(server.url, store), flow)
        found.files = modules.files
        return found

    yield deploy
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


def test_only_what_is_made_of_the_same_is_taken_and_all_rows_are_right(deployed, modules, monkeypatch):
    airflow = deployed(*modules.of_file(), *modules.of_shop())
    run(airflow, 1, 2)
    edit(airflow, "makers", "def", "# a comment\ndef")
    run(airflow, 3)
    assert taken(airflow, 3) == SAME
    for day in (1, 2, 3):
        miles = rows(airflow, "miles", day)
        assert {of: sum(each for maker, each in miles if maker == of) for of, _ in miles} == miles_of(day)
        assert rows(airflow, "known", day) == [(0, 7), (1, 7)]
        for dated in ("dated", "vouched_dated"):
            assert {epoch for _, epoch in rows(airflow, dated, day)} == {f"201301{day:02d}T000000Z"}
    edit(airflow, "known", "> 6", "> 0")
    run(airflow, 4)
    assert taken(airflow, 4) == SAME - {"known"}
    assert rows(airflow, "known", 4) == [(0, 7), (1, 7), (2, 6)]
    monkeypatch.setattr("weir_spark.region.region.packages", lambda archived: "upgraded")
    run(airflow, 5)
    assert taken(airflow, 5) == set()
    edit(airflow, "planes", "id % 3", "id % 2")
    run(airflow, 6)
    assert taken(airflow, 6) == {"codes"}
    assert rows(airflow, "known", 6) == [(0, 10), (1, 10)]


def flown_by(day):
    """The sums of all days up to one, by plane, in plain Python."""
    return [
        (plane, sum(each * of for of in range(1, day + 1) for each in range(60) if each % 20 == plane))
        for plane in range(20)
    ]


def cleared(airflow, monkeypatch, folder, *words):
    """Clear runs as `weir clear --reuse` does."""
    use(monkeypatch, folder)
    typed("clear", "shop", *words, "--reuse", "--apply")
    airflow.deliver_clears()
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}


def test_a_state_is_taken_in_its_own_epoch_and_goes_on_to_the_row(deployed, modules, tmp_path, monkeypatch):
    write_suite(
        tmp_path / "suites",
        "seen_rows",
        ("expect_table_row_count_to_be_between", {"kwargs": {"min_value": 1, "max_value": 19}}),
    )
    airflow = deployed(*modules.of_state())
    run(airflow, 1, 2, 3)
    assert taken(airflow, 3) == set()
    edit(airflow, "longest", ">= 0", "> 100")
    cleared(airflow, monkeypatch, tmp_path, "flown", "longest", "--from", "2013-01-02", "--to", "2013-01-03")
    for day in (2, 3):
        assert newest_taken(airflow, day) == {"flown"}
        assert rows(airflow, "longest", day) == [row for row in sorted(flown_by(day), key=str) if row[1] > 100]
    edit(airflow, "flights", "id * {day}", "id * {day} + 1")
    run(airflow, 4)
    assert rows(airflow, "longest", 4) == sorted(((plane, miles + 3) for plane, miles in flown_by(4)), key=str)


def newest_taken(airflow, day):
    """The stages of a day whose newest tries have all taken their results."""
    with airflow.services.ledger.transaction() as session:
        found = (
            select(AttemptRow).where(AttemptRow.run == f"shop@201301{day:02d}T000000Z").order_by(AttemptRow.try_number)
        )
        newest = {(row.region, row.subtask): "taken" in (row.metrics or {}) for row in session.scalars(found)}
    return {
        region.partition("-")[0] for region, _ in newest if all(is_ for (of, _), is_ in newest.items() if of == region)
    }


def test_a_file_that_was_damaged_is_not_taken_and_nothing_of_it_is_left(deployed, modules):
    airflow = deployed(*modules.of_shop())
    run(airflow, 1, 2)
    *_, file = files_of(airflow, "known", 2)
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    run(airflow, 3)
    assert taken(airflow, 3) == SAME - {"codes", "known"}
    there = files_of(airflow, "known", 3)
    manifest = json.loads((there[0].parent / "manifest.json").read_text())
    assert {each.name for each in there} == {each["name"] for each in manifest["files"]}
    assert manifest["session"]["python.packages"] == packages()
    assert rows(airflow, "known", 3) == [(0, 7), (1, 7)]


def test_a_file_that_was_rewritten_with_its_name_size_and_time_gives_new_rows(deployed, modules):
    airflow = deployed(*modules.of_file())
    run(airflow, 1, 2)
    file = modules.file
    before = file.stat()
    file.write_text(file.read_text().replace("Boeing", "Boning"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    run(airflow, 3)
    assert taken(airflow, 3) == set()
    assert rows(airflow, "named", 3) == [(0, "Boning"), (1, "Airbus")]
    run(airflow, 4)
    assert taken(airflow, 4) == {"codes"}
    assert rows(airflow, "named", 4) == [(0, "Boning"), (1, "Airbus")]


def test_rows_that_are_taken_are_checked_as_they_lie_by_a_suite_that_is_newer(deployed, modules, tmp_path):
    airflow = deployed(*modules.of_file())
    run(airflow, 1, 2)
    write_suite(tmp_path / "suites", "named", ("expect_table_row_count_to_equal", {"kwargs": {"value": 3}}))
    airflow.dag_run(3)
    airflow.run_until_quiet()
    failed = {key.task_id for key, task in airflow.tasks.items() if task.state == "failed"}
    assert {each.partition("-")[0] for each in failed} == {"codes"}
    with airflow.services.ledger.transaction() as session:
        (row,) = session.scalars(select(QualityCheckRow).where(QualityCheckRow.run.endswith("03T000000Z")))
        assert [each["observed"] for each in row.results] == [2]


FEES = "from pyspark.sql import functions as F\n\n\ndef fee(rows):\n    return {fee}\n"


@pytest.fixture
def write_fees(tmp_path, monkeypatch):
    """Write a module into a folder of the path that no archive has."""
    name = f"fees_{uuid.uuid4().hex[:12]}"
    (tmp_path / "plugins").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "plugins"))

    def write(fee):
        (tmp_path / "plugins" / f"{name}.py").write_text(FEES.format(fee=fee))
        importlib.invalidate_caches()
        sys.modules.pop(name, None)  # each process of a task imports it anew
        return name

    yield write
    sys.modules.pop(name, None)


def test_a_helper_in_another_folder_of_the_path_counts_as_one_of_the_pipeline(deployed, modules, write_fees):
    name = write_fees("F.lit(1)")
    text = f"import {name}\n\ndef named(ctx, codes):\n    return codes.where('maker < 2').select({name}.fee(codes))\n"
    modules.files["named"].write_text(text)
    airflow = deployed(*modules.of_file())
    run(airflow, 1, 2)
    assert taken(airflow, 2) == {"codes"}
    write_fees("F.lit(1000)")
    run(airflow, 3)
    assert taken(airflow, 3) == set()
    assert rows(airflow, "named", 3) == [(1000,), (1000,)]
    write_fees("F.lit(1000)  # a comment")
    run(airflow, 4)
    assert taken(airflow, 4) == {"codes"}
    write_fees("F.date_diff(F.current_date(), F.current_date())")
    run(airflow, 5, 6)
    assert taken(airflow, 6) == set()


def test_another_setting_of_the_server_is_another_session(spark):
    before = sql_settings(spark)
    assert sql_settings(spark) == before
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    try:
        assert sql_settings(spark) != before
    finally:
        spark.conf.unset("spark.sql.mapKeyDedupPolicy")
    assert sql_settings(spark) == before

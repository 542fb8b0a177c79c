"""The pipeline of the guide to event time, as it stands there: late rows, and a day that is corrected."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger
from tests.weir.command_line import typed, use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.ledger.database.tables import AttemptRow
from weir.store.catalogue import published

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[3] / "docs" / "event-time.md"

DAYS = {
    1: ["a,2013-01-01 10:20:00,x,5", "a,2013-01-01 10:40:00,x,7", "b,2013-01-01 23:30:00,y,1"],
    2: ["a,2013-01-01 23:50:00,x,2", "b,2013-01-02 20:00:00,x,4", "b,2013-01-02 20:30:00,y,4"],
    3: [
        "a,2013-01-01 10:59:00,y,9",
        "a,2013-01-02 10:15:00,x,3",
        "b,2013-01-03 23:00:00,x,8",
        "b,2013-01-03 22:10:00,y,1",
    ],
    4: ["a,2013-01-04 05:00:00,x,6", "b,2013-01-04 05:00:00,y,6"],
}
FIRED = {
    1: [],
    2: [
        ("a", "01 10:00", 2, 12.0, "on_time"),
        ("a", "01 23:00", 1, 2.0, "on_time"),
        ("b", "01 23:00", 1, 1.0, "on_time"),
    ],
    3: [("b", "02 20:00", 2, 8.0, "on_time"), ("a", "02 10:00", 1, 3.0, "late")],
    4: [("b", "03 22:00", 1, 1.0, "on_time"), ("b", "03 23:00", 1, 8.0, "on_time")],
}


@pytest.fixture
def airflow(server, store, tmp_path, pipeline):
    flow, functions = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)[:2]
    flow = flow.replace("/landing", f"{tmp_path}/landing").replace("pipelines.rides", pipeline(functions))
    declared = importlib.import_module(pipeline(flow))
    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: found.time)
    found = AirflowWithCode(services, OnSpark(server.url, store), declared.flow)
    for day, rows in DAYS.items():
        land(tmp_path, day, rows)
    yield found
    ledger.close()


def land(folder, day, rows):
    file = folder / "landing" / "rides" / f"2013-01-{day:02d}" / "rides.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(rows) + "\n")


def published_rows(airflow, sink, day):
    store = airflow.services.store
    pointer = published(store, "rides", sink, f"201301{day:02d}T000000Z")
    root = Path(store.url.removeprefix("file://"))
    files = [file for part in pointer.partitions for file in (root / part.folder).glob("*.parquet")]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def fired(airflow, day):
    rows = published_rows(airflow, "by_hour", day)
    return {
        (row["zone"], f"{row['window']['start']:%d %H:%M}", row["rides"], row["fare"], row["firing"]) for row in rows
    }


def tries(airflow):
    with airflow.services.ledger.transaction() as session:
        rows = list(session.scalars(select(AttemptRow)))
    newest = {}
    for row in rows:
        place = (int(row.run[12:14]), row.region)
        newest[place] = max(row.try_number, newest.get(place, 0))
    return newest


def test_each_window_fires_and_a_corrected_day_corrects_those_that_it_touches(airflow, tmp_path, monkeypatch):
    for day in DAYS:
        airflow.dag_run(day)
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}, [each.failed_because for each in airflow.tasks.values()]
    assert {day: fired(airflow, day) for day in DAYS} == {day: set(rows) for day, rows in FIRED.items()}
    assert [len(published_rows(airflow, "too_late", day)) for day in DAYS] == [0, 0, 1, 0]
    land(tmp_path, 1, [*DAYS[1], "b,2013-01-01 23:35:00,y,1"])
    use(monkeypatch, tmp_path)
    typed("run", "adopt", "rides@20130101T000000Z")
    airflow.clear_run_by_hand("scheduled__2013-01-01")
    for _ in range(8):
        airflow.deliver_clears()
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    corrected = {**FIRED, 2: [*FIRED[2][:2], ("b", "01 23:00", 2, 2.0, "on_time")]}
    assert {day: fired(airflow, day) for day in DAYS} == {day: set(rows) for day, rows in corrected.items()}
    ran = {place for place, number in tries(airflow).items() if number > 1}
    assert {day for day, region in ran if region.startswith("hours")} == {1, 2, 3}
    assert {day for day, region in ran if region == "weir_close"} >= {1, 2}

"""How much earlier rows are shown by `delivery="at_least_once"`, and what that costs.

    pytest tests/benchmarks/test_early_results.py --benchmark-only -s

Days of `dags/flight_delays.py` on Spark, one task at a time, without Airflow's own time. The delays by carrier are
shown in files as soon as they have committed, and are a version when the run is closed. The same days without early
results are computed in turn.
"""

from __future__ import annotations

import json
import runpy
import statistics
import time
from pathlib import Path

import pytest
from tests.builders.ledgers import new_ledger
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

from weir.coordination.services import Services
from weir.dataflow import Dataflow, files, sink
from weir.sinks.protocol import PROVISIONAL
from weir.store.store import Store

pytestmark = pytest.mark.spark

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_delays.py"
DAYS = (1, 2, 3)


def measured(server, folder, delivery):
    """Seconds from the first task of each day until its rows are shown, and until they are a version."""
    folder.mkdir()
    store = Store.open(str(folder / "store"))
    store.initialise()
    services = Services(ledger=new_ledger(folder / "ledger.db"), store=store)
    stages = runpy.run_path(str(DAG_FILE))["flow"].stages
    early = sink("by_carrier", "carriers", to=files(str(folder / "lake")), delivery=delivery)
    airflow = AirflowWithCode(services, OnSpark(server.url, store), Dataflow("flight_delays", [*stages, early]))
    found = []
    for day in DAYS:
        airflow.dag_run(day)
        marker = folder / "lake" / f"epoch=2013-01-{day:02d}" / "_weir.json"
        began, shown = time.monotonic(), {}
        while (task := airflow._ready()) is not None:
            airflow.time = max(airflow.time, task.not_before or airflow.time)
            airflow.step(task)
            if marker.exists():
                is_early = json.loads(marker.read_text())["digest"].startswith(PROVISIONAL)
                shown.setdefault("early" if is_early else "version", time.monotonic() - began)
        assert set(airflow.states().values()) == {"success"}
        found.append(shown)
    services.ledger.close()
    return found


def test_how_much_earlier_rows_are_shown(benchmark, server, tmp_path):
    def both():
        found["exactly_once"] = measured(server, tmp_path / "once", "exactly_once")
        found["at_least_once"] = measured(server, tmp_path / "early", "at_least_once")

    found: dict[str, list[dict[str, float]]] = {}
    measured(server, tmp_path / "warm", "exactly_once")
    benchmark.pedantic(both, rounds=1)
    early = found["at_least_once"]
    assert all({*each} == {"early", "version"} for each in early)
    assert all({*each} == {"version"} for each in found["exactly_once"])
    print("\n\n| | shown early, s | a version, s |\n|---|---|---|")
    for delivery, days in found.items():
        shown = [each["early"] for each in days if "early" in each]
        version = statistics.median(each["version"] for each in days)
        print(f"| {delivery} | {statistics.median(shown) if shown else '':.4} | {version:.4} |")

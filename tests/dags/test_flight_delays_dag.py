"""The example's DAG file: light, whole, and naming only functions that exist."""

from __future__ import annotations

import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.flight_delays_reference import expected_report
from weir.dataflow import Dataflow
from weir.dataflow.stage import ExchangeKind
from weir.doctor.declarations import problems_of
from weir.settings import EXPECTATIONS
from weir.topology.regions import Topology

if TYPE_CHECKING:
    pass

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_delays.py"


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    loaded: Dataflow = runpy.run_path(str(DAG_FILE))["flow"]
    return loaded


def test_it_has_both_kinds_of_exchange_and_at_least_five_regions(flow: Dataflow) -> None:
    assert {exchange.kind for stage in flow.stages for exchange in stage.exchanges.values()} == {
        ExchangeKind.PIPELINED,
        ExchangeKind.BLOCKING,
    }
    names = [region.name for region in Topology(flow).regions]
    assert sorted(names) == [
        "by_carrier",
        "by_route",
        "flights-clean",
        "join",
        "planes",
        "report-delays",
        "weather",
    ]


def test_flights_have_a_subtask_for_each_airport(flow: Dataflow) -> None:
    assert flow.stage("flights").parallelism == flow.stage("clean").parallelism == 3


def test_every_function_and_suite_exists_and_takes_what_its_stage_gives_it(flow: Dataflow) -> None:
    assert problems_of(str(DAG_FILE), flow, EXPECTATIONS) == []


def test_no_column_of_the_report_has_the_name_of_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_FLIGHTS_LAKE", "/lake/delays")
    (lake,) = runpy.run_path(str(DAG_FILE))["flow"].stage("delays").targets
    assert lake.options["partition"] not in expected_report(date(2013, 1, 1))[0]


@pytest.mark.parametrize("last", ["2013-01-05", None])
def test_the_last_day_can_be_brought_forward(monkeypatch: pytest.MonkeyPatch, last: str | None) -> None:
    monkeypatch.delenv("WEIR_FLIGHTS_LAST_DAY", raising=False)
    if last:
        monkeypatch.setenv("WEIR_FLIGHTS_LAST_DAY", last)
    dag = runpy.run_path(str(DAG_FILE))["dag"]
    assert dag.end_date.date().isoformat() == (last or "2013-12-31")
    assert dag.catchup


def test_parsing_it_imports_neither_spark_nor_what_the_tasks_alone_need() -> None:
    heavy = {"pyspark", "great_expectations", "pandas", "pyarrow", "weir_spark", "weir.ledger", "pipelines"}
    program = f"import runpy, sys; runpy.run_path({str(DAG_FILE)!r}); print(*{heavy!r}.intersection(sys.modules))"
    parsed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert parsed.stdout.strip() == ""

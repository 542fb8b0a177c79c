"""The DAG file of the example that keeps state: light, whole, and naming only functions that exist."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weir.doctor.declarations import problems_of
from weir.settings import EXPECTATIONS
from weir.topology.regions import Topology

if TYPE_CHECKING:
    from weir.dataflow import Dataflow

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_history.py"


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    loaded: Dataflow = runpy.run_path(str(DAG_FILE))["flow"]
    return loaded


def test_each_state_is_in_the_region_of_the_stage_that_keeps_it(flow: Dataflow) -> None:
    regions = {region.name: region.stages for region in Topology(flow).regions}
    assert set(regions) == {
        "flights-clean-departures",
        "aircraft-seen",
        "route_days",
        "rolling-rolling_delays",
    }
    assert "history" in regions["aircraft-seen"]
    assert "days" in regions["route_days"]


def test_a_day_of_a_route_has_an_end_and_the_history_of_aircraft_has_none(flow: Dataflow) -> None:
    assert (flow.state("days").ttl, flow.state("history").ttl) == ("7 days", None)


def test_a_stage_that_keeps_state_reads_its_input_by_the_same_key(flow: Dataflow) -> None:
    for stage in flow.stages:
        for state in stage.states:
            assert [each.keys for name, each in stage.exchanges.items() if name != state.name] == [state.keys]


def test_every_function_and_suite_exists_and_takes_what_its_stage_gives_it(flow: Dataflow) -> None:
    assert problems_of(str(DAG_FILE), flow, EXPECTATIONS) == []


def test_parsing_it_imports_neither_spark_nor_what_the_tasks_alone_need() -> None:
    heavy = {"pyspark", "great_expectations", "pandas", "pyarrow", "weir_spark", "weir.ledger", "pipelines"}
    program = f"import runpy, sys; runpy.run_path({str(DAG_FILE)!r}); print(*{heavy!r}.intersection(sys.modules))"
    parsed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert parsed.stdout.strip() == ""

"""The DAG file of the example of standing queries: light, and naming only functions that exist."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.standing_queries import MAXES, STANDING, SUMS
from weir.doctor.declarations import problems_of
from weir.settings import EXPECTATIONS

if TYPE_CHECKING:
    from weir.dataflow import Dataflow

DAG_FILE = Path(__file__).parents[2] / "dags" / "standing_queries.py"


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    loaded: Dataflow = runpy.run_path(str(DAG_FILE))["flow"]
    return loaded


def test_every_function_exists_and_takes_what_its_stage_gives_it(flow: Dataflow) -> None:
    assert problems_of(str(DAG_FILE), flow, EXPECTATIONS) == []


def test_states_have_the_columns_that_the_functions_write(flow: Dataflow) -> None:
    assert flow.state("queries").schema == STANDING
    schema = flow.state("open_windows").schema
    assert [schema.count("sum_"), schema.count("max_")] == [SUMS, MAXES]


def test_parsing_it_imports_neither_spark_nor_what_the_tasks_alone_need() -> None:
    heavy = {"pyspark", "pandas", "pyarrow", "weir_spark", "weir.ledger", "pipelines"}
    program = f"import runpy, sys; runpy.run_path({str(DAG_FILE)!r}); print(*{heavy!r}.intersection(sys.modules))"
    parsed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert parsed.stdout.strip() == ""

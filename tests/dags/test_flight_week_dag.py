"""The DAG file of the example that reads a data set: it fits what the first example publishes, and is light."""

from __future__ import annotations

import runpy
import subprocess
import sys
from datetime import date
from pathlib import Path

from pipelines.flight_delays_reference import expected_report
from weir.dataflow.stage import last
from weir.dataflow.state_schema import fields_of_ddl
from weir.doctor.declarations import problems_of
from weir.settings import EXPECTATIONS

DAGS = Path(__file__).parents[2] / "dags"
DAG_FILE = DAGS / "flight_week.py"


def test_it_reads_columns_of_the_seven_newest_reports() -> None:
    found = runpy.run_path(str(DAG_FILE))
    (read,) = found["flow"].stage("week").exchanges.values()
    dataflow, sink = read.stage.split(".")
    first = runpy.run_path(str(DAGS / "flight_delays.py"))["flow"]
    assert (dataflow, read.epoch) == (first.name, last(7))
    assert first.stage(sink)
    assert fields_of_ddl(read.schema).keys() <= expected_report(date(2013, 1, 1))[0].keys()


def test_every_function_exists_and_takes_what_its_stage_gives_it() -> None:
    assert problems_of(str(DAG_FILE), runpy.run_path(str(DAG_FILE))["flow"], EXPECTATIONS) == []


def test_parsing_it_imports_neither_spark_nor_what_the_tasks_alone_need() -> None:
    heavy = {"pyspark", "great_expectations", "pandas", "pyarrow", "weir_spark", "weir.ledger", "pipelines"}
    program = f"import runpy, sys; runpy.run_path({str(DAG_FILE)!r}); print(*{heavy!r}.intersection(sys.modules))"
    parsed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert parsed.stdout.strip() == ""

"""`weir check` reports each problem in a line, and its exit code says whether there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

FLOW = """
from weir.dataflow import Dataflow, sink, source
from weir_airflow.dag import dataflow_dag

print("printed by a DAG file")
flow = Dataflow("{name}", [source("a", "{function}"), sink("a", "out")])
dag = dataflow_dag(flow)
"""


@pytest.fixture
def check(tmp_path):
    """Run `weir check` in a folder of its own, without a stack."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "pipelines_checked.py").write_text(
        "from pyspark.sql.functions import udf\n@udf\ndef up(x): ...\ndef a(ctx): ...\ndef b(ctx, other): ...\n"
    )
    (tmp_path / "starts_spark.py").write_text(
        "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\ndef a(ctx): ...\n"
    )
    (tmp_path / "ends.py").write_text("import os\nos._exit(7)\n")
    path = os.pathsep.join([str(tmp_path), *(str(ROOT / each) for each in ("include", "plugins", "spark_jobs"))])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "WEIR", "SPARK"))}

    def run(*arguments, **files):
        for name, text in files.items():
            (tmp_path / "dags" / f"{name}.py").write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "weir.cli.main", "check", *arguments],
            cwd=tmp_path,
            env={**kept, "PYTHONPATH": path, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def test_files_without_problems_are_summarised(check, tmp_path):
    done = check(one=FLOW.format(name="delays", function="pipelines_checked:a"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "dags/one.py: dataflow 'delays': 2 task instances a run: a-out, weir_close",
        "1 file(s), 1 dataflow(s), 2 stage(s): no problem(s)",
    ]
    written = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert written == {"dags", "pipelines_checked.py", "starts_spark.py", "ends.py"}


def test_each_problem_is_a_line_of_a_report_that_programs_read(check):
    done = check(
        "--json",
        "dags",
        first=FLOW.format(name="delays", function="pipelines_checked:b"),
        second=FLOW.format(name="delays", function="pipelines_checked:c"),
        spark=FLOW.format(name="sparky", function="starts_spark:a"),
        third="import airflow  # a dag\n1 / 0\n",
        zero=FLOW.format(name="zero", function="ends:a"),
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["version"] == 1
    assert report["files"] == [f"dags/{name}.py" for name in ("first", "second", "spark", "third", "zero")]
    found = {(each["file"], each["stage"]): each["text"] for each in report["problems"]}
    assert "expected `def b(ctx)`, found `def b(ctx, other)`" in found["dags/first.py", "a"]
    assert "has no function 'c'" in found["dags/second.py", "a"]
    assert "module starts_spark: importing it failed: PySparkRuntimeError" in found["dags/spark.py", "a"]
    assert found["dags/third.py", ""] == "ZeroDivisionError: division by zero"
    assert "a dataflow of this name is declared in dags/first.py, too" in found["dags/second.py", ""]
    assert "ended with status 7" in found["dags/zero.py", ""]


def test_a_folder_that_does_not_exist_is_named(check):
    done = check("daggs")
    assert done.returncode == 2
    assert "there is no file or folder daggs" in " ".join(done.stderr.replace("│", " ").split())


READER = """
from datetime import UTC, datetime
from weir.dataflow import Dataflow, Stage, dataset, sink
from weir_airflow.dag import dataflow_dag

read = Stage("b", "pipelines_checked:b", {"other": dataset("delays.out")})
flow = Dataflow("reader", [read, sink("b", "out")])
dag = dataflow_dag(flow, schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC))
"""


def test_what_no_file_of_a_folder_publishes_is_a_problem_unless_another_project_does(check):
    done = check("dags", reader=READER)
    assert done.returncode == 1
    assert "dags/reader.py: dataflow 'reader': no file declares dataflow delays" in done.stdout
    assert check("dags", "--external", "delays").returncode == 0
    alone = check("dags/reader.py")
    assert (alone.returncode, "no file declares dataflow delays" in alone.stdout) == (0, True)

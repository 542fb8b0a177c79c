"""DAG files as `weir check` finds them: each is imported as Airflow would, and gives its dataflows or its problems."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

HEAD = """
from datetime import UTC, datetime
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow.dag import dataflow_dag, dataflow_group
START = datetime(2013, 1, 1, tzinfo=UTC)
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Write a DAG file and check it."""
    from weir_airflow.doctor.dag_files import checked

    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "checked_functions.py").write_text("def flights(ctx): ...\ndef clean(ctx, flights): ...\n")

    def checks(text):
        file = tmp_path / "dag.py"
        file.write_text(HEAD + textwrap.dedent(text))
        return checked(str(file), str(tmp_path))

    return checks


FLOW = """
flow = Dataflow("delays", [
    source("flights", "checked_functions:flights"),
    Stage("clean", "checked_functions:%s", [blocking("flights", by="k")], parallelism=2),
    sink("clean", "cleaned"),
])
"""


def test_connections_that_do_not_exist_are_found_where_they_are_asked_for(check, tmp_path, monkeypatch):
    from weir_airflow.doctor.dag_files import checked

    flow = (FLOW % "clean").replace('"cleaned"', '"cleaned", to=[postgres("known_db", "t"), postgres("lost_db", "u")]')
    others = """
        flow = Dataflow("delays", [
            *flow.stages, iceberg_source("lake", "lost_lake.db.t"), sink("lake", "of_lake", to=[files("/of/lake")])
        ], notify=[webhook("lost_hook")])
        dataflow_dag(flow, schedule='@daily', start_date=START)
        """
    of_dataflow = "from weir.dataflow import files, iceberg_source, postgres, webhook\n"
    assert check(of_dataflow + flow + textwrap.dedent(others))["problems"] == []
    monkeypatch.setenv("AIRFLOW_CONN_KNOWN_DB", "postgres://u:hush@h/d")
    found = checked(str(tmp_path / "dag.py"), str(tmp_path), True)["problems"]
    assert [(each["stage"], each["text"].split("'")[1]) for each in found if "lost" in each["text"]] == [
        ("cleaned", "lost_db"),
        ("lake", "lost_lake"),
        ("", "lost_hook"),
    ]
    assert len(found) == 3


def test_a_file_is_imported_by_its_path_without_dots(check, tmp_path):
    from weir_airflow.doctor.dag_files import checked

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dag.py").write_text("from pathlib import Path\nassert '..' not in Path(__file__).parts, __file__\n")
    assert checked(f"{tmp_path}/elsewhere/../dag.py", str(tmp_path))["problems"] == []


def test_a_dataflow_that_nothing_refers_to_is_found_with_its_tasks(check):
    found = check(FLOW % "clean" + "dataflow_dag(flow, schedule='@daily', start_date=START)")
    assert found["problems"] == []
    assert found["dataflows"] == [
        {
            "dataflow": "delays",
            "stages": 3,
            "tasks": {"flights": 1, "clean-cleaned": 2, "weir_close": 1},
            "group": "",
            "cadence": "0 0 * * *",
            "zone": "UTC",
            "sinks": ["cleaned"],
            "started_by": {},
            "reads": [],
        }
    ]


def test_a_group_in_an_ordinary_dag_is_found(check):
    found = check(
        FLOW % "clean" + "from airflow.sdk import DAG\nwith DAG('x'):\n    dataflow_group(flow, group_id='g')\n"
    )
    assert [each["group"] for each in found["dataflows"]] == ["g"]


DAILY = """
from datetime import datetime
from zoneinfo import ZoneInfo
from weir.dataflow import Dataflow, files_source, iceberg_source, sink
from weir_airflow import dataflow_dag
stages = [files_source("trips", "/data/{start%s:%%Y-%%m-%%d}/*.parquet"), sink("trips", "out"),
          iceberg_source("zones", "lake.taxi.zones", partition={"day": "{end%s:%%Y%%m%%d}"}), sink("zones", "known")]
dataflow_dag(Dataflow("daily", stages), schedule="@daily", start_date=datetime(2026, 1, 2, tzinfo=ZoneInfo("%s")))
"""


def test_a_source_that_names_another_day_than_the_schedule_is_told(check):
    found = check(DAILY % ("", "", "Asia/Kolkata"))
    assert found["problems"] == []
    trips, zones = found["notes"]
    assert "'trips'" in trips
    assert "write {start_local:%Y-%m-%d}" in trips
    assert "'zones'" in zones
    assert "Asia/Kolkata" in zones
    assert check(DAILY % ("", "", "UTC"))["notes"] == check(DAILY % ("_local", "_local", "Asia/Kolkata"))["notes"] == []


def test_an_ordinary_dag_file_has_nothing_to_check(check):
    assert check("from airflow.sdk import DAG\ndag = DAG('x')\n")["dataflows"] == []


def test_the_functions_of_its_stages_are_checked(check):
    (problem,) = check(FLOW % "claen" + "dag = dataflow_dag(flow)")["problems"]
    assert (problem["dataflow"], problem["stage"]) == ("delays", "clean")
    assert "did you mean 'clean'" in problem["text"]


def test_a_file_that_is_refused_tells_the_line_and_each_problem(check):
    found = check("""
    flow = Dataflow("delays", [source("a", "p.a"), source("b", "p.b"), sink("a", "x"), sink("b", "y")])
    """)
    texts = [(each["line"], each["text"]) for each in found["problems"]]
    assert [line for line, _ in texts] == [7, 7]
    assert texts[0][1].startswith("dataflow 'delays': stage 'a': function must look like")
    assert texts[1][1].startswith("dataflow 'delays': stage 'b': function must look like")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import no_such_library", 6, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def f(:", 6, "SyntaxError: "),
        ("\n1 / 0", 7, "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", 6, "SystemExit: 4"),
        ("blocking()", 6, "TypeError: blocking() missing 1 required positional argument: 'stage'"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_problem(check, text, line, said):
    (problem,) = check(text)["problems"]
    assert problem["line"] == line
    assert problem["text"].startswith(said)


def test_what_is_no_python_file_is_named(tmp_path):
    from weir_airflow.doctor.dag_files import checked

    (tmp_path / "notes.md").write_text("notes")
    (problem,) = checked(str(tmp_path / "notes.md"), "")["problems"]
    assert "it is no Python file" in problem["text"]


def test_the_files_of_a_folder_are_those_that_airflow_would_parse(tmp_path, monkeypatch):
    from weir_airflow.doctor.dag_files import files_of

    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("b", "a", "ignored"):
        (tmp_path / f"{name}.py").write_text("from airflow.sdk import DAG  # a dag")
    (tmp_path / "functions.py").write_text("def f(): ...")
    (tmp_path / ".airflowignore").write_text("ignored.py\n")
    found = list(files_of([str(tmp_path), str(tmp_path / "a.py")]))
    assert found == [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
    assert str(tmp_path) in sys.path


CHECKED = FLOW % "clean" + "dataflow_dag(flow, schedule='@daily', start_date=START)"
CHECKED = CHECKED.replace("parallelism=2", "quality=expectations('rows')")


def test_a_suite_is_judged_by_great_expectations_where_it_is_needed(check, tmp_path):
    write_suite(tmp_path, {"type": "expect_column_to_be_increasing", "kwargs": {"column": "k"}})
    found = check(f"from weir.dataflow import expectations\n{CHECKED}")
    (problem,) = found["problems"]
    assert (
        "/rows.json: the suite rows cannot be used: expectation 2: there is no expectation 'expect_column_to_be"
        in problem["text"]
    )
    assert found["notes"] == []


def test_where_great_expectations_is_missing_the_rest_is_checked_and_a_note_says_so(check, tmp_path, monkeypatch):
    from weir_airflow.doctor import dag_files

    monkeypatch.setitem(sys.modules, "great_expectations.expectations", None)
    dag_files._gx_registry.cache_clear()
    write_suite(tmp_path, {"type": "expect_column_values_to_be_increasing", "kwargs": {"column": "k"}})
    found = check(f"from weir.dataflow import expectations\n{CHECKED}")
    dag_files._gx_registry.cache_clear()
    assert found["problems"] == []
    (note,) = found["notes"]
    assert "types and arguments of expect_column_values_to_be_increasing are not checked" in note
    assert "pip install 'weir[quality]'" in note


def write_suite(folder, *expected):
    plain = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "k"}}
    (folder / "rows.json").write_text(json.dumps({"expectations": [plain, *expected]}))

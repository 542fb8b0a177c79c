"""SQL files of stages: where they are found, and what is said when a DAG file is parsed."""

from __future__ import annotations

import runpy
import sys

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured

DAG = """
from datetime import UTC, datetime
from weir.dataflow import Dataflow, Stage, blocking, sink, source

trips = source("trips", "sql_trips:trips")
by_zone = Stage("by_zone", sql="sql/by_zone.sql", inputs=[blocking(trips, by="zone")], parallelism=2)
flow = Dataflow("zones", [trips, by_zone, sink(by_zone, "zones")], parameters={"least": 3})
START = datetime(2013, 1, 1, tzinfo=UTC)
"""
AS_DAG = "from weir_airflow.dag import dataflow_dag\ndag = dataflow_dag(flow, schedule='@daily', start_date=START%s)\n"
AS_GROUP = """
from airflow.sdk import DAG, CronDataIntervalTimetable
from weir_airflow.dag import dataflow_group
with DAG("city", schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), start_date=START) as dag:
    dataflow_group(flow)
"""
BY_A_FUNCTION = "from sql_factory import made\ndag = made(flow, schedule='@daily', start_date=START)\n"
FACTORY = "from weir_airflow.dag import dataflow_dag\ndef made(flow, **more):\n    return dataflow_dag(flow, **more)\n"
QUERY = "SELECT zone, count(*) AS n FROM trips GROUP BY zone HAVING n > {{ ctx.parameters.least }}"


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """Parse a DAG file beside which there are other files: the declaration of its tasks."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sql_factory.py").write_text(FACTORY)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "elsewhere")])

    def parse(rest, **files):
        for name, text in files.items():
            path = tmp_path / name / "sql" / "by_zone.sql"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        file = tmp_path / "dags" / "zones.py"
        file.write_text(DAG + rest)
        (task, *_) = runpy.run_path(str(file))["dag"].tasks
        return task.declared

    return parse


@pytest.mark.parametrize("rest", [AS_DAG % "", AS_GROUP, BY_A_FUNCTION])
def test_a_sql_file_is_found_below_the_folder_of_the_dag_file(parsed, rest):
    assert parsed(rest, dags=QUERY, elsewhere="SELECT 1").sql == {"sql/by_zone.sql": QUERY}


def test_a_sql_file_is_found_below_the_template_searchpath(parsed, tmp_path):
    rest = AS_DAG % f", template_searchpath=[{str(tmp_path / 'none')!r}, {str(tmp_path / 'elsewhere')!r}]"
    assert parsed(rest, elsewhere=QUERY).sql == {"sql/by_zone.sql": QUERY}
    assert "elsewhere" not in repr(parsed(rest))


def test_the_sql_is_code_and_no_part_of_the_serialized_dag(parsed):
    assert repr(parsed(AS_DAG % "", dags=QUERY)) == repr(parsed(AS_DAG % "", dags=f"{QUERY} AND true"))


def test_a_missing_file_is_answered_when_the_dag_file_is_parsed(parsed, tmp_path):
    with pytest.raises(Misconfigured) as found:
        parsed(AS_DAG % "")
    assert str(found.value) == (
        f"dataflow 'zones': stage 'by_zone': there is no file 'sql/by_zone.sql' below {tmp_path}/dags: write the path "
        "from the folder of the DAG file, or give another folder by dataflow_dag(..., template_searchpath=[...])"
    )


def test_what_is_wrong_in_a_file_is_answered_with_file_and_line(parsed, tmp_path):
    with pytest.raises(Misconfigured) as found:
        parsed(AS_DAG % "", dags="SELECT zone,\n  {{ ds }}\nFROM tripz")
    first, second, third = str(found.value).splitlines()
    file = f"{tmp_path}/dags/sql/by_zone.sql"
    assert first == "dataflow 'zones' has 2 problems:"
    assert second.startswith(f"- stage 'by_zone': {file}: line 2: {{{{ ds }}}} is unknown: write to_date({{{{ ctx.int")
    assert third == (
        f"- stage 'by_zone': {file}: line 3: it reads 'tripz', which is no input of the stage: did you mean 'trips'?"
    )


def test_weir_check_finds_the_same(parsed, tmp_path):
    from weir_airflow.doctor.dag_files import checked

    with pytest.raises(Misconfigured):
        parsed(AS_DAG % "", dags="SELECT 1")
    (problem,) = checked(str(tmp_path / "dags" / "zones.py"), str(tmp_path))["problems"]
    assert "sql/by_zone.sql: it does not read the input 'trips'" in problem["text"]


def test_a_query_is_packed_with_the_modules_of_its_dataflow(parsed, tmp_path):
    from weir_airflow.tasks.running import deployed_code

    (tmp_path / "elsewhere" / "sql_trips.py").write_text("def trips(ctx): ...\n")
    packed = deployed_code(parsed(AS_DAG % "", dags=QUERY))
    assert packed.files == {"sql_trips.py": b"def trips(ctx): ...\n", "sql/by_zone.sql": QUERY.encode()}


APPLICATION = """
from datetime import UTC, datetime
from weir.dataflow import Application, Dataflow, Stage, blocking, sink, source

given = Application("jobs/by_zone.py", ["{{ inputs.trips }}", "{{ output }}", "{{ ctx.parameters.least }}"])
by_zone = Stage("by_zone", application=given, inputs=[blocking("trips", by="zone")], parallelism=2)
flow = Dataflow("zones", [source("trips", "sql_trips:trips"), by_zone, sink(by_zone, "zones")], parameters=PARAMETERS)
from weir_airflow.dag import dataflow_dag
dag = dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""


@pytest.fixture
def applied(tmp_path, monkeypatch):
    """Write a DAG file with an application, and its program unless the text is None; the file."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "sql_trips.py").write_text("def trips(ctx): ...\n")
    (tmp_path / "jobs").mkdir()

    def write(program, **parameters):
        if program is not None:
            (tmp_path / "jobs" / "by_zone.py").write_text(program)
        file = tmp_path / "zones.py"
        file.write_text(APPLICATION.replace("PARAMETERS", repr(parameters)))
        return file

    return write


def test_an_application_is_found_beside_the_dag_file_and_packed_by_a_task(applied, tmp_path):
    from weir_airflow.doctor.dag_files import checked
    from weir_airflow.tasks.running import deployed_code

    file = applied("print()\n", least=3)
    (task, *_) = runpy.run_path(str(file))["dag"].tasks
    assert task.declared.applications == {"jobs/by_zone.py": tmp_path / "jobs" / "by_zone.py"}
    applied("print(1)\n", least=3)
    assert deployed_code(task.declared).files == {
        "sql_trips.py": b"def trips(ctx): ...\n",
        "jobs/by_zone.py.application": b"print(1)\n",
    }
    assert checked(str(file), str(tmp_path))["problems"] == []


def test_the_code_of_a_dag_file_is_that_which_its_tasks_pack(applied, parsed, tmp_path):
    from weir.trials.declared import code_below
    from weir_airflow.tasks.running import deployed_code

    file = applied("print()\n", least=3)
    (task, *_) = runpy.run_path(str(file))["dag"].tasks
    (found,) = code_below(file)
    assert found.archive.fingerprint == deployed_code(task.declared).fingerprint
    declared = parsed(AS_DAG % "", dags=QUERY)
    (found,) = code_below(tmp_path / "dags", "zones")
    assert (found.file, found.archive.fingerprint) == (tmp_path / "dags/zones.py", deployed_code(declared).fingerprint)
    with pytest.raises(Misconfigured, check=of_kind("trials.dataflow_unknown", dataflow="zone")):
        code_below(file, "zone")


def test_weir_check_finds_a_missing_application_and_a_parameter_that_the_dataflow_has_not(applied, tmp_path):
    from weir_airflow.doctor.dag_files import checked

    said = "\n".join(each["text"] for each in checked(str(applied(None, last=3)), str(tmp_path))["problems"])
    assert f"stage 'by_zone': there is no file 'jobs/by_zone.py' below {tmp_path}" in said
    assert "stage 'by_zone': the dataflow has no parameter 'least': did you mean 'last'?" in said


def test_weir_try_refuses_an_application_with_what_to_do(applied):
    from weir.trials.declared import declared_in

    with pytest.raises(
        Misconfigured, check=of_kind("trials.stage_is_an_application", function="jobs/by_zone.py", name="by_zone")
    ):
        declared_in(applied("print()\n", least=3), "by_zone")

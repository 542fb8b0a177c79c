"""`weir init` makes a project that is right from the start, and changes nothing that is there."""

import json
import os
import subprocess

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.local_stack import PROJECT_VARIABLE
from weir_dev.commands.init import make_project
from weir_dev.project import project_root, state_folder


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects") / "my trips"
    make_project(folder)
    return folder


def weir(project, *arguments, cwd=None):
    return subprocess.run(
        [project / "weir", *arguments], cwd=cwd or project, capture_output=True, text=True, check=False
    )


def test_a_new_project_has_no_problem(project):
    done = weir(project, "check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "dags/trips.py: dataflow 'trips': 4 task instances a run: trips-clean, by_zone-zones[2], weir_close",
        "2 file(s), 1 dataflow(s), 4 stage(s): no problem(s)",
    ]


def test_its_suites_are_in_its_folder(project):
    dag = project / "dags" / "trips.py"
    before = dag.read_text()
    quality = 'quality=expectations("trips_clean"), sql='
    text = before.replace("from weir.dataflow import ", "from weir.dataflow import expectations, ")
    dag.write_text(text.replace("sql=", quality))
    try:
        missing = weir(project, "check")
        assert f"{project}/expectations/trips_clean.json is missing" in missing.stdout
        expected = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "zone"}}
        suite = {"name": "trips_clean", "expectations": [expected]}
        (project / "expectations" / "trips_clean.json").write_text(json.dumps(suite))
        assert weir(project, "check").returncode == 0
    finally:
        dag.write_text(before)


def test_its_launcher_works_on_it_from_anywhere_and_has_the_verbs_of_a_project(project, tmp_path):
    done = weir(project, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(f" {verb} " in done.stdout for verb in ("up", "down", "status", "check", "why"))
    assert not any(f" {verb} " in done.stdout for verb in ("demo", "chaos", "init", "test"))
    done = weir(project, "status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "The stack is not running; ./weir up starts it.\n")


def test_a_launcher_whose_python_is_gone_says_so(project, tmp_path):
    launcher = project / "weir"
    text = launcher.read_text()
    moved = tmp_path / "weir"
    moved.write_text(text.replace(text.split("[ ! -x ")[1].split(" ]")[0], "/gone/python"))
    moved.chmod(0o755)
    done = subprocess.run([moved, "check"], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no /gone/python any more" in done.stderr) == (2, True)


def test_the_state_of_a_project_is_in_its_folder(project, monkeypatch):
    monkeypatch.setenv(PROJECT_VARIABLE, os.fspath(project))
    assert (project_root(), state_folder()) == (project, project / ".weir")
    monkeypatch.setenv(PROJECT_VARIABLE, os.fspath(project / "data"))
    with pytest.raises(Misconfigured, check=of_kind("dev.no_project")):
        project_root()


def test_a_folder_that_has_files_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(Misconfigured, check=of_kind("dev.folder_not_empty")):
        make_project(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_two_projects_have_the_same_data_with_what_is_to_be_cleaned(project, tmp_path):
    make_project(tmp_path / "other")
    for name in ("2026-01-01.csv", "2026-01-02.csv", "2026-01-03.csv"):
        text = (project / "data" / name).read_text()
        assert text == (tmp_path / "other" / "data" / name).read_text()
        lines = text.splitlines()
        assert len(set(lines)) < len(lines)
        assert any(line.endswith(",0.0") for line in lines)

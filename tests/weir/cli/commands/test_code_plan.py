"""`weir code plan` as a person or a pipeline of a repository types it, for DAG files and modules in folders."""

import json
import os
import subprocess

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, reach, typed, use
from tests.weir.restoring import run_days
from tests.weir.small_dataflow import World

from weir.errors import Misconfigured
from weir.trials.declared import code_below

DAG = """
from datetime import UTC, datetime
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow.dag import dataflow_dag
from taxi_jobs.settings import LEAST

trips = source("trips", "taxi_jobs.trips:trips")
by_zone = Stage("by_zone", "taxi_jobs.zones:by_zone", [blocking(trips, by="k")])
dag = dataflow_dag(
    Dataflow("taxis", [trips, by_zone, sink(by_zone, "zones")], keep="60 days", parameters={"least": LEAST}),
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
)
"""
MODULES = {
    "__init__.py": "",
    "trips.py": "def trips():\n    return 0\n",
    "zones.py": "from taxi_jobs.rates import LEAST\n\n\ndef by_zone():\n    return 0\n    LEAST\n",
    "rates.py": "LEAST = 3\n",
    "settings.py": "LEAST = 5\n",
}
EPOCHS = ["--from", "2013-01-01"]


def checkout(folder):
    """Write a DAG file, and the modules of its functions, which are in another folder."""
    (folder / "dags").mkdir(parents=True)
    (folder / "dags/taxis.py").write_text(DAG)
    (folder / "src/taxi_jobs").mkdir(parents=True)
    for name, text in MODULES.items():
        (folder / "src/taxi_jobs" / name).write_text(text)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout in which a person stands, whose modules are on Python's path; there is no ledger."""
    folder = checkout(tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "src")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    use(monkeypatch, tmp_path)
    return folder


@pytest.fixture
def world(project, tmp_path):
    """Two days of the project, as it is."""
    (of,) = code_below(project / "dags")
    world = World(tmp_path, of.flow)
    world.airflow.deployed = of.archive
    run_days(world.airflow, 1, 2)
    assert set(world.airflow.states().values()) == {"success"}
    return world


def edit(folder, name="rates.py", text="LEAST = 4\n"):
    file = folder / "src/taxi_jobs" / name
    assert file.read_text() != text
    file.write_text(text)


def planned(*words):
    return invoked("code", "plan", *words)


def test_an_edit_is_planned_carried_out_and_then_there_is_nothing_to_do(world, project, monkeypatch):
    edit(project)
    done = planned("dags/taxis.py")
    assert done.exit_code == 1
    said = [
        "other code has made results of 2 of 2 run(s)",
        "Directly modified:",
        "by_zone: what it reaches: taxi_jobs/rates.py (LEAST)",
        "-LEAST = 3",
        "+LEAST = 4",
        "2: 20130101T000000Z to 20130102T000000Z",
        "Re-run: 2 region(s)",
        "No other dataflow has read",
        "With --apply, 2 task instance(s) of 2 run(s) are",
    ]
    places = [done.stdout.find(each) for each in said]
    assert places == sorted(places)
    assert -1 not in places
    document = json.loads(planned("--json").stdout)
    (found,) = document["dataflows"]
    assert found["would_rerun"]
    assert [each["run"] for each in found["plans"]] == ["taxis@20130101T000000Z", "taxis@20130102T000000Z"]
    assert [each["acts"]["clears"] for each in found["plans"]] == [1, 1]
    assert found["stages"][0]["files"] == [
        {"file": "taxi_jobs/rates.py", "names": ["LEAST"], "is_new": False, "is_gone": False}
    ]
    reach(monkeypatch, world.airflow)
    applied = planned("--apply", "--from", "2013-01-02")
    assert (applied.exit_code, "1 task instance(s) of 1 run(s) are cleared." in applied.stdout) == (0, True)
    (of,) = code_below(project / "dags")
    world.airflow.deployed = of.archive
    world.airflow.run_until_quiet()
    left = planned("--forward-only")
    assert (left.exit_code, "stays while its code is" in left.stdout) == (0, True)
    (kept,) = json.loads(typed("code", "taxis", "--json"))["kept"]
    assert (kept["task"], kept["first"], kept["last"]) == ("by_zone-zones", "20130101T000000Z", "20130101T000000Z")
    assert "stays while its code is" in typed("code")
    assert planned().exit_code == 0


def test_what_cannot_be_done_is_refused(world, project):
    for words, kind in (
        (["--apply"], "cli.apply_to_which_epochs"),
        (["--reuse", *EPOCHS], "cli.nothing_reused"),
        (["--against", "dags", "--apply", *EPOCHS], "cli.compared_code_is_not_run"),
        (["--apply", "--forward-only", *EPOCHS], "cli.forward_only_re_runs_nothing"),
        (["--apply", *EPOCHS], "cli.airflow_not_reached"),
        (["--from", "2014-01-01"], "cli.no_run_of_code"),
        (["dags/taxi.py"], "trials.no_dag_file"),
        (["--against", "nothing"], "views.code_unknown"),
    ):
        if "--reuse" in words:
            edit(project)
        with pytest.raises(Misconfigured, check=of_kind(kind)):
            planned(*words)


@pytest.mark.parametrize(("here", "there"), [("dags", ""), ("dags/taxis.py", "dags/taxis.py")])
def test_another_checkout_is_compared_with_its_own_modules_and_without_a_ledger(project, tmp_path, here, there):
    other = checkout(tmp_path / "other")
    edit(other)
    edit(other, "settings.py", "LEAST = 6\n")
    done = planned(here, "--against", str(other / there), "--json")
    assert done.exit_code == 1
    (found,) = json.loads(done.stdout)["dataflows"]
    assert [(each["stage"], each["change"]) for each in found["stages"]] == [
        ("by_zone", "direct"),
        ("zones", "in_task"),
    ]
    assert found["diff"][-2:] == ["-LEAST = 4", "+LEAST = 3"]
    assert found["settings"] == [{"field": "parameters.least", "was": 6, "now": 5}]
    assert (found["runs"], found["plans"]) == (0, [])


def git(folder, *words):
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def test_a_revision_in_git_is_compared_as_it_was(project):
    git(project, "init", "--initial-branch", "main")
    git(project, "add", "src")
    git(project, "commit", "--message", "modules")
    git(project, "tag", "without")
    git(project, "add", ".")
    git(project, "commit", "--message", "a DAG")
    edit(project, "zones.py", MODULES["zones.py"].replace("return 0", "return 1"))
    done = planned("--against", "main")
    assert (done.exit_code, "by_zone: its function: taxi_jobs/zones.py (by_zone)" in done.stdout) == (1, True)
    told = planned("--against", "without").stdout
    assert "Added:\n  trips\n  by_zone\n  zones\n" in told
    assert "Directly" not in told


def test_code_that_has_run_is_compared_by_the_name_of_its_version_or_archive(world, project):
    edit(project)
    versions = json.loads(typed("code", "taxis", "--json"))["versions"]
    (old,) = {(each["version"], each["archive"]) for each in versions if each["region"] == "by_zone-zones"}
    for name in old:
        done = planned("--against", name[:20])
        assert (done.exit_code, "+LEAST = 4" in done.stdout) == (1, True)

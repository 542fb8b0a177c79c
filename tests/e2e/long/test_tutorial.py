"""The tutorial, as a newcomer types it: every command gives the output that the page shows."""

import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.tutorial import AwaitDag, Clear, Command, File, steps

from weir.coordination.airflow_client import path_of
from weir.local_stack import PROJECT_VARIABLE
from weir_dev.airflow_api import AirflowApi
from weir_dev.stack.credentials import PERSON

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
FAILED = "exit code"
ASKING = tuple(f"./weir {verb}" for verb in ("runs", "state", "failovers", "why", "checkpoints", "datasets", "plan"))
SECONDS = 240
"""How long an answer may take until it is the page's: Airflow notices files, and runs tasks."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "trips"
    monkeypatch.setenv(PROJECT_VARIABLE, str(folder))
    yield folder
    subprocess.run([folder / "weir", "down"], check=False, stdout=subprocess.DEVNULL)


def test_each_command_of_the_tutorial_says_what_the_page_shows(project):
    for step in steps():
        match step:
            case File(path, content):
                (project / path).write_text(content)
            case Clear(run, task, index):
                with airflow() as api:
                    clear(api, run, task, index)
            case AwaitDag(dag):
                with airflow() as api:
                    await_dag(api, dag)
            case Command():
                await_answer(project, step)
    assert not (project / ".weir" / "postgres" / "postmaster.pid").exists()


def await_answer(project, command):
    until = time.monotonic() + (SECONDS if command.typed.startswith(ASKING) else 0)
    while FAILED in (said := typed(project, command.typed)) or not command.is_answered_by(said):
        assert time.monotonic() < until, f"$ {command.typed}\n{said}\nexpected:\n{command.output}"
        time.sleep(2)


def typed(project, command):
    if command.startswith("./weir init"):
        words, place = [sys.executable, "-m", "weir_dev.main", "init", str(project)], ROOT
    else:
        words, place = ["sh", "-c", command], project
    environment = {key: value for key, value in os.environ.items() if key != PROJECT_VARIABLE}
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}{FAILED} {done.returncode}\n"


@contextmanager
def airflow():
    from weir_dev.commands.stack import stack_of_project

    stack = stack_of_project()
    with closing(AirflowApi(stack.url, PERSON, stack.credentials.person_password)) as api:
        yield api


def clear(api, run, task, index):
    if task is not None:
        api.clear("trips", run, task, index, "")
    else:
        path = path_of("api", "v2", "dags", "trips", "dagRuns", run, "clear")
        api.ask("POST", path, {"dry_run": False, "only_failed": False})


def await_dag(api, dag):
    until = time.monotonic() + SECONDS
    while not api.has_dag(dag):
        assert time.monotonic() < until, f"Airflow does not show {dag}: {api.import_errors()}"
        time.sleep(2)

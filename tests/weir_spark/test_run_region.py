from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weir_spark
from weir.results.codec import region_job_to_json, region_report_from_json

pytestmark = pytest.mark.spark

RUN_REGION = Path(weir_spark.__file__).parents[1] / "run_region.py"
TEXT = "def numbers(ctx):\n    return ctx.spark.range(10)\n"


@pytest.fixture
def run_region(store, jobs, tmp_path, monkeypatch):
    """Run the program on a job with one stage, in a process of its own; the report where it wrote one."""
    modules = tmp_path / "of the program"
    modules.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(modules))

    def run(text: str, *arguments: str, expected: int = 0):
        (modules / "program_pipeline.py").write_text(text)
        job = jobs.region(jobs.stage("numbers", "program_pipeline:numbers", jobs.output("numbers")))
        store.create("job.json", region_job_to_json(job))
        done = subprocess.run(
            [sys.executable, str(RUN_REGION), f"{store.url}/job.json", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stderr if expected else region_report_from_json(store.read(job.report))

    return run


def test_it_runs_a_region_on_a_connect_server(server, run_region) -> None:
    assert run_region(TEXT, "--remote", server.url).outputs[0].digest.rows == 10


def test_it_runs_a_region_in_a_session_of_its_own_with_the_same_digest(server, run_region, store) -> None:
    own = run_region(TEXT)
    store.delete("job.json")
    remote = run_region(TEXT, "--remote", server.url)
    assert own.outputs[0].digest == remote.outputs[0].digest


def test_its_exit_code_says_that_a_person_has_to_change_something(server, run_region) -> None:
    message = run_region("def other(ctx):\n    pass\n", "--remote", server.url, expected=78)
    assert "Misconfigured: stage numbers: the module program_pipeline has no function 'numbers'" in message


def test_its_exit_code_says_that_trying_again_may_help(run_region) -> None:
    assert "EngineLost" in run_region(TEXT, "--remote", "sc://127.0.0.1:1", "--retries", "2", expected=75)

"""Small pipelines to run, and a store to run them on."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.formats.codec import region_failure_from_json, region_job_to_json, region_report_from_json
from weir.formats.region_job import FAILURE_NAME
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.testing.fakes.jobs import Jobs

DRIVER = """
import contextlib, sys
from weir_spark.transport.driver import main

for job in sys.argv[1:]:
    with contextlib.suppress(Exception):  # the job's failure has it
        main([job])
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of stage functions and return its name, which no other test has."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str) -> str:
        name = f"pipeline_{uuid.uuid4().hex[:12]}"
        (folder / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)


@pytest.fixture
def ends_in_driver(store):
    """Run jobs as spark-submit does, one after the other in one process: the report or the failure of each."""

    def submit(*submitted):
        for job in submitted:
            store.create(f"{job.folder}/job.json", region_job_to_json(job))
        command = [sys.executable, "-c", DRIVER, *(f"{store.url}/{job.folder}/job.json" for job in submitted)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
        ends = []
        for job in submitted:
            try:
                ends.append(region_failure_from_json(store.read(f"{job.folder}/{FAILURE_NAME}")))
            except NotFound:
                ends.append(region_report_from_json(store.read(job.report)))
        return ends

    return submit

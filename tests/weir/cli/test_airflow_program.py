"""`weir airflow`: what follows is Airflow's."""

import os
import subprocess
import sys

import pytest

from weir.cli.airflow_program import become_airflow
from weir.errors import Misconfigured

PROGRAM = """
import sys
from weir.cli.main import app
sys.executable = "/nowhere/python"  # else Airflow is beside it
app(sys.argv[1:])
"""


def test_all_words_reach_airflow_on_the_path_and_so_does_the_environment(tmp_path):
    airflow = tmp_path / "airflow"
    airflow.write_text('#!/bin/sh\necho "$AIRFLOW_HOME" "$@"\n')
    airflow.chmod(0o755)
    words = ["dags", "unpause", "trips", "--verbose", "--help"]
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "AIRFLOW_HOME": "home"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "airflow", *words], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout.split() == ["home", *words]


def test_where_airflow_is_not_installed_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Misconfigured, match="dags unpause trips"):
        become_airflow(["dags", "unpause", "trips"], {"PATH": str(tmp_path)})

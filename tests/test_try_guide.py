"""What docs/try.md shows is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "try.md").read_text()
SAMPLE = re.findall(r"(?s)```\n(trip_id.*?)```", GUIDE)[0]
COMMAND, PICTURE = re.findall(r"(?s)```\n\$ weir (try .*?)\n(.*?)```", GUIDE)[0]


def without_times_and_version(said: str) -> list[str]:
    """The version of the code is that of the README's functions; a step has a line only if it takes a while."""
    return re.sub(r"code:\w+|(?m:^seconds: .*)", "", said).splitlines()


def test_the_picture_is_what_the_command_prints(tmp_path):
    """Of the README's pipeline, without a stack."""
    functions, dag_file = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text())
    for folder in ("dags", "pipelines", "samples"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "trips.py").write_text(functions)
    (tmp_path / "dags" / "trips.py").write_text(dag_file)
    (tmp_path / "samples" / "clean.csv").write_text(SAMPLE)
    path = os.pathsep.join([str(tmp_path), *(str(ROOT / each) for each in ("include", "plugins", "spark_jobs"))])
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", *COMMAND.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert without_times_and_version(done.stdout) == without_times_and_version(PICTURE)
    assert "write by_zone" in done.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dags", "home", "pipelines", "samples"]

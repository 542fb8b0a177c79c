"""Starts the process that imports DAG files: `python -m weir_airflow.doctor.dag_files`.

Invariant: whatever a DAG file does when it is imported, this process goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MODULE: Final = "weir_airflow.doctor.dag_files"
_HOME: Final = "AIRFLOW_HOME"
_SHOWN_LINES: Final = 3


def answers_about(arguments: Sequence[str], environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what the process writes, and `ended` with the end of its errors if it did not end by itself."""
    with tempfile.TemporaryDirectory(prefix="weir-check-") as home, tempfile.TemporaryFile("w+") as errors:
        # Airflow writes a configuration into the home that it does not find.
        own = {} if environ.get(_HOME) or Path("~/airflow/airflow.cfg").expanduser().exists() else {_HOME: home}
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *arguments],
            env={**environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            for line in process.stdout or ():
                yield json.loads(line)
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors.read()[-4000:].splitlines() if line.strip()]
            said = " | ".join(lines[-_SHOWN_LINES:]) or "without a message"
            yield {"ended": f"with status {process.returncode}: {said}"}

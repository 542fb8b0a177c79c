"""The checks of a connection to spark-submit. Invariant: nothing is submitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weir.doctor.examination import Check, Finding, ok, problem
from weir_airflow.engines.spark_submit import master_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


_VERSION_SECONDS: Final = 60.0
_PROGRAM: Final = "spark-submit"


def submit_checks(area: str, connection: Connection) -> list[Check]:
    """Return the checks of a connection: its master, and its program."""
    return [
        Check(area, "master", lambda: [ok(area, "master", master_of(connection))]),
        Check(area, _PROGRAM, lambda: _check_program(area, connection), seconds=_VERSION_SECONDS + 5),
    ]


def _check_program(area: str, connection: Connection) -> Iterator[Finding]:
    """Check that the program runs, and that its version is that of pyspark."""
    name = str(connection.extra_dejson.get("spark-binary") or _PROGRAM)
    client = _pyspark()
    program = shutil.which(name, path=_path())
    output, found = "", None
    if program is not None:
        command = [program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False)
        output = done.stdout + done.stderr
        found = re.search(r"version\s+(\d+\.\d+\.\d+\S*)", output)
    if found is not None and client in (None, found[1]):
        like = "; no pyspark here" if client is None else ", as pyspark here"
        yield ok(area, _PROGRAM, f"{program}, Spark {found[1]}{like}")
        return
    said = f"is of Spark {found[1]}" if found else f"--version failed: {' '.join(output.split())[-300:]}"
    yield problem(
        area,
        _PROGRAM,
        f"PATH has no {name}" if program is None else f"{program} {said}",
        expected=f"a spark-submit of Spark {client or '4'}{', as pyspark here,' if client else ''} that every worker "
        "finds and can run",
        mend="put its folder onto the PATH of the workers (pip install 'pyspark[connect]' installs one into the bin "
        "folder of its environment), or install the pyspark of its version; set JAVA_HOME to a Java 17 or 21",
    )


def _pyspark() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:  # Spark is the cluster's own
        return None


def _path() -> str:
    """Return PATH with pyspark's own programs last, where a task looks, too."""
    path = os.environ.get("PATH", os.defpath)
    pyspark = find_spec("pyspark")
    return path if pyspark is None or pyspark.origin is None else f"{path}{os.pathsep}{Path(pyspark.origin).parent}/bin"

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

from weir.doctor import table
from weir.doctor.examination import Check, Finding
from weir_airflow.doctor.yarn import yarn_checks
from weir_airflow.engines.spark_submit import is_on_yarn, master_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


_VERSION_SECONDS: Final = 60.0


def submit_checks(area: str, connection: Connection) -> list[Check]:
    """Return the checks of a connection: its master, its program, and where it leads to YARN, what that needs."""
    master = table.SUBMIT_MASTER.of(area)
    program = table.SPARK_SUBMIT.of(area)
    return [
        master.check(lambda: [master.ok(master_of(connection))]),
        program.check(lambda: _check_program(program, connection)),
        *(yarn_checks(area, connection) if is_on_yarn(connection) else []),
    ]


def _check_program(item: table.Item, connection: Connection) -> Iterator[Finding]:
    """Check that the program runs, and that its version is that of pyspark."""
    name = str(connection.extra_dejson.get("spark-binary") or item.name)
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
        yield item.ok(f"{program}, Spark {found[1]}{like}")
        return
    said = f"is of Spark {found[1]}" if found else f"--version failed: {' '.join(output.split())[-300:]}"
    wanted = "4" if client is None else f"{client}, as pyspark here,"
    yield item.problem(f"PATH has no {name}" if program is None else f"{program} {said}", version=wanted)


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

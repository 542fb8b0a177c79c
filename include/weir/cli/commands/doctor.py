"""`weir doctor`: what is wrong with a deployment, and how to correct it. Exit code 1 means that there is a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from weir.cli.documents import AsJson, print_document
from weir.cli.progress import Progress, exits_on_signals
from weir.doctor.deployment import Subject, examined
from weir.doctor.examination import Finding, Status, worst

EXIT_PROBLEM: Final = 1
Connections = Annotated[
    list[str] | None, typer.Option(help="Id of another Airflow connection to Spark; can be repeated.")
]

_STYLES: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red", Status.UNKNOWN: "cyan"}
_STATUS_WIDTH: Final = 9
_LEAST_WIDTH: Final = 24


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
        print_document(about=subject.about, status=status, findings=findings)
    else:
        print_report(console, subject.about, findings)
    raise typer.Exit(EXIT_PROBLEM if status is Status.PROBLEM else 0)


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

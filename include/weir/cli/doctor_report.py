"""The doctor's report for a person's eyes.

Invariant: one line a finding; under what is not ok, what was expected and how to mend it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.text import Text

from weir.doctor.finding import Finding, Status

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

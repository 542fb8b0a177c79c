"""The report of a chaos run. Invariant: it shows what the ledger says, and counts nothing twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape

from weir.cli.tables import key, number, print_cells, text, value
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import newest_attempts
from weir.ledger.runs import runs_of
from weir.topology.ids import RunId
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import Console
    from tests.chaos.verdict import DayVerdict

    from weir.ledger.database.tables import AttemptRow
    from weir.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected, and when."""

    fault: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Cost:
    """Tries between one fault and the next that were not the first of their region, and their causes.

    `spared` are the regions that had a result and did not run again.
    """

    again: Counter[str]
    reasons: Counter[str]
    spared: int


def costs(ledger: Ledger, dataflow: str, injected: Sequence[InjectedFault]) -> list[Cost]:
    """Return what followed each fault, in their order."""
    with ledger.transaction() as session:
        attempts = {
            (run.id, region): rows
            for run in runs_of(session, dataflow)
            for region, rows in newest_attempts(session, run.id).items()
            if region != CLOSE
        }
    ends: list[datetime | None] = [*(one.at for one in injected[1:]), None]
    return [_cost(attempts, one.at, end) for one, end in zip(injected, ends, strict=True)]


def _cost(attempts: dict[tuple[RunId, RegionId], list[AttemptRow]], start: datetime, end: datetime | None) -> Cost:
    again, reasons, spared = Counter[str](), Counter[str](), 0
    for (_, region), rows in attempts.items():
        in_time = [
            number for number, row in enumerate(rows) if start <= row.began_at and (end is None or row.began_at < end)
        ]
        tries = [number for number in in_time if number > 0]
        if tries:
            again[region.name] += len(tries)
            reasons.update(rows[number - 1].failure or rows[number].origin for number in tries)
        had_result = any(
            row.state == AttemptState.COMMITTED.value and row.ended_at is not None and row.ended_at < start
            for row in rows
        )
        spared += had_result and not tries
    return Cost(again, reasons, spared)


def print_costs(console: Console, injected: Sequence[InjectedFault], found: Sequence[Cost]) -> None:
    """Print the table of costs, by kind of fault."""
    rows = []
    for fault in sorted({one.fault for one in injected}):
        mine = [cost for one, cost in zip(injected, found, strict=True) if one.fault == fault]
        again, reasons = Counter[str](), Counter[str]()
        for cost in mine:
            again.update(cost.again)
            reasons.update(cost.reasons)
        spared = sum(cost.spared for cost in mine)
        rows.append((fault, str(len(mine)), _counted(again), _counted(reasons), f"{spared} results"))
    console.print("\n[bold]What each fault cost, counted until the next one[/]")
    print_cells((key("fault"), number("injected"), text("ran again"), text("because"), value("spared")), rows, console)


def print_verdicts(console: Console, days: Sequence[DayVerdict], broken: Sequence[str]) -> bool:
    """Print how each published day and the ledger compare with what they must be; return whether all is right."""
    for each in days:
        if not each.differences:
            console.print(
                f"[green]equal[/] {each.day}: {each.rows} rows, compared with a run without faults and plain Python"
            )
        for difference in each.differences:
            console.print(f"[bold red]DIFFERENT[/] {each.day}, {escape(difference)}", soft_wrap=True)
    for what in broken:
        console.print(f"[bold red]BROKEN[/] {escape(what)}", soft_wrap=True)
    if not broken:
        console.print(
            "[green]sound[/] ledger and store: everything valid and there, no clear pending, nothing left over"
        )
    return not broken and all(not each.differences for each in days)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "nothing"

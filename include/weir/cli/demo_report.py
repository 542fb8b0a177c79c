"""What the demo prints at its end. Invariant: it shows what was measured and adds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from rich.console import Console

    from weir.cli.airflow_api import TaskInstance
    from weir.cli.demo_evidence import LostPartition


@dataclass(frozen=True, slots=True)
class Healing:
    """Which task instances ran again, with tries before and after, which did not, and why.

    `spared` are those of the damaged day; `spared_elsewhere` counts those of the `other_days`.
    """

    again: Mapping[TaskInstance, tuple[int, int]]
    reasons: Mapping[TaskInstance, str]
    spared: Sequence[TaskInstance]
    spared_elsewhere: int
    other_days: int


@dataclass(frozen=True, slots=True)
class DayCheck:
    """One published report; `difference` is None if it equals what it was compared with."""

    day: date
    rows: int
    was_damaged: bool
    difference: str | None


def print_loss(console: Console, day: date, lost: LostPartition, cleared: str) -> None:
    """What was destroyed, and what a person then did."""
    console.print(
        f"\n[bold red]Lost[/]: the result [bold]{lost.name}[/] of {day} ({lost.rows} rows, {lost.bytes} bytes), "
        f"which {', '.join(lost.consumers)} read"
    )
    console.print(f"[bold]Cleared[/] by hand in Airflow: {cleared} of {day}, nothing else\n")


def print_healing(console: Console, healing: Healing) -> None:
    """What ran again and why, and what did not."""
    again = _table("Ran again", "task instance", "tries", "why")
    for one, (before, after) in healing.again.items():
        again.add_row(str(one), f"{before} -> {after}", escape(healing.reasons.get(one, one.run_id)))
    console.print()
    console.print(again)
    by_reason: dict[str, list[str]] = {}
    for one in healing.spared:
        by_reason.setdefault(healing.reasons[one], []).append(str(one))
    spared = _table("Did not run again", "task instances", "why")
    for reason, names in by_reason.items():
        spared.add_row(", ".join(names), escape(reason))
    spared.add_row(f"{healing.spared_elsewhere} of the {healing.other_days} other days", "nobody asked for them")
    console.print(spared)
    console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", title_style="bold", show_lines=False)
    for column in table.columns:
        column.overflow = "fold"
    return table


def print_checks(console: Console, checks: Sequence[DayCheck]) -> bool:
    """Each published report against what it must be; whether all are equal."""
    for check in checks:
        against = "a fault-free run and a plain computation in pandas" if check.was_damaged else "plain pandas"
        if check.difference is None:
            console.print(f"[green]equal[/] {check.day}: {check.rows} rows, compared with {against}")
        else:
            console.print(f"[bold red]DIFFERENT[/] {check.day}, compared with {against}: {check.difference}")
    is_right = all(check.difference is None for check in checks)
    if is_right:
        console.print("\n[bold green]Healed[/]: the published reports are those of a run without the loss.")
    else:
        console.print("\n[bold red]A published report is wrong.[/] Please report this.")
    return is_right

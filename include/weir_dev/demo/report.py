"""The demo's report and its verdict: which task instances ran again, and whether these are exactly the expected ones.

Invariant: it shows what was measured and adds nothing; a task instance that ran again, was added or has gone is never
left out of the comparison, whatever its run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from rich.console import Console

    from weir_dev.airflow_api import TaskInstance
    from weir_dev.demo.hold import LostPartition


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
    """One published report; `difference` is None if it equals the one before the loss, and what pandas computes."""

    day: date
    version: int
    rows: int
    difference: str | None


def print_found(
    console: Console, day: date, lost: LostPartition, instances: int, several_tries: Sequence[TaskInstance]
) -> None:
    """Print what was found just before the loss."""
    names = ", ".join(f"{one} of {one.run_id} ({one.try_number} tries)" for one in several_tries)
    tries = f"all but these in their first try: {names}" if several_tries else "each in its first try"
    console.print(f"\n[bold]Before[/]: {instances} task instances have succeeded, {escape(tries)}")
    console.print(
        f"[bold]Found[/]: the result [bold]{lost.name}[/] of {day}, current, {lost.rows} rows, {lost.bytes} bytes as "
        f"recorded; held with all {lost.held_results} results of that day by a read lease"
    )


def print_lost(console: Console, day: date, lost: LostPartition, files: int) -> None:
    """Print what was deleted."""
    readers = ", ".join(lost.consumers)
    console.print(f"[bold red]Lost[/]: its {files} files, deleted from the store; {readers} of {day} read them")


def print_cleared(console: Console, day: date, cleared: str) -> None:
    """Print what a person then did."""
    console.print(f"[bold]Cleared[/] by hand in Airflow: {cleared} of {day}, nothing else\n")


def print_healing(console: Console, healing: Healing) -> None:
    """Print what ran again and why, and what did not."""
    again = _table(3)
    for one, (before, after) in healing.again.items():
        again.add_row(str(one), f"{before} -> {after}", escape(healing.reasons.get(one, one.run_id)))
    by_reason: dict[str, list[TaskInstance]] = {}
    for one in healing.spared:
        by_reason.setdefault(healing.reasons[one], []).append(one)
    spared = _table(2)
    for reason, instances in by_reason.items():
        spared.add_row(in_short(instances), escape(reason))
    others = "the other day" if healing.other_days == 1 else f"the {healing.other_days} other days"
    spared.add_row(f"{healing.spared_elsewhere} of {others}", "nothing asked for them")
    console.print("\n[bold]Ran again[/]")
    console.print(again)
    console.print("[bold]Did not run again[/]")
    console.print(spared)
    console.print()


def in_short(instances: Sequence[TaskInstance]) -> str:
    """Name task instances of one run, neighbours of a mapped task together: "join[0..2], weather"."""
    indexes: dict[str, list[int]] = {}
    for one in sorted(instances):
        indexes.setdefault(one.task_id, []).append(one.map_index)
    names = []
    for task_id, found in indexes.items():
        if len(found) > 1 and found == list(range(found[0], found[-1] + 1)):
            names.append(f"{task_id}[{found[0]}..{found[-1]}]")
        else:
            names += [task_id if index < 0 else f"{task_id}[{index}]" for index in found]
    return ", ".join(names)


def reason_in_short(reason: str, lost: LostPartition) -> str:
    """Leave out of a reason what has been said already: which result was lost, and the path of its manifest."""
    return re.sub(r"^\S+ \([^)]*\) of \S+: ", "", reason).replace(f" {lost.folder}/manifest.json", "")


def _table(columns: int) -> Table:
    """Make columns without lines, so that the output can be copied as text."""
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=True)
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def print_checks(
    console: Console, checks: Sequence[DayCheck], expected: Sequence[str], unexpected: str | None, places: str
) -> bool:
    """Print the verdict: each published report against what it must be, and which task instances ran again.

    `expected` names those that had to, and `unexpected` is a sentence if others did; `places` are those besides the
    store where the report is, too. Returns whether all is right.
    """
    against = f"the version before the loss, {places}, and a plain computation in pandas"
    for check in checks:
        if check.difference is None:
            console.print(f"[green]equal[/] {check.day}: version {check.version}, {check.rows} rows: {against}")
        else:
            console.print(f"[bold red]DIFFERENT[/] {check.day}, compared with {against}: {escape(check.difference)}")
    is_equal = all(check.difference is None for check in checks)
    if not is_equal:
        console.print("\n[bold red]Not healed[/]: a published report is wrong. Please report this.")
    if unexpected is not None:
        console.print(f"\n[bold red]Not healed as expected[/]: {escape(unexpected)}", soft_wrap=True)
    if is_equal and unexpected is None:
        names = " and ".join(expected)
        console.print(
            f"\n[bold green]Healed[/]: {names} ran again, nothing else, and the published reports are those of a run "
            "without the loss."
        )
    return is_equal and unexpected is None


Tries = tuple[int, int]
"""The number of tries before the loss, and now."""


def changed_tries(before: Sequence[TaskInstance], now: Sequence[TaskInstance]) -> dict[TaskInstance, Tries]:
    """Return the task instances whose number of tries is another one than before; 0 tries of one that is not there."""
    old = {_key(one): one for one in before}
    new = {_key(one): one for one in now}
    found = {}
    for key in sorted(old.keys() | new.keys()):
        tries = (old[key].try_number if key in old else 0, new[key].try_number if key in new else 0)
        if tries[0] != tries[1]:
            found[new.get(key) or old[key]] = tries
    return found


def unexpected_reruns(
    changed: Mapping[TaskInstance, Tries], run_id: str, expected: Mapping[str, int], day: str
) -> str | None:
    """Compare with the `expected` further tries of task instances of the damaged run, by their names.

    Returns None if exactly these were made; otherwise a sentence that names the expected and the found task instances.
    """
    more = {one: now - before for one, (before, now) in changed.items()}
    of_run = {str(one): tries for one, tries in more.items() if one.run_id == run_id}
    elsewhere = {f"{one} of {one.run_id}": tries for one, tries in more.items() if one.run_id != run_id}
    if of_run == dict(expected) and not elsewhere:
        return None
    found = _listed({**of_run, **elsewhere})
    return f"expected to run again, of {day}: {_listed(expected)}, and nothing else; found: {found}"


def needed_several_tries(instances: Sequence[TaskInstance]) -> list[TaskInstance]:
    """Return the task instances that did not succeed in their first try: their run was not without faults."""
    return [one for one in instances if one.try_number != 1 or one.state != "success"]


def _listed(tries: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:+d} tries)" for name, count in sorted(tries.items())) or "none"


def _key(one: TaskInstance) -> tuple[str, str, int]:
    return one.run_id, one.task_id, one.map_index


def picture_of(console: Console) -> str:
    """Return what a recording console has printed as SVG, in a font of the reader's: it loads nothing."""
    svg = console.export_svg(title="./weir demo", unique_id="demo")
    return re.sub(r"(?s)\s*@font-face \{.*?\}", "", svg).replace("Fira Code, monospace", "monospace")

"""Prints the plan of a change of code. Invariant: what is not shown is counted; `--json` has all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from weir.cli.plan_report import amount, cost_cells
from weir.cli.tables import at, key, number, print_cells, print_line, print_some, text
from weir.code.generation_rules import short
from weir.ledger.code import KeptCode
from weir.views.code_plan import Change, CodePlan, FieldDifference, OtherResults, Part, StageDifference
from weir.wording import first_few, shortened

MOST_LINES: Final = 60
"""The lines of a diff that are shown."""
MOST_LEFT: Final = 10
_MOST_NAMES: Final = 5
_LONGEST_VALUE: Final = 60

_TITLES: Final = {
    Change.DIRECT: "Directly modified:",
    Change.IN_TASK: "Computed in one task with what is modified:",
    Change.NEEDED: "Not modified, and computed again since its result is gone and needed:",
    Change.INDIRECT: "Indirectly modified (computed again if an input changes):",
    Change.DECLARED: "Declared otherwise:",
    Change.ADDED: "Added:",
    Change.REMOVED: "Removed:",
}
_PARTS: Final = {
    Part.FUNCTION: "its function",
    Part.FILE: "its file",
    Part.MODULE: "its module",
    Part.REACHED: "what it reaches",
}
_COLUMNS: Final = (key("task"), text("epochs"), text("made by"), number("rows"), number("bytes"), number("seconds"))


def print_code_plan(plan: CodePlan) -> None:
    """Print what a change of a dataflow's code comes to."""
    print_line(_headline(plan))
    for change in Change:
        _print_stages(change, [each for each in plan.stages if each.change is change])
    if plan.settings:
        print_line(f"Settings: {'; '.join(map(_field, plan.settings))}.")
    if any(each.declared or each.change in _OF_DECLARATION for each in plan.stages) or plan.settings:
        print_line(_declaration(plan))
    if plan.diff:
        print_line("")
        print_some(plan.diff, MOST_LINES)
        print_line("")
    if not plan.against:
        _print_results(plan)


_OF_DECLARATION: Final = (Change.DECLARED, Change.ADDED, Change.REMOVED)


def _headline(plan: CodePlan) -> str:
    what = f"{plan.dataflow} of {plan.file}"
    if plan.against:
        return f"{what}, compared with {plan.against}: " + ("" if plan.would_rerun else "no stage differs.")
    if not plan.runs and not plan.freed:
        return f"{what}: no run of it was found, so that nothing would run again."
    if plan.clears.plans:
        return f"{what}: other code has made results of {len(plan.clears.plans)} of {plan.runs} run(s)."
    stay = ", or stay as they are" if plan.kept or plan.left else ""
    return f"{what}: all results of {plan.runs} run(s) were made by this code, or by code that is equal{stay}."


def _print_stages(change: Change, stages: list[StageDifference]) -> None:
    if not stages:
        return
    print_line(_TITLES[change])
    for each in stages:
        print_line(f"  {each.stage}{_said(each)}")
    if any(each.part is Part.MODULE for each in stages):
        print_line(
            "  (Their functions are as before; what these use of their module, or it does when it is imported, is not.)"
        )


def _said(stage: StageDifference) -> str:
    """Return what differs of a stage, after its name."""
    said = [f"what differs is not known: {stage.note}"] if stage.note else []
    said += [f"{_PARTS[stage.part]}: {first_few(stage.files, _MOST_NAMES)}"] if stage.part else []
    said += [f"declared {_field(each)}" for each in stage.declared]
    return "".join(f"{': ' if place == 0 else '; '}{each}" for place, each in enumerate(said))


def _field(each: FieldDifference) -> str:
    was, now = (shortened(json.dumps(value), _LONGEST_VALUE) for value in (each.was, each.now))
    return f"{each.field} {was} -> {now}"


def _declaration(plan: CodePlan) -> str:
    if plan.against:
        return "A changed declaration counts from the next new run on."
    return (
        f"The declaration is compared with that of {plan.newest}. A changed one counts from the next new run on: a run "
        "that has begun keeps its own until `weir run adopt RUN`."
    )


def _print_results(plan: CodePlan) -> None:
    if plan.results:
        print_line("What other code has made:")
        print_cells(_COLUMNS, map(_cells, plan.results))
    left = [f"{each.run}, {each.task}: {each.why}" for each in plan.left]
    left += [f"{each.answer.run.id}: {each.plan.impossible}" for each in plan.impossible]
    if left:
        print_line("What cannot run again:")
        print_some(left, MOST_LEFT, "  ")
    if plan.freed:
        print_line(
            f"Without a declaration, so that nothing is known of their code: {first_few(plan.freed, _MOST_NAMES)}."
        )
    for each in plan.kept:
        print_line(kept_as_they_are(each))
    for line in _cost(plan) if plan.clears.plans else ():
        print_line(line)


def kept_as_they_are(each: KeptCode) -> str:
    """Say which results stay, in a line."""
    return (
        f"{each.task} of {each.dataflow}: what {short(each.version)} has made of {each.first} to {each.last} stays "
        f"while its code is {short(each.current)}, as {each.kept_by} declared on {at(each.kept_at)}."
    )


def _cells(each: OtherResults) -> tuple[str, ...]:
    span = each.first if each.runs == 1 else f"{each.runs}: {each.first} to {each.last}"
    made_by = ", ".join(
        short(version) if number == each.runs else f"{short(version)} ({number})"
        for version, number in each.versions.items()
    )
    return (each.task, span, made_by, *cost_cells(each.again))


def _cost(plan: CodePlan) -> Iterator[str]:
    yield f"Re-run: {amount(plan.again)}."
    yield f"If their inputs change: at most {amount(plan.if_changed)}."
    if plan.readers:
        readers = ", ".join(
            f"{each.dataflow} ({each.runs} run(s), at most {amount(each.if_changed)})" for each in plan.readers
        )
        yield f"In other dataflows, if {' or '.join(plan.datasets)} changes: {readers}."
    else:
        yield "No other dataflow has read what they publish."
    if plan.can_reuse:
        yield (
            "With --reuse, a task takes rows that were made of the same instead of computing them. Which tasks do is "
            "known only when they begin."
        )

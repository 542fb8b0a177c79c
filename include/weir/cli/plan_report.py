"""Prints a recovery plan. Invariant: steps that are not shown are counted."""

from __future__ import annotations

from weir.cli.tables import key, number, print_cells, print_line, text
from weir.code.generation_rules import RepairCode, short
from weir.recovery.rules.plan import Cost, Plan, Step, StepKind, Total, total_of
from weir.recovery.rules.staleness import USUAL_CAUSES
from weir.recovery.rules.standing import Standing
from weir.units import format_size

MOST_ROWS = 40
"""The number of steps that a table shows; `--json` has all."""


def print_plan(plan: Plan, standing: Standing | None = None) -> None:
    """Print a plan: how its run stands if it is open, a table of its steps, and the cost."""
    steps = [step for step in plan.steps if step.kind is not StepKind.SPARED]
    print_line(f"{plan.run}: failover={plan.strategy}, consumers={plan.consumers}. Cause: {plan.cause}.")
    is_cleared = standing is not None and bool(standing.restarted)
    if plan.impossible and not is_cleared:
        print_line(f"This cannot be applied: {plan.impossible}.")
    if plan.failed is not None:
        print_line(f"{plan.failed} is retried by Airflow.")
    if standing is not None:
        is_well = is_cleared and not standing.command and not plan.impossible
        print_line(f"{standing} There is nothing to do: this is what that restarts." if is_well else str(standing))
    if plan.impossible and is_cleared:
        print_line(f"That fails: {plan.impossible}.")
    if not steps:
        whole = "Nothing is missing: nothing would run again. (`weir verify` reads every byte.)"
        nothing = whole if standing is None else "Of what was computed, nothing is missing."
        print_line("Nothing else would run again." if plan.failed else nothing)
    else:
        print_cells(_COLUMNS, (_cells(step, is_possible=not plan.impossible) for step in steps[:MOST_ROWS]))
    if len(steps) > MOST_ROWS:
        print_line(f"and {len(steps) - MOST_ROWS} more, which --json shows")
    for line in _totals(plan):
        print_line(line)


def amount(total: Total) -> str:
    """Return the cost of some regions as text."""
    unknown = f", {total.unknown} without history" if total.unknown else ""
    return (
        f"{total.regions} region(s), {total.rows:,} rows, {format_size(total.bytes)}, {total.seconds:,.1f} s{unknown}"
        if total.regions
        else "nothing"
    )


_COLUMNS = (key("region"), text("action"), text("why"), number("rows"), number("bytes"), number("seconds"))


def _cells(step: Step, *, is_possible: bool) -> tuple[str, ...]:
    cost, action = step.cost, str(step.kind) if is_possible else step.kind.unapplied()
    return (str(step.region), action, step.reason, *(("?", "?", "?") if cost is None else cost_cells(cost)))


def cost_cells(cost: Cost | Total) -> tuple[str, str, str]:
    """Return rows, bytes and seconds as the cells of a table."""
    return f"{cost.rows:,}", format_size(cost.bytes), f"{cost.seconds:,.1f}"


def _totals(plan: Plan) -> list[str]:
    spared = plan.spared()
    unless = ", unless an input changes" if any(step.kind is not StepKind.SPARED for step in spared) else ""
    lines = [
        f"Re-run: {amount(plan.total(StepKind.RERUN))}.",
        f"If their input changes: at most {amount(plan.total(StepKind.IF_CHANGED, StepKind.SUSPENDED))}.",
        f"Spared: {amount(total_of(step.cost for step in spared))}{unless}.",
        f"A full restart: {amount(plan.full_restart())}.",
    ]
    lines += _code(plan)
    if plan.not_deterministic:
        named = ", ".join(map(str, plan.not_deterministic))
        lines.append(f"Not deterministic before, from equal inputs: {named}. Usual causes: {USUAL_CAUSES}.")
    if plan.held_back and not plan.impossible:
        lines.append(f"Weir does not apply this automatically: {plan.held_back}. `weir plan {plan.run} --apply` does.")
    return lines


def code_of_steps(plan: Plan) -> str:
    """Return the code with which the regions run that the plan clears; empty where that is not known."""
    restarted = plan.of(StepKind.RERUN)
    if restarted and plan.code == RepairCode.NEWEST.value:
        return "what is deployed when they run"
    known = {step.region.name: step.code for step in restarted if step.code is not None}
    return ", ".join(f"{name} {short(each.code.version)} (generation {each.number})" for name, each in known.items())


def _code(plan: Plan) -> list[str]:
    code = code_of_steps(plan)
    if not code:
        return []
    if plan.code == RepairCode.NEWEST.value:
        more = "Where it makes other rows than the other subtasks of a stage have, these run again, too."
    else:
        more = "A clear in Airflow and --code newest run what is deployed: with other rows, for the whole stage."
    return [f"Code: {code}. {more}"]

"""`weir clear`: what a person does in Airflow's UI, with its plan first.

Invariant: without --apply it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import airflow_if_reached, deliver_pending
from weir.cli.documents import AsJson, print_document
from weir.cli.plan_report import print_plan
from weir.cli.tables import key, number, print_cells, print_line
from weir.code.generation_rules import RepairCode
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.recovery.clear_plans import ClearPlan, clear_by_hand, plans_of_clear, record_clears
from weir.recovery.rules.plan import StepKind
from weir.units import format_size
from weir.wording import first_few

SHOWN = 5
"""The largest number of tasks that are named of those that were not cleared."""

_RUNS = (
    key("run"),
    number("cleared"),
    number("if changed"),
    number("rows"),
    number("bytes"),
    number("seconds"),
)


def clear(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATAFLOW",
            help="A run: DATAFLOW@EPOCH, or Airflow's run id; or with --from or --to a dataflow.",
            show_default=False,
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]...",
            help="Tasks or stages, like joined or joined[1]; none: the whole run.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="The first epoch, or the day of it.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last epoch, or the day of it.")] = None,
    code: Annotated[
        RepairCode | None,
        typer.Option(
            help="The code that they run: what is deployed then, or that of their results. By default, as after a "
            "clear in Airflow.",
            show_default=False,
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Clear them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a clear of tasks restarts, in one run or in the runs of several epochs; with --apply, clear them."""
    with opened_services() as services:
        plans = plans_of_clear(services, name, tasks or (), first, last, code)
        if as_json:
            print_document(plans=[each.fields() for each in plans])
        elif len(plans) == 1:
            print_plan(plans[0].plan)
        else:
            _print_runs(plans)
        said = _cleared(services, plans, code) if apply else _not_yet(plans)
        print_line(said, Console(stderr=as_json))


def _print_runs(plans: Sequence[ClearPlan]) -> None:
    for each in plans:
        if each.plan.impossible:
            print_line(f"{each.answer.run.id}: this cannot be cleared: {each.plan.impossible}.")
    print_cells(_RUNS, map(_row, plans))


def _row(planned: ClearPlan) -> tuple[str, ...]:
    plan = planned.plan
    again, perhaps = plan.total(StepKind.RERUN), plan.total(StepKind.IF_CHANGED, StepKind.SUSPENDED)
    costs = (f"{again.rows:,}", format_size(again.bytes), f"{again.seconds:,.1f}")
    return (planned.answer.run.id, str(again.regions), str(perhaps.regions), *costs)


def _not_yet(plans: Sequence[ClearPlan]) -> str:
    count = sum(len(each.regions) for each in plans)
    return f"Nothing is cleared. With --apply, {count} task instance(s) of {len(plans)} run(s) are."


def _cleared(services: Services, plans: Sequence[ClearPlan], code: RepairCode | None) -> str:
    """Clear as a person does in Airflow; with other code than what follows from that, by Weir's own clears."""
    if code is not None:
        owed = record_clears(services, plans)
        return deliver_pending(services, owed, {each.answer.run.dataflow.name: None for each in plans})
    with airflow_if_reached("to clear them") as asked:
        if asked.airflow is None:
            raise Misconfigured.of("cli.airflow_not_reached", why=asked.why_not)
        answers = clear_by_hand(services, plans, asked.airflow, "weir: cleared by `weir clear`")
    done = [answer for _, _, answer in answers if answer.cleared]
    left = [
        f"{region} of {run.id} ({answer.state or 'waits to run'})"
        for run, region, answer in answers
        if not answer.cleared
    ]
    others = f". Not cleared: {first_few(left, SHOWN)}" if left else ""
    return f"{len(done)} task instance(s) of {len(plans)} run(s) are cleared; is the DAG unpaused?{others}"

"""`weir plan`: which regions would run again of a run, or of what has read a data set. `weir clear`: after a clear.

Invariant: without --apply they change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import airflow_if_reached, cleared_as_planned, deliver_or_tell
from weir.cli.documents import AsJson, FirstEpoch, LastEpoch, WithReuse, print_document
from weir.cli.plan_report import cost_cells, print_plan
from weir.cli.tables import key, number, print_cells, print_line
from weir.code.generation_rules import RepairCode
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.recovery.dataset_plans import plans_if_changed
from weir.recovery.questions import Question, apply_answer
from weir.recovery.rules.plan import StepKind
from weir.recovery.run_plans import (
    ClearPlan,
    FreedRun,
    RunPlan,
    freed_runs,
    have_go_on,
    plan_of,
    plans_of_clear,
)

_RUNS = (
    key("run"),
    number("re-run"),
    number("taken"),
    number("if changed"),
    number("rows"),
    number("bytes"),
    number("seconds"),
)


def plan(
    run: Annotated[
        str | None, typer.Argument(help="A run: DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)
    ] = None,
    fail: Annotated[str | None, typer.Option(help="The task that fails, like joined[1].")] = None,
    lost: Annotated[list[str] | None, typer.Option(help="A result that is lost, like clean[0].")] = None,
    code: Annotated[
        RepairCode, typer.Option(help="The code that its regions run: that of their results, or what is deployed then.")
    ] = RepairCode.AS_IT_WAS,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the plan.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also write a drawing of the run to this file.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="In place of a run: the data set DATAFLOW.SINK, and what reads it.")
    ] = None,
    epoch: Annotated[str | None, typer.Option(help="With --dataset: its epoch, or the day of it.")] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="With --dataset: it is assumed that other rows are published.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would run again in a run, now or after a failure or a loss; or in other dataflows after a change.

    With --dataset, --epoch and --changed it plans each run that has read that epoch, or what was made of it. What a
    change of code would run again, `weir code plan` shows.
    """
    if run is not None and run.endswith(".py"):
        raise Misconfigured.of("cli.plan_of_a_file", file=run)
    of_run = bool(run or fail or lost or svg or apply or code is not RepairCode.AS_IT_WAS)
    if dataset and epoch and changed and not of_run:
        _plan_readers(dataset, epoch, as_json=as_json)
        return
    if run is None or dataset or epoch or changed:
        raise Misconfigured.of("cli.plan_of_what")
    if apply and fail is not None:
        raise Misconfigured.of("cli.task_has_not_failed", fail=fail)
    with opened_services() as services:
        planned = plan_of(services, Question(run, fail, tuple(lost or ()), code), airflow_if_reached)
        owed = apply_answer(services, planned.answer) if apply and planned.answer is not None else 0
        _print(planned, as_json=as_json)
        if svg is not None:
            _draw(services, planned, svg)
        if apply:
            standing = planned.standing
            is_done = standing is None and not owed
            said = "Nothing to do." if is_done else _settle(services, planned, owed)
            print_line(said, Console(stderr=as_json))


def _plan_readers(dataset: str, epoch: str, *, as_json: bool) -> None:
    with opened_services() as services:
        found = plans_if_changed(services, dataset, epoch)
    if as_json:
        print_document(dataset=found.dataset, run=found.run, plans=found.plans)
        return
    if not found.plans:
        print_line(f"Nothing of another dataflow was made of {dataset} of {found.run}: nothing would run again.")
    for each in found.plans:
        print_plan(each)


def _print(planned: RunPlan, *, as_json: bool) -> None:
    if as_json:
        print_document(**planned.fields())
    elif planned.plan is not None:
        print_plan(planned.plan, planned.standing)
    else:
        print_line(str(planned.standing))


def _draw(services: Services, planned: RunPlan, file: Path) -> None:
    """Write the drawing of a run that has begun."""
    from weir.views.drawings import drawing_of, svg_file  # noqa: PLC0415  only a drawing needs its layout
    from weir.views.runs import planned_graph  # noqa: PLC0415

    with services.ledger.transaction() as session:
        graph = planned_graph(session, planned)
    if graph is None:
        raise Misconfigured.of("cli.nothing_to_draw", run=planned.run)
    file.write_text(svg_file(drawing_of(graph)))


def _settle(services: Services, planned: RunPlan, owed: int) -> str:
    """Clear what has stopped and deliver the clears, if Airflow can be reached; return what was done, and is left."""
    left = (
        f"{owed} clear(s) are pending; delivered by the DAG weir_upkeep (is it unpaused?), or the next task of the "
        "dataflow"
        if owed
        else "By what the ledger knows, there is nothing to clear"
    ) + f". What Airflow has given up of {planned.run} is cleared where Airflow can be asked"

    return deliver_or_tell(left, lambda airflow: have_go_on(services, planned, airflow))


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
            metavar="TASK",
            help="Tasks or stages, like joined or joined[1]; none: the whole run.",
            show_default=False,
        ),
    ] = None,
    first: FirstEpoch = None,
    last: LastEpoch = None,
    code: Annotated[
        RepairCode | None,
        typer.Option(
            help="The code that they run: what is deployed then, or that of their results. By default, as after a "
            "clear in Airflow.",
            show_default=False,
        ),
    ] = None,
    reuse: WithReuse = False,
    apply: Annotated[bool, typer.Option("--apply", help="Clear them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a clear of tasks restarts, in one run or in the runs of several epochs; with --apply, clear them."""
    if reuse:
        code = code or RepairCode.NEWEST  # a clear of Weir's, not of a person's
    with opened_services() as services:
        plans = plans_of_clear(services, name, tasks or (), first, last, code)
        freed = freed_runs(services, name, first, last)
        never = next((each.answer.run for each in plans if not each.answer.run.dataflow.reuses_any), None)
        if reuse and never is not None:
            raise Misconfigured.of("cli.nothing_reused", run=never.id)
        if freed and (tasks or code is not None):
            raise Misconfigured.of("cli.clear_of_freed_run", run=freed[0].id)
        if as_json:
            print_document(plans=[each.fields() for each in plans], freed=[each.id for each in freed])
        elif len(plans) == 1:
            print_plan(plans[0].plan)
        elif plans:
            _print_runs(plans)
        for each in () if as_json else freed:
            print_line(
                f"{each.id} has no declaration: all that Airflow has of it is cleared, and runs as the DAG is now."
            )
        said = cleared_as_planned(services, plans, freed, code, "weir clear") if apply else _not_yet(plans, freed)
        print_line(said, Console(stderr=as_json))


def _print_runs(plans: Sequence[ClearPlan]) -> None:
    for each in plans:
        if each.plan.impossible:
            print_line(f"{each.answer.run.id}: this cannot be cleared: {each.plan.impossible}.")
    print_cells(_RUNS, map(_row, plans))


def _row(planned: ClearPlan) -> tuple[str, ...]:
    plan = planned.plan
    again, perhaps = plan.total(StepKind.RERUN), plan.total(StepKind.IF_CHANGED, StepKind.SUSPENDED)
    taken = sum(bool(step.takes) for step in plan.steps)
    return (planned.answer.run.id, str(again.regions), str(taken), str(perhaps.regions), *cost_cells(again))


def _not_yet(plans: Sequence[ClearPlan], freed: Sequence[FreedRun]) -> str:
    some = [f"{sum(len(each.regions) for each in plans)} task instance(s) of {len(plans)} run(s)"] if plans else []
    whole = [f"{len(freed)} whole run(s)"] if freed else []
    return f"Nothing is cleared. With --apply, {' and '.join(some + whole)} are."

"""`weir failovers` and `weir why`: recorded failovers, and the history of a task. Invariant: they change nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from weir.cli.airflow_api import airflow_if_reached
from weir.cli.documents import AsJson, print_document
from weir.cli.plan_report import amount, code_of_steps
from weir.cli.tables import at, print_line
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.ledger.attempts import said_of_taken
from weir.recovery.failovers import FailoverKind
from weir.recovery.past_failovers import PastFailover
from weir.recovery.rules.plan import StepKind
from weir.views.code import CodeOfStage
from weir.views.documents import plain
from weir.views.failovers import FailoverWeek, failover_views, weeks_of
from weir.views.tasks import SourceRead, TaskView, task_details

_SHOWN = 300
"""How much of what a source reads is printed."""


def failovers(
    dataflow: Annotated[
        str | None, typer.Argument(help="Only this dataflow, or this run: DATAFLOW@EPOCH.", show_default=False)
    ] = None,
    epoch: Annotated[str | None, typer.Argument(help="Only this epoch.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show failovers: what was lost, which regions ran again, which were spared, and the cost."""
    if dataflow is not None and epoch is None:
        dataflow, _, epoch = dataflow.partition("@")
    with opened_services() as services, services.ledger.transaction() as session:
        found = failover_views(session, dataflow, epoch or None)
    if as_json:
        print_document(failovers=found, weeks=weeks_of(found))
        return
    if not found:
        print_line("No failover is recorded.")
    for each in found:
        _print_failover(each)
    for week in weeks_of(found):
        if week.failovers:
            _print_week(week)


def why(
    task: Annotated[str, typer.Argument(help="A task id, or TASK[SUBTASK].", show_default=False)],
    run: Annotated[str, typer.Option("--run", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show why a task ran repeatedly, its code, and what its sources read: attempts, failures, clears, and inputs.

    It also says what a clear of it in Airflow would restart; of a run that is open, why it is, and what to do.
    """
    with opened_services() as services:
        found = task_details(services, run, task, airflow_if_reached)
    if as_json:
        print_document(**plain(found))
        return
    for each in found.tasks:
        _print_task(each)
    if found.if_cleared is not None:
        print_line(f"If it is cleared in Airflow: {found.if_cleared.summary()}.")
    if found.standing is not None:
        print_line(str(found.standing))


def _print_task(task: TaskView) -> None:
    print_line(task.region)
    for read in task.sources:
        print_line(f"  {_source(read)}")
        if read.position is not None:
            print_line(f"  {_range(read)}")
        if read.late is not None:
            print_line(f"  {read.stage}: its files have changed since they were read. {read.late}")
    for code in task.code:
        print_line(f"  {_code(code)}")
    for event in task.events:
        print_line(f"  {at(event.at)}  {event.text}")
        for detail in event.details:
            print_line(f"    {detail}")


def _source(read: SourceRead) -> str:
    """Say what a source reads: by the split's own text where it has one."""
    split = read.split
    told = split["reads"] if isinstance(split, dict) and "reads" in split else json.dumps(split)
    corrected = f" (generation {read.generation}: corrected as files came late)" if read.generation > 1 else ""
    line = f"{read.stage} reads {told}{corrected}"
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}... (--json shows all)"


def _range(read: SourceRead) -> str:
    """Say from where to where a source that goes on reads."""
    position = read.position or {}
    ends = json.dumps(position["value"]) if "value" in position else f"{position['file']} ({position['bytes']} bytes)"
    line = f"{read.stage} goes on from {read.since or 'its beginning'}, and ends at {ends}"
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}... (--json shows all)"


def _code(found: CodeOfStage) -> str:
    """Name the one code of a stage; all of them where it is not valid for that."""
    if found.by_subtask:
        each = ", ".join(f"[{subtask}] {short(version)}" for subtask, version in found.by_subtask.items())
        return f"code of {found.stage}: several, so that it is not valid: {each}"
    if found.opened_by is None:
        return f"code of {found.stage}: {short(found.version)}"
    return (
        f"code of {found.stage}: {short(found.version)}, archive {str(found.archive)[:16]}, generation "
        f"{found.generation}, opened by {found.opened_by}"
    )


def _print_week(week: FailoverWeek) -> None:
    held_back = f" ({week.held_back} held back)" if week.held_back else ""
    print_line(
        f"Week {week.week}: {week.incidents} incident(s), {week.failovers} failover(s){held_back}; recomputed "
        f"{amount(week.recomputed)}; {week.spared} region(s) spared of a full restart: {amount(week.full_restart)}"
    )


def _print_failover(failover: PastFailover) -> None:
    plan = failover.plan
    asked = "by a person" if failover.kind is FailoverKind.BY_HAND else "nothing had failed yet"
    failed = asked if failover.failed is None else f"{failover.failed}, attempt {failover.attempt}"
    incident = f", of incident {failover.incident}" if failover.incident != failover.id else ""
    print_line(
        f"{at(failover.decided_at)}  failover {failover.id}{incident} ({failover.kind.value}): {failover.run}, {failed}"
    )
    print_line(f"  cause: {failover.cause or 'none recorded'}")
    if failover.labels:
        print_line("  labels: " + ", ".join(f"{key}={value}" for key, value in failover.labels.items()))
    is_held_back = failover.kind is FailoverKind.HELD_BACK
    if is_held_back:
        print_line(f"  held back: {plan.impossible or plan.held_back}")
    code = code_of_steps(plan)
    for kind in StepKind:
        steps = plan.of(kind)
        if steps and kind is not StepKind.SPARED:
            action = kind.unapplied() if is_held_back else kind
            print_line(f"  {action}: {', '.join(str(step.region) for step in steps)}")
    if code:
        print_line(f"  code: {code}")
    print_line(f"  spared: {failover.spared} region(s)")
    so_far = "" if failover.is_over else " so far"
    print_line(f"  recomputed{so_far}: {amount(failover.recomputed)}; a full restart: {amount(plan.full_restart())}")
    for task, attempt in failover.taken.items():
        print_line(f"  {task}: {said_of_taken(attempt)}")
    for differing in failover.not_deterministic:
        print_line(f"  not deterministic: {differing}. Usual causes: {failover.usual_causes}")

"""`weir failovers` and `weir why`: recorded failovers, and the history of a task. Invariant: they change nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.plan_report import amount, code_of_steps
from weir.cli.tables import print_line
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.recovery.rules.plan import StepKind
from weir.recovery.rules.staleness import USUAL_CAUSES

if TYPE_CHECKING:
    from datetime import datetime

    from weir.recovery.failovers import FailoverReport
    from weir.recovery.history import Event, SourceRead
    from weir.views.code import CodeOfStage

_SHOWN = 300
"""How much of what a source reads is printed."""


def failovers(
    dataflow: Annotated[
        str | None, typer.Argument(help="Only this dataflow, or this run: DATAFLOW@EPOCH.", show_default=False)
    ] = None,
    epoch: Annotated[str | None, typer.Argument(help="Only this epoch.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show failovers: what was lost, which regions ran again, which were spared, and the cost."""
    from weir.recovery.failovers import failover_reports  # noqa: PLC0415  SQLAlchemy is slow to import

    if dataflow is not None and epoch is None:
        dataflow, _, epoch = dataflow.partition("@")
    with opened_services() as services, services.ledger.transaction() as session:
        found = failover_reports(session, dataflow, epoch or None)
    if as_json:
        print(json.dumps({"version": 1, "failovers": [each.to_json() for each in found]}))
        return
    if not found:
        print_line("No failover is recorded.")
    for each in found:
        _print_failover(each)


def why(
    task: Annotated[str, typer.Argument(help="A task id, or TASK[SUBTASK].", show_default=False)],
    run: Annotated[str, typer.Option("--run", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show why a task ran repeatedly, its code, and what its sources read: attempts, failures, clears, and inputs.

    Of a run that is open, it also says why, and what to do.
    """
    from weir.cli.airflow_api import standing_named  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.runs import run_if_known  # noqa: PLC0415  as above
    from weir.recovery.history import HasNotBegun, events_of, sources_of_task, task_history  # noqa: PLC0415  as above
    from weir.views.code import code_of_task  # noqa: PLC0415

    with opened_services() as services:
        with services.ledger.transaction() as session:
            row = run_if_known(session, run)
            name = "" if row is None else row.id
        standing = standing_named(services, name, run)
        try:
            with services.ledger.transaction() as session:
                found = [
                    (
                        str(each.region),
                        code_of_task(session, each.run, each.region.name),
                        sources_of_task(session, each.run, each.region),
                        events_of(session, each),
                    )
                    for each in task_history(session, run, task)
                ]
        except Misconfigured as error:
            if standing is None or (name and not isinstance(error, HasNotBegun)):
                raise
            raise Misconfigured(f"{error if name else f'no task of run {run} has begun'}. {standing}") from error
    if as_json:
        told = None if standing is None else standing.to_json()
        print(json.dumps({"version": 1, "tasks": [_task_json(*each) for each in found], "standing": told}))
        return
    for region, code, sources, events in found:
        print_line(region)
        for read in sources:
            print_line(f"  {_cut(str(read))}")
        for each in code:
            print_line(f"  {_code(each)}")
        for event in events:
            _print_event(event)
    if standing is not None:
        print_line(str(standing))


def _cut(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}... (--json shows all)"


def _task_json(region: str, code: list[CodeOfStage], sources: list[SourceRead], events: list[Event]) -> dict[str, Any]:
    """Return JSON values; times are in UTC, ISO 8601."""
    told = [{"at": each.at.isoformat(), "text": each.text, "details": list(each.details)} for each in events]
    return {
        "region": region,
        "code": [asdict(each) for each in code],
        "sources": [asdict(each) for each in sources],
        "events": told,
    }


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


def _print_failover(story: FailoverReport) -> None:
    row, plan = story.row, story.plan
    asked = "by a person" if story.kind.value == "by hand" else "nothing had failed yet"
    failed = f"{row.region}[{row.subtask}], attempt {row.attempt}" if row.region else asked
    incident = f", of incident {row.incident}" if row.incident else ""
    print_line(f"{_at(row.decided_at)}  failover {row.id}{incident} ({story.kind.value}): {row.run}, {failed}")
    print_line(f"  cause: {row.cause or 'none recorded'}")
    if row.labels:
        print_line("  labels: " + ", ".join(f"{key}={value}" for key, value in row.labels.items()))
    is_held_back = story.kind.value == "held back"
    if is_held_back:
        print_line(f"  held back: {plan.impossible or plan.held_back}")
    code = code_of_steps(plan)
    for kind in StepKind:
        steps = plan.of(kind)
        if steps and kind is not StepKind.SPARED:
            action = kind.unapplied() if is_held_back else kind
            print_line(f"  {action}: {', '.join(str(each.region) for each in steps)}")
    if code:
        print_line(f"  code: {code}")
    print_line(f"  spared: {story.spared} region(s)")
    so_far = "" if story.is_over else " so far"
    print_line(f"  recomputed{so_far}: {amount(story.recomputed)}; a full restart: {amount(plan.full_restart())}")
    for finding in story.findings:
        print_line(f"  not deterministic: {finding}. Usual causes: {USUAL_CAUSES}")


def _print_event(event: Event) -> None:
    print_line(f"  {_at(event.at)}  {event.text}")
    for detail in event.details:
        print_line(f"    {detail}")


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"

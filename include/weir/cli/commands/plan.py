"""`weir plan`: which regions would run again.

Invariant: without --apply it changes nothing. The engine that decides in production answers, also for a job graph that
Weir can run; for any other job graph Flink's algorithm does, and the command says so.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.job_graph_plan import plan_of_job_graph
from weir.cli.plan_report import print_plan
from weir.cli.tables import print_line
from weir.code.generation_rules import RepairCode
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.flink.job_graph_file import TaskFailure, read_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir.coordination.airflow import AirflowStates
    from weir.coordination.services import Services
    from weir.recovery.rules.plan import Plan
    from weir.recovery.rules.standing import Standing

_OF_A_GRAPH = (
    "asks about a job graph (--topology), and a run keeps what its dataflow declared: leave it out. To change that, "
    "declare it in Dataflow(...)"
)


def plan(
    run: Annotated[
        str | None, typer.Argument(help="A run: DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)
    ] = None,
    topology: Annotated[
        Path | None, typer.Option(help="Instead of a run: a job graph as JSON; - for standard input.", allow_dash=True)
    ] = None,
    fail: Annotated[str | None, typer.Option(help="The task that fails, like joined[1]; join#1 in a graph.")] = None,
    lost: Annotated[
        list[str] | None, typer.Option(help="A result that is lost, like clean[0]; a->b:0#2 in a graph.")
    ] = None,
    consumers: Annotated[
        Consumers | None,
        typer.Option(help="In a graph: when consumers run again.", show_default=Consumers.IF_CHANGED.value),
    ] = None,
    strategy: Annotated[
        FailoverStrategy | None,
        typer.Option(help="In a graph: which tasks restart.", show_default=FailoverStrategy.REGION.value),
    ] = None,
    code: Annotated[
        RepairCode | None,
        typer.Option(
            help="In a run: the code that its regions run, that of their results or what is deployed then.",
            show_default=RepairCode.AS_IT_WAS.value,
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the plan of a run.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Show what would run again: in a run, now or after a failure or a loss, or in a job graph."""
    if (run is None) is (topology is None):
        raise Misconfigured("name what to plan: a run, `weir plan DATAFLOW@EPOCH`, or a job graph, `--topology FILE`")
    if topology is not None:
        _refuse({"--code": code, "--apply": apply}, "asks about a run, and a job graph has none: leave it out")
        chosen = (consumers or Consumers.IF_CHANGED, strategy or FailoverStrategy.REGION)
        _plan_graph(topology, fail, lost or [], *chosen, as_json=as_json)
    elif run is not None:
        _refuse({"--consumers": consumers, "--strategy": strategy}, _OF_A_GRAPH)
        _plan_run(run, fail, lost or [], code or RepairCode.AS_IT_WAS, is_applied=apply, as_json=as_json)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse the options that were given and would be ignored."""
    for name, value in given.items():
        if value:
            raise Misconfigured(f"{name} {why}")


def _plan_run(
    run: str, fail: str | None, lost: list[str], code: RepairCode, *, is_applied: bool, as_json: bool
) -> None:
    from weir.cli.airflow_api import standings_now  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.recovery.questions import Question, apply_answer, ask  # noqa: PLC0415  as above

    if is_applied and fail is not None:
        raise Misconfigured(
            f"{fail} has not failed: --apply recomputes what the run misses now. Leave --fail out, or clear {fail} in "
            "Airflow"
        )
    is_now = fail is None and not lost
    with opened_services() as services:
        standing, answer, owed = _of_not_begun(services, run) if is_now else None, None, 0
        name = "" if standing is None else standing.run
        if not name:
            answer = ask(services, Question(run, fail, tuple(lost), code))
            name = answer.run.id
            standing = standings_now(services, [name]).get(name) if is_now else None
            owed = apply_answer(services, answer) if is_applied else 0
        plan = None if answer is None else answer.plan
        if plan is not None and plan.impossible and standing is not None and standing.behind is None:
            standing = replace(standing, command="")  # the plan says what helps
        _print(name, plan, standing, as_json=as_json)
        if is_applied:
            said = "Nothing to do." if standing is None and not owed else _settle(services, name, owed, standing)
            print_line(said, Console(stderr=as_json))


def _of_not_begun(services: Services, name: str) -> Standing | None:
    """Return how a run stands of which no task has begun, so that there is no plan; None of any other one."""
    from weir.cli.airflow_api import standing_named  # noqa: PLC0415  as above
    from weir.ledger.runs import run_if_known  # noqa: PLC0415  as above

    with services.ledger.transaction() as session:
        row = run_if_known(session, name)
        begun = row is not None and row.pinned is not None
        run = "" if row is None else row.id
    if begun:
        return None
    return standing_named(services, run, name)


def _print(run: str, plan: Plan | None, standing: Standing | None, *, as_json: bool) -> None:
    if as_json:
        told = {"run": run} if plan is None else plan.to_json()
        print(json.dumps({**told, "standing": None if standing is None else standing.to_json()}))
    elif plan is not None:
        print_plan(plan, standing)
    else:
        print_line(str(standing))


def _settle(services: Services, run: str, owed: int, standing: Standing | None) -> str:
    """Clear what has stopped and deliver the clears, if Airflow can be reached; return what was done, and is left."""
    from weir.cli.airflow_api import deliver_or_tell, what_was_cleared  # noqa: PLC0415
    from weir.ledger.runs import dataflow_of  # noqa: PLC0415
    from weir.recovery.pending_clears import deliver  # noqa: PLC0415
    from weir.recovery.standing import clear_stopped, pending_of  # noqa: PLC0415

    left = (
        f"{owed} clear(s) are pending; delivered by the DAG weir_upkeep (is it unpaused?), or the next task of the "
        "dataflow"
        if owed
        else "By what the ledger knows, there is nothing to clear"
    ) + f". What Airflow has given up of {run} is cleared where Airflow can be asked"

    def delivered(airflow: AirflowStates) -> str:
        skipped = clear_stopped(services, run, standing, airflow)
        pending = pending_of(services, run)
        done = what_was_cleared(deliver(services, airflow, dataflow_of(run)), pending)
        if not pending and not skipped:
            command = "" if standing is None else standing.root.command
            return f"Nothing of {run} has stopped, so nothing is cleared" + (f". Next: {command}" if command else "")
        again = f"; {skipped} that were skipped are cleared, too" if skipped else ""
        return f"{done}{again}; is its DAG unpaused?"

    return deliver_or_tell(left, delivered)


def _plan_graph(
    topology: Path,
    fail: str | None,
    lost: list[str],
    consumers: Consumers,
    strategy: FailoverStrategy,
    *,
    as_json: bool,
) -> None:
    asked = read_topology(_text(topology))
    if lost and not fail:
        raise Misconfigured("name the task that does not find the partition: --fail TASK --lost PARTITION")
    if len(lost) > 1:
        raise Misconfigured("in a job graph one partition is lost at a time: give --lost once")
    failures = (TaskFailure(fail, lost[0] if lost else None),) if fail else asked.failures
    if not failures:
        raise Misconfigured(f"{topology} names no `failures`: name the task that fails, --fail TASK")
    found = plan_of_job_graph(asked, failures, consumers, strategy)
    if as_json:
        print(json.dumps(found.answer))
    else:
        for restart in found.answer["restarts"]:
            _print_report(restart)
    if found.note():
        print_line(found.note(), Console(stderr=as_json))


def _text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the topology {path} cannot be read: {error}") from error


def _print_report(restart: dict[str, Any]) -> None:
    lost = f", which does not find {restart['lost']}" if restart["lost"] else ""
    lines = [
        f"{restart['task']} fails{lost}",
        f"  will re-run: {_regions(restart['regions'])}",
        f"  will re-run if what they read changes: {_regions(restart['if_changed']['regions'])}",
        f"  spared: {restart['spared']} task(s)",
    ]
    if restart["by_hand"]["regions"]:
        lines.insert(2, f"  to be cleared by hand first: {_regions(restart['by_hand']['regions'])}")
    print_line("\n".join(lines))


def _regions(regions: list[list[str]]) -> str:
    return ", ".join("+".join(members) for members in regions) or "none"

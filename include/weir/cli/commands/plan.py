"""`weir plan`: which regions would run again. Invariant: without --apply it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from weir.cli.airflow_api import airflow_if_reached, deliver_or_tell, standing_named, what_was_cleared
from weir.cli.documents import print_document
from weir.cli.options import AsJson
from weir.cli.plan_report import print_plan
from weir.cli.tables import print_line
from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import AirflowStates
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Message, Misconfigured
from weir.ledger.runs import run_if_known
from weir.recovery.questions import Answer, Question, apply_answer, ask
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.rules.standing import Stand, Standing
from weir.recovery.standing import clear_stopped


def plan(
    run: Annotated[str, typer.Argument(help="A run: DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    fail: Annotated[str | None, typer.Option(help="The task that fails, like joined[1].")] = None,
    lost: Annotated[list[str] | None, typer.Option(help="A result that is lost, like clean[0].")] = None,
    code: Annotated[
        RepairCode, typer.Option(help="The code that its regions run: that of their results, or what is deployed then.")
    ] = RepairCode.AS_IT_WAS,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would run again in a run, now or after a failure or a loss."""
    if apply and fail is not None:
        raise Misconfigured(Message("cli.task_has_not_failed", fail=fail))
    is_now = fail is None and not lost
    with opened_services() as services:
        standing, answer, owed = _of_not_begun(services, run) if is_now else None, None, 0
        name = "" if standing is None else standing.run
        if not name:
            answer = _asked(services, Question(run, fail, tuple(lost or ()), code))
            name = answer.run.id
            standing = standing_named(services, name, name) if is_now else None
            owed = apply_answer(services, answer) if apply else 0
            answer, standing = _of_cleared(services, answer, standing)
        decided = None if answer is None else answer.plan
        if decided is not None and decided.impossible and standing is not None and standing.behind is None:
            standing = replace(standing, command="")  # the plan says what helps
        _print(name, decided, standing, as_json=as_json)
        if apply:
            said = "Nothing to do." if standing is None and not owed else _settle(services, name, owed, standing)
            print_line(said, Console(stderr=as_json))


def _asked(services: Services, question: Question) -> Answer:
    """Plan; a state that Weir does not recompute may be that of a task which a person has cleared, as Airflow knows."""
    answer = ask(services, question)
    if not answer.plan.impossible:
        return answer
    with airflow_if_reached() as asked:
        airflow = asked.airflow
        return answer if airflow is None else ask(services, question, lambda: airflow)


def _of_not_begun(services: Services, name: str) -> Standing | None:
    """Return how a run stands of which no task has begun, so that there is no plan; None of any other one."""
    with services.ledger.transaction() as session:
        row = run_if_known(session, name)
        begun = row is not None and row.pinned is not None
        run = "" if row is None else row.id
    if begun:
        return None
    return standing_named(services, run, name)


def _of_cleared(services: Services, answer: Answer, standing: Standing | None) -> tuple[Answer, Standing | None]:
    """Where nothing is missing of a published run, answer what Airflow computes again of it, or does by its command.

    It does not go on by itself where something is missing, too, or where what was cleared cannot be computed.
    """
    if standing is None or not standing.restarted:
        return answer, standing
    stopped = standing if standing.stand is Stand.RED else replace(standing, stand=Stand.STOPPED)
    if answer.plan.of(StepKind.RERUN):
        return answer, replace(stopped, command=standing.command or f"`weir plan {answer.run.id} --apply`")
    cleared = tuple(each.region for each in standing.restarted)
    again = _asked(services, Question(answer.run.id, code=RepairCode.NEWEST, cleared=cleared))
    return again, stopped if again.plan.impossible else standing


def _print(run: str, plan: Plan | None, standing: Standing | None, *, as_json: bool) -> None:
    if as_json:
        told = {"run": run} if plan is None else plan.to_json()
        print_document(**told, standing=standing)
    elif plan is not None:
        print_plan(plan, standing)
    else:
        print_line(str(standing))


def _settle(services: Services, run: str, owed: int, standing: Standing | None) -> str:
    """Clear what has stopped and deliver the clears, if Airflow can be reached; return what was done, and is left."""
    left = (
        f"{owed} clear(s) are pending; delivered by the DAG weir_upkeep (is it unpaused?), or the next task of the "
        "dataflow"
        if owed
        else "By what the ledger knows, there is nothing to clear"
    ) + f". What Airflow has given up of {run} is cleared where Airflow can be asked"

    def delivered(airflow: AirflowStates) -> str:
        cleared = clear_stopped(services, run, standing, airflow)
        pending, skipped = cleared.pending, cleared.others
        done = what_was_cleared(cleared.delivered, pending)
        if not pending and not skipped:
            command = "" if standing is None else standing.root.command
            why = "" if standing is not None and standing.stopped else " has stopped, so nothing"
            return f"Nothing of {run}{why} is cleared" + (f". Next: {command}" if command else "")
        again = f"; {skipped} that were skipped are cleared, too" if skipped else ""
        return f"{done}{again}; is its DAG unpaused?"

    return deliver_or_tell(left, delivered)

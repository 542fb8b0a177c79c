"""What would run again of a run, and how it stands: what `weir plan` prints and the page of a run shows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import AirflowStates
from weir.coordination.services import Services
from weir.ledger.names import as_epoch
from weir.ledger.runs import run_if_known
from weir.recovery.questions import Answer, Question, ask
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.rules.standing import Stand, Standing
from weir.recovery.standing import Asked, standing_to_tell, unknown_standings
from weir.topology.ids import RunId

Reach = Callable[[], AbstractContextManager[Asked]]
"""Gives Airflow, or why it cannot be asked."""


def reaching(airflow: AirflowStates) -> Reach:
    """Return what gives Airflow where it can be asked in this process."""
    return lambda: nullcontext(Asked(airflow=airflow))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What would run again of a run, and how it stands.

    `plan` is None of a run of which no task has begun; else `answer` gives it again, and is what is applied: they
    differ where Airflow computes again what is missing nowhere. `standing` is None where there is nothing to say of it,
    or something else was asked.
    """

    run: str
    answer: Answer | None
    plan: Plan | None
    standing: Standing | None

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        told = {"run": self.run} if self.plan is None else self.plan.to_json()
        return {**told, "standing": self.standing}


def plan_of(services: Services, question: Question, reach: Reach) -> RunPlan:
    """Plan, and say how the run stands unless a failure or a loss is assumed. It changes nothing.

    Raises as `weir.recovery.questions.ask`.
    """
    is_now = question.fail is None and not question.lost
    standing = _of_not_begun(services, question.run, reach) if is_now else None
    if standing is not None:
        return RunPlan(run=standing.run, answer=None, plan=None, standing=standing)
    answer = _asked(services, question, reach)
    standing = standing_named(services, answer.run.id, answer.run.id, reach) if is_now else None
    shown, standing = _of_cleared(services, question, answer, standing, reach)
    if shown.plan.impossible and standing is not None and standing.behind is None:
        standing = replace(standing, command="")  # the plan says what helps
    return RunPlan(run=answer.run.id, answer=answer, plan=shown.plan, standing=standing)


def _asked(services: Services, question: Question, reach: Reach) -> Answer:
    """Plan; a state that Weir does not recompute may be that of a task which a person has cleared, as Airflow knows."""
    answer = ask(services, question)
    if not answer.plan.impossible:
        return answer
    with reach() as asked:
        airflow = asked.airflow
        return answer if airflow is None else ask(services, question, lambda: airflow)


def _of_not_begun(services: Services, name: str, reach: Reach) -> Standing | None:
    """Return how a run stands of which no task has begun, so that there is no plan; None of any other one."""
    with services.ledger.transaction() as session:
        row = run_if_known(session, name)
        begun = row is not None and row.pinned is not None
        run = "" if row is None else row.id
    return None if begun else standing_named(services, run, name, reach)


def _of_cleared(
    services: Services, question: Question, answer: Answer, standing: Standing | None, reach: Reach
) -> tuple[Answer, Standing | None]:
    """Where nothing is missing of a published run, answer what Airflow computes again of it, or does by its command.

    It does not go on by itself where something is missing, too, or where what was cleared cannot be computed.
    """
    if standing is None or not standing.restarted:
        return answer, standing
    stopped = standing if standing.stand is Stand.RED else replace(standing, stand=Stand.STOPPED)
    if answer.plan.of(StepKind.RERUN):
        return answer, replace(stopped, command=standing.command or f"`weir plan {answer.run.id} --apply`")
    cleared = tuple(each.region for each in standing.restarted)
    again = _asked(services, replace(question, code=RepairCode.NEWEST, cleared=cleared), reach)
    return again, stopped if again.plan.impossible else standing


def standing_named(services: Services, run: str, name: str, reach: Reach) -> Standing | None:
    """Return how a run stands that is open, runs again or is red; None of another one.

    `run` is its id; empty for one that the ledger does not know.
    """
    with reach() as asked:
        return standing_to_tell(services, RunId(run), asked) if run else _unknown_named(services, name, asked)


def _unknown_named(services: Services, name: str, asked: Asked) -> Standing | None:
    """Return how a run stands that the ledger does not know: DATAFLOW@EPOCH, DATAFLOW@DAY, or Airflow's run id."""
    of_day = as_epoch(name)
    is_of = "@" in name
    found = unknown_standings(services, asked, name.partition("@")[0] if is_of else None)
    named = [each for run, each in found if name == run.run_id or (is_of and run.id.startswith(of_day))]
    return named[0] if len(named) == 1 else None

"""A task as a person asks about it: its history, how its run stands, and what a clear of it would restart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from weir.coordination.services import Services
from weir.errors import Message, Misconfigured
from weir.ledger.runs import run_if_known
from weir.recovery.rules.plan import Plan
from weir.recovery.rules.standing import Standing
from weir.recovery.run_plans import Acts, Reach, plan_of_clear, standing_named
from weir.views.tasks import HasNotBegun, TaskView, task_history, task_view


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetails:
    """Task instances. `standing` is how their run stands, None if it is published.

    `if_cleared` is what a clear of them in Airflow would restart, by what the ledger knows, and `acts` what is cleared
    then; None of a run that is not pinned.
    """

    tasks: tuple[TaskView, ...]
    standing: Standing | None
    if_cleared: Plan | None
    acts: Acts | None

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def task_details(services: Services, run: str, task: str, reach: Reach) -> TaskDetails:
    """Return the task instances that `task` names in a run, by subtask. It changes nothing.

    Raises Misconfigured for an unknown run or task and names similar ones, HasNotBegun, and as planning does.
    """
    with services.ledger.transaction() as session:
        row = run_if_known(session, run)
        name, is_pinned = ("", False) if row is None else (row.id, row.pinned is not None)
    standing = standing_named(services, name, run, reach)
    try:
        with services.ledger.transaction() as session:
            history = task_history(session, run, task)
            tasks = tuple(task_view(session, each) for each in history)
    except Misconfigured as error:
        if standing is None or (name and not isinstance(error, HasNotBegun)):
            raise
        detail = error if name else f"no task of run {run} has begun"
        raise HasNotBegun(Message("views.nothing_to_explain", detail=detail, standing=standing)) from error
    regions = [each.region for each in history]
    plan, acts = plan_of_clear(services, name, regions) if is_pinned else (None, None)
    return TaskDetails(tasks=tasks, standing=standing, if_cleared=plan, acts=acts)

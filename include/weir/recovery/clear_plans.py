"""Plans what a person's clear of tasks restarts, in one run or in the runs of several epochs, and carries it out.

Invariant: planning changes nothing; and nothing is cleared of any run where one of them cannot compute what is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import AirflowStates, ClearAnswer, ClearItem
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.ledger.clears import task_of
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.names import as_digits, require_dataflow
from weir.ledger.runs import Run, named_run, run_by_id, runs_of
from weir.recovery.questions import Answer, Question, apply_answer, ask, regions_named
from weir.recovery.rules.plan import Plan
from weir.recovery.run_plans import Acts, acts_of
from weir.topology.regions import RegionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearPlan:
    """What a clear of some regions of a run restarts, and what is done if it is carried out."""

    answer: Answer
    regions: tuple[RegionId, ...]
    acts: Acts

    @property
    def plan(self) -> Plan:
        """The plan, by what the ledger knows."""
        return self.answer.plan

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        return {**self.plan.to_json(), "acts": self.acts}


def plan_of_clear(
    services: Services, run: str, regions: Iterable[RegionId], code: RepairCode = RepairCode.NEWEST
) -> ClearPlan:
    """Plan what a clear of some tasks of a run restarts, by what the ledger knows. Raises as `weir plan`."""
    named = tuple(regions)
    answer = ask(services, Question(run, code=code, cleared=named, looks=False))
    with services.ledger.transaction() as session:
        return ClearPlan(answer=answer, regions=named, acts=acts_of(session, answer.run.id, answer.plan))


def plans_of_clear(
    services: Services,
    name: str,
    tasks: Sequence[str] = (),
    first: str | None = None,
    last: str | None = None,
    code: RepairCode | None = None,
) -> tuple[ClearPlan, ...]:
    """Plan a clear of tasks of a run, or of all runs of a dataflow from an epoch to another one, oldest first.

    A task is a region or a stage of it, with its subtask or without: all of them. Without any, it is the whole run.
    `code` is what the dataflow runs after a clear in Airflow, unless it is given. Raises Misconfigured for names that
    there are not, and as `weir plan`.
    """
    with services.ledger.transaction() as session:
        runs = [run_by_id(session, each.id) for each in _runs(session, name, first, last)]
    return tuple(
        plan_of_clear(services, run.id, dict.fromkeys(_regions(run, tasks)), code or run.dataflow.repair_code)
        for run in runs
    )


def _runs(session: Session, name: str, first: str | None, last: str | None) -> list[RunRow]:
    if first is None and last is None:
        if session.get(DataflowRow, name) is not None:
            raise Misconfigured.of("recovery.clear_of_which_epochs", dataflow=name)
        return [named_run(session, name)]
    require_dataflow(session, name)
    since, until = as_digits(first or ""), as_digits(last or "")
    there = [row for row in runs_of(session, name) if row.has_dag_run and row.pinned is not None]
    found = [row for row in there if row.epoch >= since and (row.epoch <= until or row.epoch.startswith(until))]
    if not found:
        known = f"{there[0].epoch} to {there[-1].epoch}" if there else "none"
        raise Misconfigured.of("recovery.no_run_between", dataflow=name, first=first, last=last, known=known)
    return found


def _regions(run: Run, tasks: Sequence[str]) -> Iterator[RegionId]:
    if not tasks:
        yield from (*run.topology.region_ids(), CLOSE)
    for task in tasks:
        yield from regions_named(run, task)


def clear_by_hand(
    services: Services, plans: Sequence[ClearPlan], airflow: AirflowStates, note: str
) -> list[tuple[Run, RegionId, ClearAnswer]]:
    """Clear the tasks in Airflow as a person does there, each with `note`, and return its answers.

    One that runs, or has no state yet, is not cleared. Raises Misconfigured where a run cannot compute what is asked,
    or the account may not clear its tasks, and Retryable.
    """
    _require_possible(plans)
    asked = [(each.answer.run, region) for each in plans for region in each.regions]
    with services.ledger.transaction() as session:
        items = [_item(session, run, region, note) for run, region in asked]
    wanted = [
        replace(seen.item, expected_try=seen.try_number, is_skipped=seen.state == "skipped")
        for seen in airflow.inspect(items)
    ]
    return [(*of, answer) for of, answer in zip(asked, airflow.clear(wanted), strict=True)]


def _item(session: Session, run: Run, region: RegionId, note: str) -> ClearItem:
    task_id, index = task_of(session, run, region)
    return ClearItem(run.dag_id, run.run_id, task_id, index, None, note=note)


def record_clears(services: Services, plans: Sequence[ClearPlan]) -> int:
    """Record clears with the code of their plans, which are delivered later, and return their number.

    Raises Misconfigured as above, and Conflict if a run has changed since it was planned: those before it are recorded.
    """
    _require_possible(plans)
    return sum(apply_answer(services, each.answer) for each in plans)


def _require_possible(plans: Sequence[ClearPlan]) -> None:
    for each in plans:
        if each.plan.impossible:
            run = each.answer.run
            raise Misconfigured.of("recovery.input_is_lost_for_good", run_id=run.id, impossible=each.plan.impossible)

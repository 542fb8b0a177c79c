"""A run as a person sees it first: one sentence, its graph, what would run again, and its failovers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Message, Misconfigured
from weir.execution.late_files import LateFiles
from weir.ledger.database.tables import RunRow
from weir.ledger.publications import published_versions
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.ledger.sources import late_of
from weir.recovery.past_failovers import PastFailover, failovers_of_run, tasks_counted, told
from weir.recovery.questions import Question
from weir.recovery.rules.plan import SHOWN, Plan, StepKind
from weir.recovery.run_plans import Reach, RunPlan, plan_of
from weir.views.graphs import RunGraph, SubtaskStatus, counted, graph_of
from weir.wording import first_few

_URGENT: Final = (
    SubtaskStatus.STALE,
    SubtaskStatus.LOST,
    SubtaskStatus.QUARANTINED,
    SubtaskStatus.FAILED,
)
"""What the sentence names of a run that is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """A run. `published` are the newest versions of its sinks; times are in UTC.

    `sentence` says how it stands, for a person who has just been woken. `plan` is that of `weir plan`, by what the
    ledger knows, or (`looked_at`: when) with a look at each result in the store. `late` has, by source, what has become
    of the files since it had read them.
    """

    run: str
    dataflow: str
    epoch: str
    interval: tuple[datetime, datetime]
    dag_id: str
    run_id: str
    closed_at: datetime | None
    published: Mapping[str, int]
    sentence: str
    counts: Mapping[str, int]
    graph: RunGraph | None
    plan: Mapping[str, Any]
    looked_at: datetime | None
    failovers: tuple[PastFailover, ...]
    late: Mapping[str, LateFiles]


def run_details(services: Services, question: Question, reach: Reach) -> RunDetails:
    """Return a run by name, with the plan that answers the question. It changes nothing.

    Raises Misconfigured for a run that the ledger does not know, and as `weir.recovery.run_plans.plan_of`.
    """
    planned = plan_of(services, question, reach)
    with services.ledger.transaction() as session:
        row = session.get(RunRow, planned.run)
        if row is None:
            raise Misconfigured(Message("views.run_not_begun", standing=planned.standing))
        graph = planned_graph(session, planned)
        failovers = failovers_of_run(session, row.id)
        published = published_versions(session, row.id)
        statuses = () if graph is None else [each.status for region in graph.regions for each in region.subtasks]
        counts = {status.value: count for status, count in counted(statuses).items()}
        late = late_of(session, row.id)
        sentence = _sentence(planned, counts, told(session, failovers) if failovers else "", published)
        return RunDetails(
            run=row.id,
            dataflow=row.dataflow,
            epoch=row.epoch,
            interval=(row.interval_start, row.interval_end),
            dag_id=row.dag_id,
            run_id=row.run_id,
            closed_at=row.closed_at,
            published=published,
            sentence=" ".join([sentence, *(_late(source, each) for source, each in late.items())]),
            counts=counts,
            graph=graph,
            plan=planned.fields(),
            looked_at=services.now() if question.looks else None,
            failovers=tuple(failovers),
            late=late,
        )


def planned_graph(session: Session, planned: RunPlan) -> RunGraph | None:
    """Return the graph of a run, in which what the plan has found missing is lost; None where nothing has begun."""
    if planned.answer is None:
        return None
    run = run_by_id(session, planned.answer.run.id)
    return graph_of(session, run, run_state(session, run), planned.answer.failure.losses.keys())


def _late(source: str, late: LateFiles) -> str:
    return f"Files of source {source} have changed since they were read: {late}."


def _missing(plan: Plan) -> str:
    """Say what a published run misses, which nobody has recomputed yet."""
    again = plan.of(StepKind.RERUN)
    named = first_few([each.region for each in again], SHOWN)
    rest = "apply the plan, or let the next task that needs them do so"
    tasks, spared = tasks_counted(len(again)), len(plan.spared())
    return f"Results are missing. {tasks} would run again ({named}), {spared} spared: {rest}."


def _sentence(
    planned: RunPlan,
    counts: Mapping[str, int],
    repaired: str,
    published: Mapping[str, int],
) -> str:
    if planned.standing is not None:
        return str(planned.standing)
    if planned.plan is not None and planned.plan.of(StepKind.RERUN):
        return _missing(planned.plan)
    urgent = ", ".join(f"{counts[each.value]} {each.value}" for each in _URGENT if each.value in counts)
    versions = ", ".join(f"{sink} v{version}" for sink, version in published.items())
    well = f"published ({versions})" if versions else "closed"
    if urgent:
        return f"It is {well}, and has results that are not in order: {urgent}. A task that needs them recomputes them."
    return f"It is {well}. {repaired}" if repaired else f"It is {well}; nothing had to be repaired."

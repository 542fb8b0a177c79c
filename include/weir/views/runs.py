"""The runs of dataflows: the state of their results, what could not begin, and one run as a person sees it first.

Which dataflows and runs of the ledger belong to a DAG and a DagRun of Airflow is answered here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import groupby
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.late_files import LateFiles
from weir.execution.run_state import CLOSE, RunState
from weir.ledger.attempts import Origin
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, DataflowRow, FailedBeginRow, HousekeepingRow, RunRow
from weir.ledger.failed_begins import failed_begins, region_of_begin
from weir.ledger.housekeeping import CAUGHT_UP
from weir.ledger.names import require_dataflow
from weir.ledger.publications import published_versions
from weir.ledger.runs import run_by_id, run_key, runs_of
from weir.ledger.snapshot import run_state
from weir.ledger.sources import late_counts, late_of
from weir.recovery.past_failovers import PastFailover, failovers_of_run, tasks_counted, told
from weir.recovery.questions import Question
from weir.recovery.rules.plan import SHOWN, Plan, StepKind
from weir.recovery.run_plans import Reach, RunPlan, plan_of
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.views.graphs import RunGraph, SubtaskStatus, counted, graph_of
from weir.wording import first_few


class Pin(Enum):
    """Whether a run is pinned to a dataflow, so that its regions are known."""

    NOT_BEGUN = "not begun"
    TO_COME = "to be pinned again"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class RegionCounts:
    """How many regions of a run have which results; and the regions that have failed for good."""

    valid: int
    stale: int
    missing: int
    failed: tuple[RegionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run of Airflow, the state of its results, and the regions of which no try was registered since one failed.

    `regions` is None where they are not known. `deleted_tries` are those of a DagRun that was deleted, in whose place
    this one has come, or that Airflow has lost. `run` is its id in the ledger; empty if it has none. `name` is what a
    command is given: Airflow's run id, which runs of other dataflows may have, only where another DagRun has the epoch.
    `late_files` have come, changed or gone since its sources had read them.
    """

    dataflow: str
    epoch: str
    run_id: str
    pin: Pin = Pin.NOT_BEGUN
    regions: RegionCounts | None = None
    run: str = ""
    name: str = ""
    not_begun: tuple[RegionId, ...] = ()
    published: Mapping[str, int] = field(default_factory=dict)
    deleted_tries: int = 0
    late_files: int = 0


@dataclass(frozen=True, slots=True)
class LostCommits:
    """A dataflow of which the ledger had lost commits, and when it caught up with the store; None if it has not yet."""

    dataflow: str
    caught_up_at: datetime | None


def lost_commits(session: Session, dataflow: str | None = None) -> list[LostCommits]:
    """Return of which dataflows the ledger has lost commits, or had."""
    query = (
        select(DataflowRow.name, DataflowRow.is_behind, HousekeepingRow.done_at)
        .outerjoin(HousekeepingRow, (HousekeepingRow.scope == DataflowRow.name) & (HousekeepingRow.job == CAUGHT_UP))
        .where(DataflowRow.is_behind | HousekeepingRow.done_at.is_not(None))
        .order_by(DataflowRow.name)
    )
    found = session.execute(query if dataflow is None else query.where(DataflowRow.name == dataflow)).tuples()
    return [LostCommits(name, None if is_behind else at) for name, is_behind, at in found]


def run_overviews(
    session: Session, dataflow: str | None = None, newest: int | None = None
) -> tuple[list[RunOverview], int]:
    """Return the runs of one dataflow or of all, by dataflow and epoch, and how many older ones were left out.

    `newest` is how many of each dataflow are wanted; all those of which no task could begin are. Raises Misconfigured
    for a dataflow that the ledger does not know.
    """
    known, failed = runs_of(session, dataflow), failed_begins(session, dataflow)
    if dataflow is not None and not known and not failed:
        require_dataflow(session, dataflow)
    by_dataflow = (list(rows) for _, rows in groupby(known, lambda row: row.dataflow))
    rows = [row for each in by_dataflow for row in (each if newest is None else each[-newest:])]
    deleted, late = _deleted_tries(session, [row.id for row in rows]), late_counts(session, dataflow)
    found = [
        replace(
            _overview(session, row, failed.pop((row.dataflow, row.dag_id, row.run_id), [])),
            deleted_tries=deleted.get(row.id, 0),
            late_files=late[row.id],
        )
        for row in rows
    ]
    owned = {row.id for row in known}
    found += [
        RunOverview(
            dataflow=each[0].dataflow,
            epoch=each[0].epoch or "",
            run_id=run_id,
            name=_name_of(each[0], owned),
            not_begun=tuple(sorted(map(region_of_begin, each))),
        )
        for (*_, run_id), each in failed.items()
    ]
    return sorted(found, key=lambda each: (each.dataflow, each.epoch, each.run_id)), len(known) - len(rows)


def _deleted_tries(session: Session, runs: Collection[str]) -> dict[str, int]:
    query = (
        select(AttemptRow.run, func.count())
        .where(AttemptRow.run.in_(runs), ~AttemptRow.is_of_dag_run, AttemptRow.origin != Origin.RESTORED.value)
        .group_by(AttemptRow.run)
    )
    return dict(session.execute(query).tuples().all())


def _name_of(row: FailedBeginRow, owned: Collection[str]) -> str:
    run = None if row.epoch is None else run_key(row.dataflow, row.epoch)
    return row.run_id if run is None or run in owned else run


def _overview(session: Session, row: RunRow, failed: Sequence[FailedBeginRow]) -> RunOverview:
    newest = (
        select(AttemptRow.task_id, AttemptRow.map_index, func.max(AttemptRow.try_number))
        .where(AttemptRow.run == row.id)
        .group_by(AttemptRow.task_id, AttemptRow.map_index)
    )
    tries = {(task_id, index): number for task_id, index, number in session.execute(newest)} if failed else {}
    has_begun = session.scalar(select(AttemptRow.id).where(AttemptRow.run == row.id).limit(1)) is not None
    unpinned = Pin.TO_COME if has_begun else Pin.NOT_BEGUN
    still = (each for each in failed if tries.get((each.task_id, each.map_index), 0) < each.try_number)
    return RunOverview(
        dataflow=row.dataflow,
        epoch=row.epoch,
        run_id=row.run_id,
        pin=unpinned if row.pinned is None else Pin.PINNED,
        regions=None if row.pinned is None else _counts(run_state(session, run_by_id(session, row.id))),
        run=row.id,
        name=row.id,
        not_begun=tuple(sorted(map(region_of_begin, still))),
        published=published_versions(session, row.id),
    )


def _counts(state: RunState) -> RegionCounts:
    written = [outputs for region in state.topology.region_ids() if (outputs := state.topology.outputs(region))]
    valid = sum(all(state.is_done(each) for each in outputs) for outputs in written)
    stale = sum(
        all(each in state.results for each in outputs) and not all(state.is_valid(each) for each in outputs)
        for outputs in written
    )
    failed = tuple(each for each in (*state.topology.region_ids(), CLOSE) if state.region(each).has_failed)
    return RegionCounts(valid, stale, len(written) - valid - stale, failed)


def dataflows_of_dag(session: Session, dag_id: str) -> list[str]:
    """Return the dataflows of which a DAG has runs: more than one where it has groups of tasks for each."""
    query = select(RunRow.dataflow).where(RunRow.dag_id == dag_id).distinct().order_by(RunRow.dataflow)
    return list(session.scalars(query))


def runs_of_dag_run(session: Session, dag_id: str, run_id: str) -> list[RunId]:
    """Return the runs that a DagRun computes, one for each dataflow of its DAG."""
    query = select(RunRow.id).where(RunRow.dag_id == dag_id, RunRow.run_id == run_id).order_by(RunRow.id)
    return list(session.scalars(query))


def dag_runs_of(session: Session, dag_id: str, dataflow: str) -> dict[RunId, str]:
    """Return the ids that the runs of a dataflow have in Airflow, of those of this DAG."""
    query = select(RunRow.id, RunRow.run_id).where(RunRow.dag_id == dag_id, RunRow.dataflow == dataflow)
    return dict(session.execute(query).tuples().all())


def run_of_task(session: Session, dag_id: str, run_id: str, task_id: str) -> RunId | None:
    """Return the run that a task of a DagRun belongs to, by the group of its id; None where the ledger has none.

    A run of which every try failed before it was registered has the name by which such tries are found.
    """
    query = select(RunRow.id, RunRow.task_prefix).where(RunRow.dag_id == dag_id, RunRow.run_id == run_id)
    of = {run: prefix for run, prefix in session.execute(query).tuples() if task_id.startswith(prefix)}
    if not of:
        return _run_never_begun(session, dag_id, run_id, task_id)
    return max(of, key=lambda run: len(of[run]))


def _run_never_begun(session: Session, dag_id: str, run_id: str, task_id: str) -> RunId | None:
    query = select(FailedBeginRow.dataflow, FailedBeginRow.epoch).where(
        FailedBeginRow.dag_id == dag_id, FailedBeginRow.run_id == run_id, FailedBeginRow.task_id == task_id
    )
    for dataflow, epoch in session.execute(query.limit(1)).tuples():
        return RunId(run_id) if epoch is None else run_key(dataflow, epoch)
    return None


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
            raise Misconfigured.of("views.run_not_begun", standing=planned.standing)
        graph = planned_graph(session, planned)
        failovers = failovers_of_run(session, row.id)
        published = published_versions(session, row.id)
        statuses = () if graph is None else [each.status for region in graph.regions for each in region.subtasks]
        counts = {status.value: count for status, count in counted(statuses).items()}
        late = late_of(session, row.id)
        sentence = _sentence(planned, counts, told(session, failovers) if failovers else "", published)
        changed = (
            f"Files of source {source} have changed since they were read: {each}." for source, each in late.items()
        )
        return taken(
            RunDetails,
            row,
            run=row.id,
            interval=(row.interval_start, row.interval_end),
            published=published,
            sentence=" ".join([sentence, *changed]),
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

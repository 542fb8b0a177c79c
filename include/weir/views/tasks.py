"""Task instances as a person asks about them: their history, how their run stands, and what a clear would restart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.generation_rules import short
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.late_files import LateFiles
from weir.execution.run_state import ReadResult
from weir.ledger.attempts import awaited_by, name_of_try, said_of_taken, taken_from
from weir.ledger.clears import clears_of_run
from weir.ledger.database.tables import (
    AttemptRow,
    FailedBeginRow,
    FailoverRow,
    PendingClearRow,
    RunRow,
)
from weir.ledger.failed_begins import failed_begins_named, failed_begins_of, region_of_begin
from weir.ledger.names import unknown_run, unknown_task
from weir.ledger.reads import reads_of
from weir.ledger.results import findings_of
from weir.ledger.runs import run_if_known, topology_of
from weir.ledger.sources import all_splits_of, corrections_of, late_of, ranges_of
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.rules.staleness import USUAL_CAUSES
from weir.recovery.rules.standing import Standing
from weir.recovery.run_plans import Acts, Reach, plan_of_clear, standing_named
from weir.topology.regions import RegionId, Topology
from weir.views.code import CodeOfStage, code_of_task
from weir.wording import first_few

Row = TypeVar("Row", AttemptRow, PendingClearRow)

_TASK = re.compile(r"^(?P<task>[^\[\]]+)(\[(?P<index>\d{1,9})\])?$")

_NEVER_BEGAN: Final = (
    "Airflow took it back: on a busy machine its scheduler takes its own tasks for orphaned (LocalExecutor with a pool "
    "of more slots than parallelism, or a low scheduler_health_check_threshold), its process was killed at its start, "
    "or it was cleared while it was queued. Or the ledger was rebuilt since"
)


SHOWN = 5
"""The largest number of partitions of a stage in a line."""


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The attempts and clears of a region, oldest first, and its newest try that was never registered.

    `run` is its id in the ledger; empty if the run has not begun.
    """

    region: RegionId
    run: str
    attempts: tuple[AttemptRow, ...]
    clears: tuple[PendingClearRow, ...]
    failed_begins: tuple[FailedBeginRow, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a task instance; `details` are lines of text."""

    at: datetime
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What a task reads from outside: the split of a source, which all attempts of the run read.

    `generation` counts how often that was corrected, from 1 on; `late` is what has become of its files since. Of a
    source that goes on, `since` is the run at whose position its range begins (empty: the first), and `position` where
    the range ends, as the run's record has it.
    """

    stage: str
    split: Any
    since: str = ""
    position: dict[str, Any] | None = None
    generation: int = 1
    late: LateFiles | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task instance: its code, what its sources read, and its events, oldest first."""

    region: str
    code: tuple[CodeOfStage, ...]
    sources: tuple[SourceRead, ...]
    events: tuple[Event, ...]


class HasNotBegun(Misconfigured):
    """No try of a task is recorded: there is no history."""


def sources_of_task(session: Session, run: str, region: RegionId) -> list[SourceRead]:
    """Return what the sources of a region read, where that is resolved already."""
    row = session.get(RunRow, run)
    splits = all_splits_of(session, run)
    if row is None or row.pinned is None or not splits:
        return []
    stages = topology_of(row.pinned).stages_of(region.name)
    ranges, corrections, late = ranges_of(session, run), corrections_of(session, run), late_of(session, run)
    return [
        SourceRead(
            each.name,
            split,
            found.base if found else "",
            found.position if found else None,
            corrections[each.name].generation if each.name in corrections else 1,
            late.get(each.name),
        )
        for each in stages
        for split in splits.get(each.name, [])[region.subtask : region.subtask + 1]
        for found in [ranges.get(each.name)]
    ]


def task_view(session: Session, history: TaskHistory) -> TaskView:
    """Return a task instance with this history."""
    return TaskView(
        region=str(history.region),
        code=tuple(code_of_task(session, history.run, history.region.name)),
        sources=tuple(sources_of_task(session, history.run, history.region)),
        events=tuple(events_of(session, history)),
    )


def task_history(session: Session, run: str, task: str) -> list[TaskHistory]:
    """Return the history of `task` ("joined", or "joined[1]" for one map index) in a run, by subtask.

    Raises Misconfigured for an unknown run or task, and names similar ones.
    """
    row, found = run_if_known(session, run), _TASK.match(task)
    failed = (
        failed_begins_named(session, run)
        if row is None
        else failed_begins_of(session, row.dataflow, row.dag_id, row.run_id)
    )
    if row is None and not failed:
        raise unknown_run(session, run)
    own = "" if row is None else row.id
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == own).order_by(AttemptRow.try_number)))
    clears = clears_of_run(session, own)
    rows: list[AttemptRow | PendingClearRow] = [*attempts, *clears]
    known = {RegionId(each.region, each.subtask): each.task_id for each in rows}
    known |= {region_of_begin(each): each.task_id for each in failed}
    name = found["task"] if found else task
    index = int(found["index"]) if found and found["index"] else None
    topology = None if row is None or row.pinned is None else topology_of(row.pinned)
    regions = [
        region
        for region, task_id in sorted(known.items())
        if (name in (task_id, region.name) or name in _stages(topology, region)) and index in (None, region.subtask)
    ]
    if not regions:
        prefix = "" if row is None else row.task_prefix
        raise _no_history(run, task.removeprefix(prefix), topology, known)
    return [
        TaskHistory(
            region,
            own,
            _of(region, attempts),
            _of(region, clears),
            tuple(each for each in failed if region_of_begin(each) == region),
        )
        for region in regions
    ]


def _stages(topology: Topology | None, region: RegionId) -> tuple[str, ...]:
    return topology.region(region.name).stages if topology is not None and topology.knows(region) else ()


def _no_history(run: str, task: str, topology: Topology | None, begun: Iterable[RegionId]) -> Misconfigured:
    """Return the error about a task of which nothing is recorded."""
    names = {region.name for region in begun}
    name = task.partition("[")[0]
    later = [] if topology is None else [each for each in topology.regions if each.name not in names]
    for each in () if topology is None else topology.regions:
        if name in (each.name, *each.stages) and each.name in names:
            subtask = task.removeprefix(name).strip("[]")
            return Misconfigured.of(
                "views.subtask_unknown", each=each.name, run=run, subtask=subtask, parallelism=each.parallelism - 1
            )
    if any(name in (each.name, *each.stages) for each in later):
        return HasNotBegun.of("views.task_not_begun", task=task, run=run)
    known = sorted({*names, *(each.name for each in later)})
    return unknown_task(run, task, name, known)


def _of(region: RegionId, rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(each for each in rows if (each.region, each.subtask) == (region.name, region.subtask))


def events_of(session: Session, history: TaskHistory) -> list[Event]:
    """Return the events of a task instance, oldest first."""
    run = history.run
    events = [
        *_never_begun(history),
        *(event for row in history.attempts for event in _attempt(session, run, row)),
        *(_clear(session, row) for row in history.clears),
        *_failovers(session, run, history),
        *(_failed_begin(row) for row in history.failed_begins),
    ]
    return sorted(events, key=lambda event: event.at)


def _never_begun(history: TaskHistory) -> Iterator[Event]:
    """Return the tries that Airflow has counted and of which nothing is recorded, each at the time of the next one.

    Of those that failed before they were registered only the newest is.
    """
    last = max((row.try_number for row in history.failed_begins), default=0)
    for row in sorted((each for each in history.attempts if each.is_of_dag_run), key=lambda each: each.try_number):
        if row.try_number > last + 1:
            first, newest = last + 1, row.try_number - 1
            tries = f"try {first}" if first == newest else f"tries {first} to {newest}"
            yield Event(row.began_at, f"{tries}: ended before it was registered", (_NEVER_BEGAN,))
        last = max(last, row.try_number)


def _failed_begin(row: FailedBeginRow) -> Event:
    what = f"try {row.try_number}: failed before it was registered"
    return Event(row.failed_at, what, (f"{row.failure}: {row.error}",))


def _attempt(session: Session, run: str, row: AttemptRow) -> Iterator[Event]:
    took = "" if row.ended_at is None else f" after {(row.ended_at - row.began_at).total_seconds():.1f} s"
    details = [f"{row.failure or 'failure'}: {row.error or 'no message'}"] if row.failure or row.error else []
    details += [awaited] if (awaited := awaited_by(row)) else []
    if taken := taken_from(row):
        details.append(said_of_taken(taken))
    if row.labels:
        details.append("labels: " + ", ".join(f"{key}={value}" for key, value in row.labels.items()))
    if row.code and row.archive:
        number = "" if row.generation is None else f" (generation {row.generation})"
        details.append(f"code {short(row.code)}{number}, archive {row.archive[:16]}")
    details += _reads(reads_of(session, row.id, run))
    details += [f"not deterministic: {each}. Usual causes: {USUAL_CAUSES}" for each in findings_of(session, [row.id])]
    yield Event(
        row.began_at,
        f"{name_of_try(row)} ({row.origin}): {row.state}{took}, attempt {row.id}",
        tuple(details),
    )


def _reads(reads: tuple[ReadResult, ...]) -> list[str]:
    """Describe the partitions that were read of each stage, with their attempts."""
    lines = []
    in_order = sorted(reads, key=lambda read: (read.partition.run, read.partition.stage, read.partition.subtask))
    for (of, stage), group in groupby(in_order, key=lambda read: (read.partition.run, read.partition.stage)):
        named = dict.fromkeys(f"[{read.partition.subtask}] of {read.attempt}" for read in group)
        lines.append(f"read {stage}{first_few([*named], SHOWN)}" + (f", in run {of}" if of else ""))
    return lines


def _clear(session: Session, row: PendingClearRow) -> Event:
    failover = None if row.failover is None else session.get(FailoverRow, row.failover)
    asked = "" if failover is None else f", by failover {failover.id}"
    asked += "" if row.code is None else f", to run the {row.code} code"
    is_of_deleted = row.is_void and row.expected_try < 1
    named = "a deleted DagRun's try" if is_of_deleted else f"try {row.expected_try}"
    return Event(row.created_at, f"clear of {named}{asked}: {row.outcome or 'pending'}", (row.reason,))


def _failovers(session: Session, run: str, history: TaskHistory) -> Iterator[Event]:
    """Return the failovers of the task instance's failures, and those that waited for a repair of it."""
    name = str(history.region)
    for row in session.scalars(select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id)):
        plan = Plan.from_json(row.plan)
        incident = f", of incident {row.incident}" if row.incident else ""
        if (row.region, row.subtask) == (history.region.name, history.region.subtask):
            joined = ", ".join(str(step.region) for step in plan.of(StepKind.JOINED))
            details = [f"held back: {plan.impossible or plan.held_back}"] if plan.impossible or plan.held_back else []
            details += [f"regions that it waits for: {joined}"] if joined else []
            yield Event(row.decided_at, f"failover {row.id}{incident}: {plan.summary()}", tuple(details))
        elif any(str(step.region) == name for step in plan.of(StepKind.JOINED)):
            failed = f"{row.region}[{row.subtask}]" if row.region else "a person"
            yield Event(row.decided_at, f"failover {row.id}{incident} of {failed} waited for it")


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
        raise HasNotBegun.of("views.nothing_to_explain", detail=detail, standing=standing) from error
    regions = [each.region for each in history]
    cleared = plan_of_clear(services, name, regions) if is_pinned else None
    plan, acts = (None, None) if cleared is None else (cleared.plan, cleared.acts)
    return TaskDetails(tasks=tasks, standing=standing, if_cleared=plan, acts=acts)

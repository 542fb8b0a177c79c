"""Reports the history of runs and task instances, and non-deterministic results (DESIGN 9.1).

Invariant: it changes nothing in the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.execution.run_state import ReadResult, RunState
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, PublicationRow, ResultRow, RunRow
from weir.ledger.reads import reads_of
from weir.ledger.runs import named_run, run_by_id, runs_of
from weir.ledger.snapshot import run_state
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.rules.staleness import USUAL_CAUSES
from weir.topology.ids import run_ref
from weir.topology.regions import RegionId

Row = TypeVar("Row", AttemptRow, PendingClearRow)

_TASK = re.compile(r"^(?P<task>[^\[\]]+)(\[(?P<index>\d+)\])?$")

SHOWN = 5
"""The largest number of partitions of a stage in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run, with the numbers of its regions whose results are valid, stale or missing."""

    id: str
    dataflow: str
    epoch: str
    dag_id: str
    run_id: str
    is_pinned: bool
    valid: int
    stale: int
    missing: int
    published: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The attempts and clears of a region, oldest first."""

    region: RegionId
    attempts: tuple[AttemptRow, ...]
    clears: tuple[PendingClearRow, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a task instance; `details` are lines of text."""

    at: datetime
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotDeterministic:
    """A non-deterministic result: that of `attempt` differs from that of `differs_from`, of equal inputs and code."""

    run: str
    stage: str
    subtask: int
    attempt: str
    differs_from: str

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] of {self.attempt} differs from that of {self.differs_from}"


def run_overviews(session: Session, dataflow: str | None = None) -> list[RunOverview]:
    """Return all runs, of one dataflow or of all, by dataflow and epoch."""
    return [_overview(session, row) for row in runs_of(session, dataflow)]


def _overview(session: Session, row: RunRow) -> RunOverview:
    valid, stale, missing = (0, 0, 0)
    if row.pinned is not None:
        valid, stale, missing = _counts(run_state(session, run_by_id(session, row.id)))
    return RunOverview(
        id=row.id,
        dataflow=row.dataflow,
        epoch=row.epoch,
        dag_id=row.dag_id,
        run_id=row.run_id,
        is_pinned=row.pinned is not None,
        valid=valid,
        stale=stale,
        missing=missing,
        published=_published(session, row.id),
    )


def _counts(state: RunState) -> tuple[int, int, int]:
    written = [outputs for region in state.topology.region_ids() if (outputs := state.topology.outputs(region))]
    valid = sum(all(state.is_done(each) for each in outputs) for outputs in written)
    stale = sum(
        all(each in state.results for each in outputs) and not all(state.is_valid(each) for each in outputs)
        for outputs in written
    )
    return valid, stale, len(written) - valid - stale


def _published(session: Session, run: str) -> dict[str, int]:
    query = (
        select(PublicationRow.sink, func.max(PublicationRow.version))
        .where(PublicationRow.run == run, PublicationRow.published_at.is_not(None))
        .group_by(PublicationRow.sink)
        .order_by(PublicationRow.sink)
    )
    return dict(session.execute(query).tuples().all())


def task_history(session: Session, run: str, task: str) -> list[TaskHistory]:
    """Return the history of `task` ("joined", or "joined[1]" for one map index) in a run, by subtask.

    Raises Misconfigured for an unknown run or task, and names the known ones.
    """
    row, found = named_run(session, run), _TASK.match(task)
    name = found["task"] if found else task
    index = int(found["index"]) if found and found["index"] else None
    tries = select(AttemptRow).where(AttemptRow.run == row.id).order_by(AttemptRow.try_number)
    attempts = list(session.scalars(tries))
    clears = list(
        session.scalars(select(PendingClearRow).where(PendingClearRow.run == row.id).order_by(PendingClearRow.id))
    )
    known: dict[RegionId, str] = {}
    rows: list[AttemptRow | PendingClearRow] = [*attempts, *clears]
    for each in rows:
        known[RegionId(each.region, each.subtask)] = each.task_id
    regions = [
        region
        for region, task_id in sorted(known.items())
        if name in (task_id, region.name) and index in (None, region.subtask)
    ]
    if not regions:
        raise Misconfigured(
            f"the ledger has no task {task} in run {row.id}: it has not begun there, or has another name. "
            f"Known are {', '.join(str(region) for region in sorted(known)) or 'none yet'}"
        )
    return [TaskHistory(region, _of(region, attempts), _of(region, clears)) for region in regions]


def _of(region: RegionId, rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(each for each in rows if (each.region, each.subtask) == (region.name, region.subtask))


def events_of(session: Session, run: str, history: TaskHistory) -> list[Event]:
    """Return the events of a task instance, oldest first."""
    events = [
        *(event for row in history.attempts for event in _attempt(session, run, row)),
        *(_clear(session, row) for row in history.clears),
        *_failovers(session, run, history),
    ]
    return sorted(events, key=lambda event: event.at)


def _attempt(session: Session, run: str, row: AttemptRow) -> Iterator[Event]:
    took = "" if row.ended_at is None else f" after {(row.ended_at - row.began_at).total_seconds():.1f} s"
    details = [f"{row.failure or 'failure'}: {row.error or 'no message'}"] if row.failure or row.error else []
    if row.labels:
        details.append("labels: " + ", ".join(f"{key}={value}" for key, value in row.labels.items()))
    details += _reads(reads_of(session, row.id, run))
    details += [f"not deterministic: {each}. Usual causes: {USUAL_CAUSES}" for each in findings_of(session, [row.id])]
    yield Event(
        row.began_at,
        f"try {row.try_number} ({row.origin}): {row.state}{took}, attempt {row.id}",
        tuple(details),
    )


def _reads(reads: tuple[ReadResult, ...]) -> list[str]:
    """Describe the partitions that were read of each stage, with their attempts."""
    lines = []
    in_order = sorted(reads, key=lambda read: (read.partition.run, read.partition.stage, read.partition.subtask))
    for (of, stage), group in groupby(in_order, key=lambda read: (read.partition.run, read.partition.stage)):
        named = dict.fromkeys(f"[{read.partition.subtask}] of {read.attempt}" for read in group)
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        lines.append(f"read {stage}{', '.join(list(named)[:SHOWN])}{more}" + (f", in run {of}" if of else ""))
    return lines


def _clear(session: Session, row: PendingClearRow) -> Event:
    failover = None if row.failover is None else session.get(FailoverRow, row.failover)
    asked = "" if failover is None else f", by failover {failover.id}"
    return Event(row.created_at, f"clear of try {row.expected_try}{asked}: {row.outcome or 'pending'}", (row.reason,))


def _failovers(session: Session, run: str, history: TaskHistory) -> Iterator[Event]:
    """Return the failovers of the task instance's failures, and those that waited for a repair of it."""
    name = str(history.region)
    for row in session.scalars(select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id)):
        plan = Plan.from_json(row.plan)
        incident = f", of incident {row.incident}" if row.incident else ""
        if (row.region, row.subtask) == (history.region.name, history.region.subtask):
            joined = ", ".join(str(step.region) for step in plan.of(StepKind.JOINED))
            details = [f"held back: {plan.impossible or plan.held_back}"] if plan.impossible or plan.held_back else []
            details += [f"joined regions that run already: {joined}"] if joined else []
            yield Event(row.decided_at, f"failover {row.id}{incident}: {plan.summary()}", tuple(details))
        elif any(str(step.region) == name for step in plan.of(StepKind.JOINED)):
            failed = f"{row.region}[{row.subtask}]" if row.region else "a person"
            yield Event(row.decided_at, f"failover {row.id}{incident} of {failed} waited for it")


def findings_of(session: Session, attempts: Collection[str]) -> tuple[NotDeterministic, ...]:
    """Return the non-deterministic results of attempts, once for each stage and subtask."""
    query = (
        select(ResultRow)
        .where(ResultRow.attempt.in_(attempts), ResultRow.differs_from.is_not(None))
        .order_by(ResultRow.id)
    )
    found = (
        NotDeterministic(row.run, row.stage, row.subtask, row.attempt, row.differs_from or "")
        for row in session.scalars(query)
    )
    return tuple(dict.fromkeys(found))


def not_deterministic_regions(session: Session, runs: Collection[str], current: str) -> frozenset[RegionId]:
    """Return the regions of `runs` with non-deterministic results; those of `current` have no run."""
    query = (
        select(AttemptRow.run, AttemptRow.region, AttemptRow.subtask)
        .join(ResultRow, ResultRow.attempt == AttemptRow.id)
        .where(AttemptRow.run.in_(runs), ResultRow.differs_from.is_not(None))
    )
    return frozenset(
        RegionId(region, subtask, run_ref(run, current)) for run, region, subtask in session.execute(query)
    )

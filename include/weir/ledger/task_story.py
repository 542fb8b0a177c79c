"""The story of one task instance, in order: why it ran as often as it did. Invariant: it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.findings import findings_of
from weir.ledger.models import AttemptRow, FailoverRow, OwedClearRow
from weir.ledger.overview import TaskHistory
from weir.ledger.reads import reads_of
from weir.recovery.plan import Plan, StepKind
from weir.recovery.run_state import ReadResult
from weir.recovery.staleness import USUAL_CAUSES

SHOWN = 5
"""How many partitions of one stage a line names."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task instance; `details` say more, a line each."""

    at: datetime
    text: str
    details: tuple[str, ...] = ()


def story_of(session: Session, run: str, history: TaskHistory) -> list[Event]:
    """All that happened to a task instance, oldest first."""
    events = [
        *(event for row in history.attempts for event in _attempt(session, run, row)),
        *(_clear(session, row) for row in history.clears),
        *_failovers(session, run, history),
    ]
    return sorted(events, key=lambda event: event.at)


def _attempt(session: Session, run: str, row: AttemptRow) -> Iterator[Event]:
    took = "" if row.ended_at is None else f" after {(row.ended_at - row.began_at).total_seconds():.1f} s"
    details = [f"{row.failure or 'failure'}: {row.error or 'nothing was said'}"] if row.failure or row.error else []
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
    """What was read of each stage, and which attempts had made it."""
    lines = []
    in_order = sorted(reads, key=lambda read: (read.partition.run, read.partition.stage, read.partition.subtask))
    for (of, stage), group in groupby(in_order, key=lambda read: (read.partition.run, read.partition.stage)):
        named = dict.fromkeys(f"[{read.partition.subtask}] of {read.attempt}" for read in group)
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        lines.append(f"read {stage}{', '.join(list(named)[:SHOWN])}{more}" + (f", in run {of}" if of else ""))
    return lines


def _clear(session: Session, row: OwedClearRow) -> Event:
    failover = None if row.failover is None else session.get(FailoverRow, row.failover)
    asked = "" if failover is None else f", by failover {failover.id}"
    return Event(
        row.created_at, f"clear of try {row.expected_try}{asked}: {row.outcome or 'still owed'}", (row.reason,)
    )


def _failovers(session: Session, run: str, history: TaskHistory) -> Iterator[Event]:
    """The decisions that it asked for, and those that waited for a repair of it."""
    name = str(history.region)
    for row in session.scalars(select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id)):
        plan = Plan.from_json(row.plan)
        incident = f", of incident {row.incident}" if row.incident else ""
        if (row.region, row.subtask) == (history.region.name, history.region.subtask):
            joined = ", ".join(str(step.region) for step in plan.of(StepKind.JOINED))
            details = [f"held back: {plan.impossible or plan.held_back}"] if plan.impossible or plan.held_back else []
            details += [f"joined what is at work already: {joined}"] if joined else []
            yield Event(row.decided_at, f"failover {row.id}{incident}: {plan.summary()}", tuple(details))
        elif any(str(step.region) == name for step in plan.of(StepKind.JOINED)):
            failed = f"{row.region}[{row.subtask}]" if row.region else "a person"
            yield Event(row.decided_at, f"failover {row.id}{incident} of {failed} waited for it")

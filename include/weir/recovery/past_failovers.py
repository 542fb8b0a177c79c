"""What has come of failovers: what they have restarted and spared, what that cost, and the sentence that says so.

Invariant: it is derived from plans, clears and attempts each time, so that a page, a command and a note say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.values import ClearOutcome
from weir.execution.failure_words import cause_in_short
from weir.execution.run_state import DONE, AttemptState
from weir.ledger.attempts import taken_from
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, PublicationRow
from weir.ledger.results import NotDeterministic, findings_of
from weir.recovery.failovers import FailoverKind, costs_of_attempts
from weir.recovery.rules.plan import Cost, Plan, Total, total_of
from weir.recovery.rules.staleness import USUAL_CAUSES

_WITHOUT_EFFECT: Final = (ClearOutcome.MISSING.value, ClearOutcome.SKIPPED.value)

_HAPPENED: Final = {
    FailoverKind.LOSS: "Results were lost",
    FailoverKind.FAILURE: "A task failed",
    FailoverKind.HELD_BACK: "Results were lost, and a person was asked",
    FailoverKind.BY_HAND: "A person applied a plan",
    FailoverKind.SCRUB: "Damaged results were found",
    FailoverKind.LATE_FILES: "Files came late",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailover:
    """A failover of the task that has failed, its plan, the recomputed results of its clears, and which of them differ.

    `incident` is the first failover of the incident. `spared` is the number of regions of the run that have not run
    again because of it; `is_over` says that all that it has cleared has ended, so that `recomputed` is all. `taken` are
    those of its tasks that have computed nothing, and the attempts whose results they have taken.
    """

    id: int
    incident: int
    run: str
    kind: FailoverKind
    failed: str | None
    attempt: str | None
    decided_at: datetime
    cause: str
    labels: Mapping[str, str]
    plan: Plan
    recomputed: Total
    taken: Mapping[str, str]
    spared: int
    is_over: bool
    not_deterministic: tuple[NotDeterministic, ...]
    usual_causes: str | None


def failovers_of_run(session: Session, run: str) -> list[PastFailover]:
    """Return the past failovers of a run, oldest first."""
    query = select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id)
    return [past_failover(session, row) for row in session.scalars(query)]


def told(session: Session, failovers: Sequence[PastFailover]) -> str:
    """Return the sentence about the newest incident of a run: what it was, what it took, and what it has changed.

    `failovers` are those of the run, oldest first, of which there is one.
    """
    last = failovers[-1]
    of_incident = [each for each in failovers if each.incident == last.incident]
    first = of_incident[0]
    newest = session.scalar(select(func.max(PublicationRow.published_at)).where(PublicationRow.run == last.run))
    has_changed = newest is not None and newest > first.decided_at
    taken = sum(len(each.taken) for each in of_incident)
    of_which = f" ({taken} took what another had made of the same)" if taken else ""
    spared, after = last.spared, "a new version was published" if has_changed else "what is published did not change"
    return (
        f"{_HAPPENED[first.kind]} at {first.decided_at:%H:%M} UTC on {first.decided_at:%Y-%m-%d}: "
        f"{cause_in_short(first.cause).removesuffix('.')}. "
        f"{tasks_counted(sum(each.recomputed.regions for each in of_incident))} ran again{of_which}, {spared} "
        f"{'was' if spared == 1 else 'were'} spared; {after}."
    )


def tasks_counted(count: int) -> str:
    """Return how many tasks, as the beginning of a sentence."""
    return {0: "No task", 1: "One task"}.get(count, f"{count} tasks")


def past_failover(session: Session, row: FailoverRow) -> PastFailover:
    """Return what has come of a failover."""
    clears = session.scalars(select(PendingClearRow).where(PendingClearRow.failover == row.id))
    by_clear = [(clear, _caused_by(session, clear)) for clear in clears]
    caused = [attempt for _, attempts in by_clear for attempt in attempts]
    costs = costs_of_attempts(session, caused)
    recomputed = total_of(_finished(caused, costs))
    plan = Plan.from_json(row.plan)
    spared = len(plan.spared()) - _changed(session, row, plan)
    is_over = all(_has_ended(*each) for each in by_clear)
    differing = findings_of(session, list(costs))
    return PastFailover(
        id=row.id,
        incident=row.incident or row.id,
        run=row.run,
        kind=FailoverKind(row.kind),
        failed=f"{row.region}[{row.subtask}]" if row.region else None,
        attempt=row.attempt or None,
        decided_at=row.decided_at,
        cause=row.cause,
        labels=row.labels or {},
        plan=plan,
        recomputed=recomputed,
        taken={f"{each.region}[{each.subtask}]": taken_from(each) for each in caused if taken_from(each)},
        spared=spared,
        is_over=is_over,
        not_deterministic=differing,
        usual_causes=USUAL_CAUSES if differing else None,
    )


def _has_ended(clear: PendingClearRow, caused: Sequence[AttemptRow]) -> bool:
    """Report whether nothing more comes of a clear: it has had no effect, or its tries have ended."""
    if clear.is_void or clear.outcome in _WITHOUT_EFFECT:
        return True
    return bool(caused) and caused[-1].state in (*DONE, AttemptState.FAILED.value)


def _changed(session: Session, failover: FailoverRow, plan: Plan) -> int:
    """Return how many regions were cleared since then, as an input of theirs had changed."""
    query = select(PendingClearRow.region, PendingClearRow.subtask, PendingClearRow.expected_try).where(
        PendingClearRow.run == failover.run
    )
    cleared = {(region, subtask, number) for region, subtask, number in session.execute(query)}
    return sum((step.region.name, step.region.subtask, step.after_try) in cleared for step in plan.spared())


def _caused_by(session: Session, clear: PendingClearRow) -> list[AttemptRow]:
    """Return the tries after a clear, up to the first that has committed or adopted."""
    query = (
        select(AttemptRow)
        .where(
            AttemptRow.run == clear.run,
            AttemptRow.region == clear.region,
            AttemptRow.subtask == clear.subtask,
            AttemptRow.try_number > clear.expected_try,
        )
        .order_by(AttemptRow.try_number)
    )
    found = []
    for row in session.scalars(query):
        found.append(row)
        if row.state in DONE:
            break
    return found


def _finished(rows: Iterable[AttemptRow], costs: dict[str, Cost]) -> list[Cost | None]:
    return [costs[row.id] if row.ended_at is not None else None for row in rows]

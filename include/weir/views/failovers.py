"""Past failovers: what they have restarted and spared, and the cost of what was recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.values import ClearOutcome
from weir.execution.run_state import DONE, AttemptState
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow
from weir.ledger.names import require_dataflow, unknown_run
from weir.ledger.results import NotDeterministic, findings_of
from weir.ledger.runs import run_if_known, run_key
from weir.recovery.failovers import FailoverKind, costs_of_attempts, failovers_of
from weir.recovery.rules.plan import Cost, Plan, Total, total_of
from weir.views.rows import taken

_WITHOUT_EFFECT = (ClearOutcome.MISSING.value, ClearOutcome.SKIPPED.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverView:
    """A failover of the task that has failed, its plan, the recomputed results of its clears, and which of them differ.

    `incident` is the first failover of the incident. `spared` is the number of regions of the run that have not run
    again because of it; `is_over` says that all that it has cleared has ended, so that `recomputed` is all.
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
    spared: int
    is_over: bool
    not_deterministic: tuple[NotDeterministic, ...]


def failover_views(session: Session, dataflow: str | None = None, epoch: str | None = None) -> list[FailoverView]:
    """Return past failovers, oldest first. Raises Misconfigured for an unknown dataflow or epoch."""
    if dataflow is not None:
        require_dataflow(session, dataflow)
        run = None if epoch is None else run_if_known(session, run_key(dataflow, epoch))
        if run is None and epoch is not None:
            raise unknown_run(session, run_key(dataflow, epoch), dataflow)
        epoch = None if run is None else run.epoch
    return [_view(session, row) for row in failovers_of(session, dataflow, epoch)]


def failovers_of_run(session: Session, run: str) -> list[FailoverView]:
    """Return the past failovers of a run, oldest first."""
    query = select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id)
    return [_view(session, row) for row in session.scalars(query)]


def _view(session: Session, row: FailoverRow) -> FailoverView:
    clears = session.scalars(select(PendingClearRow).where(PendingClearRow.failover == row.id))
    by_clear = [(clear, _caused_by(session, clear)) for clear in clears]
    caused = [attempt for _, attempts in by_clear for attempt in attempts]
    costs = costs_of_attempts(session, caused)
    recomputed = total_of(_finished(caused, costs))
    plan = Plan.from_json(row.plan)
    spared = len(plan.spared()) - _changed(session, row, plan)
    is_over = all(_has_ended(*each) for each in by_clear)
    return taken(
        FailoverView,
        row,
        incident=row.incident or row.id,
        kind=FailoverKind(row.kind),
        failed=f"{row.region}[{row.subtask}]" if row.region else None,
        attempt=row.attempt or None,
        labels=row.labels or {},
        plan=plan,
        recomputed=recomputed,
        spared=spared,
        is_over=is_over,
        not_deterministic=findings_of(session, list(costs)),
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

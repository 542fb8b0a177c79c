"""Past failovers: what they have restarted and spared, and the cost of what was recomputed, also by the week."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

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
from weir.recovery.rules.staleness import USUAL_CAUSES
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
    usual_causes: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverWeek:
    """The failovers of a week that begins on a Monday, in UTC; an incident is of the week of its first failover here.

    `held_back` counts those that have restarted nothing and are in no sum. What a full restart would have cost, and how
    many regions were spared of it, counts once an incident: as at its failover with the most to restart.
    """

    week: str
    begins: date
    incidents: int
    failovers: int
    held_back: int
    recomputed: Total
    spared: int
    full_restart: Total


def failover_views(
    session: Session, dataflow: str | None = None, epoch: str | None = None, newest_weeks: int | None = None
) -> list[FailoverView]:
    """Return past failovers, oldest first; with `newest_weeks` those of that many weeks up to the newest failover.

    Raises Misconfigured for an unknown dataflow or epoch.
    """
    if dataflow is not None:
        require_dataflow(session, dataflow)
        run = None if epoch is None else run_if_known(session, run_key(dataflow, epoch))
        if run is None and epoch is not None:
            raise unknown_run(session, run_key(dataflow, epoch), dataflow)
        epoch = None if run is None else run.epoch
    rows = failovers_of(session, dataflow, epoch)
    if rows and newest_weeks is not None:
        first = _monday(rows[-1].decided_at) - timedelta(weeks=newest_weeks - 1)
        rows = [row for row in rows if _monday(row.decided_at) >= first]
    return [_view(session, row) for row in rows]


def weeks_of(failovers: Sequence[FailoverView]) -> list[FailoverWeek]:
    """Return the weeks from that of the first of these failovers to that of the last, also those without any."""
    if not failovers:
        return []
    began: dict[int, date] = {}
    of_week: dict[date, list[FailoverView]] = {}
    for each in failovers:
        monday = began.setdefault(each.incident, _monday(each.decided_at))
        of_week.setdefault(monday, []).append(each)
    monday, found = min(of_week), []
    while monday <= max(of_week):
        found.append(_week(monday, of_week.get(monday, [])))
        monday += timedelta(weeks=1)
    return found


def _week(monday: date, failovers: Sequence[FailoverView]) -> FailoverWeek:
    counted = [each for each in failovers if each.kind is not FailoverKind.HELD_BACK]
    largest: dict[int, FailoverView] = {}
    for each in counted:
        before = largest.setdefault(each.incident, each)
        if _full_restart_order(each) > _full_restart_order(before):
            largest[each.incident] = each
    year, number, _ = monday.isocalendar()
    return FailoverWeek(
        week=f"{year}-W{number:02}",
        begins=monday,
        incidents=len({each.incident for each in failovers}),
        failovers=len(failovers),
        held_back=len(failovers) - len(counted),
        recomputed=_together(each.recomputed for each in counted),
        spared=sum(each.spared for each in largest.values()),
        full_restart=_together(each.plan.full_restart() for each in largest.values()),
    )


def _full_restart_order(failover: FailoverView) -> tuple[float, int]:
    total = failover.plan.full_restart()
    return total.seconds, total.regions


def _together(totals: Iterable[Total]) -> Total:
    listed = list(totals)
    return Total(
        sum(each.regions for each in listed),
        sum(each.rows for each in listed),
        sum(each.bytes for each in listed),
        round(sum((each.seconds for each in listed), 0.0), 3),
        sum(each.unknown for each in listed),
    )


def _monday(at: datetime) -> date:
    day = at.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())


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
    differing = findings_of(session, list(costs))
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

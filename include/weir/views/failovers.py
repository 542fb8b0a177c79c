"""Past failovers, all or by the week: what they have restarted and spared, and the cost of what was recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy.orm import Session

from weir.ledger.names import require_dataflow, unknown_run
from weir.ledger.runs import run_if_known, run_key
from weir.recovery.failovers import FailoverKind, failovers_of
from weir.recovery.past_failovers import PastFailover, past_failover
from weir.recovery.rules.plan import Total, together


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
) -> list[PastFailover]:
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
    return [past_failover(session, row) for row in rows]


def weeks_of(failovers: Sequence[PastFailover]) -> list[FailoverWeek]:
    """Return the weeks from that of the first of these failovers to that of the last, also those without any."""
    if not failovers:
        return []
    began: dict[int, date] = {}
    of_week: dict[date, list[PastFailover]] = {}
    for each in failovers:
        monday = began.setdefault(each.incident, _monday(each.decided_at))
        of_week.setdefault(monday, []).append(each)
    monday, found = min(of_week), []
    while monday <= max(of_week):
        found.append(_week(monday, of_week.get(monday, [])))
        monday += timedelta(weeks=1)
    return found


def _week(monday: date, failovers: Sequence[PastFailover]) -> FailoverWeek:
    counted = [each for each in failovers if each.kind is not FailoverKind.HELD_BACK]
    largest: dict[int, PastFailover] = {}
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
        recomputed=together(each.recomputed for each in counted),
        spared=sum(each.spared for each in largest.values()),
        full_restart=together(each.plan.full_restart() for each in largest.values()),
    )


def _full_restart_order(failover: PastFailover) -> tuple[float, int]:
    total = failover.plan.full_restart()
    return total.seconds, total.regions


def _monday(at: datetime) -> date:
    day = at.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())

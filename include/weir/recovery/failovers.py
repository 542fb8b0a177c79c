"""Records failovers with their incidents, and what attempts have cost.

A failover is a decision to restart regions, with the plan as it was applied.

Invariants: an incident is open until the first region that it cleared has committed, and failures until then belong to
it; the costs with which plans are estimated are those of committed attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from weir.dataflow.notifications import EventKind
from weir.execution.metrics import RECOMPUTED_BYTES, RECOMPUTED_SECONDS, SPARED_BYTES, SPARED_SECONDS
from weir.execution.run_state import DONE, AttemptState
from weir.formats.notification import Event, Subject, failed_over_event, healed_event
from weir.ledger.attempts import Origin
from weir.ledger.counts import count
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.outbox import tell, tell_incident
from weir.ledger.runs import Run, dataflow_of, epoch_of_run
from weir.recovery.rules.plan import SHOWN, Cost, Plan, StepKind, total_of
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.wording import shortened

_TEXT: Final = 2000
"""The longest cause that a notification has, in characters."""


class FailoverKind(Enum):
    """The reason for a failover."""

    LOSS = "loss"
    """An attempt did not find its inputs."""
    FAILURE = "failure"
    """An attempt failed, and the dataflow restarts others with it."""
    HELD_BACK = "held back"
    """A loss whose plan a person has to apply."""
    BY_HAND = "by hand"
    """A person applied a plan."""
    SCRUB = "scrub"
    """Scrubbing found a damaged result before a consumer did."""
    LATE_FILES = "late files"
    """Upkeep found files that came, or changed, after a source had read its interval."""


def record_failover(
    session: Session, run: Run, plan: Plan, now: datetime, kind: FailoverKind, row: AttemptRow | None
) -> int:
    """Record a plan and return its id. `row` is the failed attempt, None if there is none."""
    failover = FailoverRow(
        run=run.id,
        attempt=row.id if row else "",
        region=row.region if row else "",
        subtask=row.subtask if row else 0,
        decided_at=now,
        cause=plan.cause,
        plan=plan.to_json(),
        kind=kind.value,
        labels=row.labels if row else None,
        incident=_open_incident(session, run.id),
    )
    session.add(failover)
    session.flush()
    if failover.incident is None and kind is not FailoverKind.HELD_BACK:  # or what joins a repair would count again
        total = total_of(step.cost for step in plan.spared())
        of = run.dataflow.name
        count(session, SPARED_SECONDS.of(total.seconds, of), SPARED_BYTES.of(total.bytes, of))
        if plan.of(StepKind.RERUN) or plan.of(StepKind.JOINED):
            event = _failed_over(run, failover, plan)
            tell_incident(session, run.id, event, now, failover=failover.id, end=EventKind.HEALED)
    return failover.id


def _failed_over(run: Run, failover: FailoverRow, plan: Plan) -> Event:
    rerun, spared = plan.of(StepKind.RERUN), plan.spared()
    return failed_over_event(
        Subject(run.dataflow.name, run.epoch, run.id),
        (run.id, failover.attempt or failover.kind, f"{failover.decided_at:%Y%m%dT%H%M%S.%fZ}"),
        shortened(f"{run.id} recovers: {plan.cause}; {plan.summary()}", _TEXT),
        trigger=failover.kind,
        cause=shortened(plan.cause, _TEXT),
        rerun=len(rerun),
        awaited=len(plan.of(StepKind.JOINED)),
        spared=len(spared),
        tasks=[str(step.region) for step in rerun[:SHOWN]],
    )


def tell_healed(session: Session, run: RunId, failover: int, event: str, now: datetime) -> bool:
    """Record that receivers are to be told of the end of a failover's incident, if all that it restarted has committed.

    `event` is the id of the one that began it. Report whether it has ended.
    """
    members = _members(session, failover)
    if not all(_has_committed(session, *each) for member in members for each in _repaired(session, member)):
        return False
    of = Subject(dataflow_of(run), epoch_of_run(run), run)
    cause = shortened(members[0].cause, _TEXT) if members else ""
    text = shortened(f"{run} is whole again, after this: {cause}", _TEXT)
    tell(session, healed_event(event, of, text, cause=cause, failovers=len(members)), now)
    return True


def _open_incident(session: Session, run: str) -> int | None:
    newest = session.scalar(select(FailoverRow).where(FailoverRow.run == run).order_by(FailoverRow.id.desc()).limit(1))
    if newest is None:
        return None
    root = newest.incident or newest.id
    repaired = [step for member in _members(session, root) for step in _repaired(session, member)]
    return root if repaired and not any(_has_committed(session, *each) for each in repaired) else None


def _members(session: Session, root: int) -> list[FailoverRow]:
    """Return the failovers of an incident, oldest first."""
    query = select(FailoverRow).where(or_(FailoverRow.id == root, FailoverRow.incident == root))
    return list(session.scalars(query.order_by(FailoverRow.id)))


def _repaired(session: Session, failover: FailoverRow) -> list[tuple[RunId, str, int, int]]:
    """Return the tries that a failover restarted, or those that it joined if it restarted none."""
    owed = select(PendingClearRow).where(PendingClearRow.failover == failover.id)
    cleared = [(row.run, row.region, row.subtask, row.expected_try) for row in session.scalars(owed)]
    if cleared:
        return cleared
    joined = Plan.from_json(failover.plan).of(StepKind.JOINED)
    return [
        (step.region.run_id(failover.run), step.region.name, step.region.subtask, step.after_try) for step in joined
    ]


def _has_committed(session: Session, run: str, region: str, subtask: int, after_try: int) -> bool:
    query = select(AttemptRow.id).where(
        AttemptRow.run == run,
        AttemptRow.region == region,
        AttemptRow.subtask == subtask,
        AttemptRow.try_number > after_try,
        AttemptRow.state.in_(DONE),
    )
    return session.scalar(query.limit(1)) is not None


def failovers_of(session: Session, dataflow: str | None = None, epoch: str | None = None) -> list[FailoverRow]:
    """Return past failovers, oldest first."""
    query = select(FailoverRow).join(RunRow, RunRow.id == FailoverRow.run).order_by(FailoverRow.id)
    if dataflow is not None:
        query = query.where(RunRow.dataflow == dataflow)
    if epoch is not None:
        query = query.where(RunRow.epoch == epoch)
    return list(session.scalars(query))


def costs_of(session: Session, run: Run, regions: Iterable[RegionId]) -> dict[RegionId, Cost]:
    """Return the costs of the newest committed attempts of regions; those of the run itself have no run.

    A region that has not committed in its run has the cost of the newest epoch in which it has.
    """
    wanted = {(each.run_id(run.id), each.name, each.subtask): each for each in regions}
    query = (
        select(AttemptRow)
        .where(AttemptRow.run.in_({of for of, _, _ in wanted}), AttemptRow.state == AttemptState.COMMITTED.value)
        .order_by(AttemptRow.try_number)
    )
    newest = {
        wanted[key]: row for row in session.scalars(query) if (key := (row.run, row.region, row.subtask)) in wanted
    }
    missing = wanted.values() - newest.keys()
    of_epochs = _newest_of_epochs(session, run.dataflow.name, {each.name for each in missing})
    for each in missing:
        if (row := of_epochs.get((each.name, each.subtask))) is not None:
            newest[each] = row
    costs = costs_of_attempts(session, newest.values())
    return {region: costs[row.id] for region, row in newest.items()}


def _newest_of_epochs(session: Session, dataflow: str, names: Collection[str]) -> dict[tuple[str, int], AttemptRow]:
    """Return the newest committed attempts of regions in any epoch, by name and subtask."""
    if not names:
        return {}
    epochs = (
        select(AttemptRow.region, AttemptRow.subtask, func.max(RunRow.epoch).label("epoch"))
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(RunRow.dataflow == dataflow, AttemptRow.region.in_(names))
        .where(AttemptRow.state == AttemptState.COMMITTED.value)
        .group_by(AttemptRow.region, AttemptRow.subtask)
        .subquery()
    )
    query = (
        select(AttemptRow)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .join(
            epochs,
            (epochs.c.region == AttemptRow.region)
            & (epochs.c.subtask == AttemptRow.subtask)
            & (epochs.c.epoch == RunRow.epoch),
        )
        .where(RunRow.dataflow == dataflow, AttemptRow.state == AttemptState.COMMITTED.value)
        .order_by(AttemptRow.try_number)
    )
    return {(row.region, row.subtask): row for row in session.scalars(query)}


def count_recomputed(session: Session, tries: Sequence[AttemptRow]) -> None:
    """Count what the newest try of a region has computed again: another one of its run had committed before."""
    *before, newest = tries
    committed = [place for place, row in enumerate(before) if row.state == AttemptState.COMMITTED.value]
    if not committed:
        return
    since = {row.origin for row in tries[committed[-1] + 1 :]}
    by = "weir" if Origin.CLEARED_BY_WEIR.value in since else "person"
    cost, of = costs_of_attempts(session, [newest])[newest.id], dataflow_of(newest.run)
    count(session, RECOMPUTED_SECONDS.of(cost.seconds, of, by), RECOMPUTED_BYTES.of(cost.bytes, of, by))


def costs_of_attempts(session: Session, attempts: Iterable[AttemptRow]) -> dict[str, Cost]:
    """Return the costs of attempts by id: written rows and bytes, in all layouts, and seconds of running."""
    rows = {row.id: row for row in attempts}
    query = (
        select(ResultRow.attempt, func.sum(ResultRow.rows), func.sum(ResultRow.bytes))
        .where(ResultRow.run.in_({row.run for row in rows.values()}))
        .group_by(ResultRow.attempt)
    )
    written = {attempt: (int(count), int(size)) for attempt, count, size in session.execute(query)}
    return {each: Cost(*written.get(each, (0, 0)), seconds_of(row)) for each, row in rows.items()}


def seconds_of(row: AttemptRow) -> float:
    """Return how long an attempt ran, without its waits; 0 while it has not ended."""
    if row.ended_at is None:
        return 0.0
    if row.waits and row.metrics:
        return round(sum(each for each in row.metrics.values() if isinstance(each, int | float)), 3)
    return round((row.ended_at - row.began_at).total_seconds(), 3)

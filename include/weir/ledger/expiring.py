"""Expiring a run in the ledger: its history goes, and what later decisions rest on stays.

Invariant: of each partition the current result stays, with the attempt that made it and what that had read, so that
validity and predecessors hold; of each region the newest attempt, so that no older one can come back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from weir.ledger.attempts import LIVE
from weir.ledger.checkpoints import retained_of_run
from weir.ledger.leases import leased
from weir.ledger.lives import stored_results
from weir.ledger.models import (
    AttemptRow,
    ConsumptionRow,
    FailoverRow,
    LeaseRow,
    OwedClearRow,
    PublicationRow,
    ReadSetRow,
    ResultEventRow,
    ResultRow,
    RunRow,
)
from weir.ledger.moves import move
from weir.ledger.quality_history import forget_checks
from weir.recovery.run_state import AttemptState
from weir.results.life_settings import LifeSettings
from weir.results.partition_state import PartitionState

_GONE = (PartitionState.RELEASED.value, PartitionState.SUPERSEDED.value)


def runs_to_expire(session: Session, dataflow: str, settings: LifeSettings, now: datetime) -> list[tuple[str, str]]:
    """Runs whose manifests and records nobody needs any more, oldest epoch first, and why."""
    query = (
        select(RunRow, func.max(AttemptRow.began_at), func.max(AttemptRow.ended_at))
        .outerjoin(AttemptRow, AttemptRow.run == RunRow.id)
        .where(RunRow.dataflow == dataflow)
        .group_by(RunRow.id)
        .order_by(RunRow.epoch)
    )
    found = []
    for row, began, ended in session.execute(query):
        is_done = row.expired_at is not None and (began is None or began <= row.expired_at)
        last = max(each for each in (row.created_at, began, ended) if each is not None)
        why = None if is_done else _why(row, last, settings, now)
        if why is not None:
            found.append((row.id, why))
    return found


def _why(row: RunRow, last: datetime, settings: LifeSettings, now: datetime) -> str | None:
    if row.deleted_at is not None and row.deleted_at + settings.orphan_age <= now:
        return "Airflow has no such run any more"
    if _is_past(last, settings.expire_runs, now):
        return "nothing has happened in it for as long as runs are kept"
    return None


def _is_past(at: datetime, limit: timedelta | None, now: datetime) -> bool:
    return limit is not None and at + limit <= now


def why_not_yet(session: Session, run: str, now: datetime) -> str | None:
    """Why a run cannot expire now, although it is old: something of it is needed, or at work."""
    published = _published(session, run)
    stored = [row for row in stored_results(session, run) if row.folder not in published]
    if session.get_one(RunRow, run).pinned is None:
        readers = leased(session, [row.id for row in stored], now)
        stored = [row for row in stored if row.is_current or row.id in readers]
    if stored:
        return f"{len(stored)} of its results are still needed"
    if retained_of_run(session, run) is not None:
        return "a checkpoint of it is retained"
    pending = select(ResultRow.id).where(
        ResultRow.run == run, ResultRow.state == PartitionState.RELEASED.value, ResultRow.deleted_at.is_(None)
    )
    return "released results are not deleted yet" if session.scalar(pending.limit(1)) is not None else None


def expire(session: Session, run: str, reason: str, now: datetime) -> None:
    """Write down that a run is expired, and forget its history."""
    row = session.get_one(RunRow, run)
    published = _published(session, run)
    for result in stored_results(session, run):
        if result.folder not in published:  # of a run that was freed of its record: nobody is to read these
            move(session, result, PartitionState.RELEASED, reason, now)
    session.flush()
    _forget_results(session, run, now)
    _forget_attempts(session, run)
    _forget_failovers(session, run)
    forget_checks(session, run)
    row.expired_at = now


def _published(session: Session, run: str) -> set[str]:
    query = select(PublicationRow.folders).where(PublicationRow.run == run, PublicationRow.expired_at.is_(None))
    return {str(folder) for folders in session.scalars(query) for folder in folders or ()}


def _forget_results(session: Session, run: str, now: datetime) -> None:
    rows = list(
        session.scalars(
            select(ResultRow).where(ResultRow.run == run, ResultRow.is_current.is_(False), ResultRow.state.in_(_GONE))
        )
    )
    read = leased(session, [row.id for row in rows], now)
    numbers = [row.id for row in rows if row.id not in read]
    for table, column in ((ResultEventRow, ResultEventRow.result), (LeaseRow, LeaseRow.result)):
        session.execute(delete(table).where(column.in_(numbers)))
    session.execute(delete(ResultRow).where(ResultRow.id.in_(numbers)))


def _forget_attempts(session: Session, run: str) -> None:
    rows = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run).order_by(AttemptRow.try_number)))
    needed = set(session.scalars(select(ResultRow.attempt).where(ResultRow.run == run)))
    needed |= {row.id for row in rows if row.state in LIVE}
    needed |= set({(row.region, row.subtask): row.id for row in rows}.values())
    committed = [row for row in rows if row.state == AttemptState.COMMITTED.value]
    needed |= set({(row.region, row.subtask): row.id for row in committed}.values())
    gone = [row.id for row in rows if row.id not in needed]
    sets = set(session.scalars(select(ConsumptionRow.read_set).where(ConsumptionRow.attempt.in_(gone))))
    session.execute(delete(ConsumptionRow).where(ConsumptionRow.attempt.in_(gone)))
    still = set(session.scalars(select(ConsumptionRow.read_set).where(ConsumptionRow.read_set.in_(sets))))
    session.execute(delete(ReadSetRow).where(ReadSetRow.id.in_(sets - still)))
    session.execute(delete(AttemptRow).where(AttemptRow.id.in_(gone)))


def _forget_failovers(session: Session, run: str) -> None:
    """Clears that are settled and that newer tries have followed, and failovers that no clear belongs to."""
    newest: dict[tuple[str, int], int] = {}
    query = select(AttemptRow.region, AttemptRow.subtask, AttemptRow.try_number).where(AttemptRow.run == run)
    for region, subtask, number in session.execute(query):
        newest[region, subtask] = max(number, newest.get((region, subtask), number))
    clears = list(session.scalars(select(OwedClearRow).where(OwedClearRow.run == run)))
    settled = [
        row.id
        for row in clears
        if row.settled_at is not None
        and max(row.expected_try, row.found_try or 0) < newest.get((row.region, row.subtask), 0)
    ]
    session.execute(delete(OwedClearRow).where(OwedClearRow.id.in_(settled)))
    owing = select(OwedClearRow.failover).where(OwedClearRow.failover.is_not(None))
    session.execute(delete(FailoverRow).where(FailoverRow.run == run, FailoverRow.id.not_in(owing)))

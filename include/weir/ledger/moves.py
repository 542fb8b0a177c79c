"""The only way in which a result's state changes. Invariant: each move is one that may happen, and is written down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, ResultEventRow, ResultRow
from weir.recovery.run_state import AttemptState
from weir.results.partition_state import Chapter, PartitionState, require_move


def move(session: Session, row: ResultRow, to: PartitionState, reason: str, now: datetime) -> None:
    """Let a result become `to`. Raises IllegalMove, which tells its story."""
    story = (Chapter(PartitionState(row.state), row.state_at, row.state_reason),)
    try:
        require_move(_name(row), story, to)
    except Exception:
        require_move(_name(row), story_of(session, row), to)
        raise
    row.state, row.state_at, row.state_reason = to.value, now, reason
    session.add(ResultEventRow(result=row.id, state=to.value, at=now, reason=reason))


def story_of(session: Session, row: ResultRow) -> tuple[Chapter, ...]:
    """What has become of a result since its attempt began to write it, oldest first."""
    session.flush()
    attempt = session.get_one(AttemptRow, row.attempt)
    events = session.scalars(select(ResultEventRow).where(ResultEventRow.result == row.id).order_by(ResultEventRow.id))
    later = [Chapter(PartitionState(each.state), each.at, each.reason) for each in events]
    written = Chapter(PartitionState.WRITING, attempt.began_at, f"by {attempt.id}")
    return (written, *committed_chapter(attempt, later), *later)


def committed_chapter(attempt: AttemptRow, later: Sequence[Chapter]) -> tuple[Chapter, ...]:
    """That a result was committed; what went from its writing into quarantine never was."""
    never = bool(later) and later[0].state is PartitionState.QUARANTINED
    if never and attempt.state != AttemptState.COMMITTED.value:
        return ()
    return (Chapter(PartitionState.FINISHED, attempt.ended_at or attempt.began_at, "committed"),)


def _name(row: ResultRow) -> str:
    return f"{row.stage}[{row.subtask}] ({row.layout}) of {row.attempt} in {row.run}"

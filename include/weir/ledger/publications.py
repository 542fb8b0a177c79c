"""Stores publications. Invariant: a version number is assigned once, in a transaction.

A version that was assigned and is not recorded as complete may still become visible, if its process was suspended.
The transaction that records it as complete records that its receivers are to be told.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from weir.errors import Conflict, Message
from weir.formats.notification import Subject, published_event
from weir.formats.paths import pointer_path
from weir.formats.pointer import Pointer
from weir.ledger.database.tables import PublicationRow, RunRow
from weir.ledger.outbox import tell
from weir.ledger.runs import dataflow_of, epoch_of_run

_LAST = (
    select(PublicationRow)
    .where(PublicationRow.run == bindparam("run"), PublicationRow.sink == bindparam("sink"))
    .order_by(PublicationRow.version.desc())
    .limit(1)
)


def last_publication(session: Session, run: str, sink: str) -> PublicationRow | None:
    """Return the newest version of `sink`, complete or not."""
    return session.scalar(_LAST, {"run": run, "sink": sink})


def is_expiring(row: PublicationRow) -> bool:
    """Report whether the pointer of a version is deleted, or may be at any moment."""
    return row.expiring_at is not None or row.expired_at is not None


def next_version(session: Session, run: str, sink: str) -> int:
    """Return the next version number."""
    highest = session.scalar(
        select(func.max(PublicationRow.version)).where(PublicationRow.run == run, PublicationRow.sink == sink)
    )
    return (highest or 0) + 1


def begin_publication(
    session: Session, run: str, sink: str, version: int, attempt: str, digest: str, pointer: Pointer
) -> None:
    """Record that a version is about to be published, with its folders."""
    path = pointer_path(pointer.dataflow, sink, pointer.epoch, version)
    folders = [each.folder for each in pointer.partitions]
    row = PublicationRow(
        run=run, sink=sink, version=version, attempt=attempt, digest=digest, pointer=path, folders=folders
    )
    session.add(row)
    session.get_one(RunRow, run).released_at = None


def complete_publications(session: Session, run: str, attempt: str, now: datetime) -> None:
    """Record that the pointers of `attempt` exist. Raises Conflict if one has expired."""
    query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.attempt == attempt)
    for row in session.scalars(query):
        if is_expiring(row):
            raise Conflict(Message("ledger.version_expired", version=row.version, sink=row.sink))
        note_published(session, row, now)


def note_published(session: Session, row: PublicationRow, now: datetime) -> None:
    """Record that the pointer of a version exists; nothing is told of one that a newer version has replaced already."""
    if row.published_at is not None:
        return
    newer = select(PublicationRow.id).where(
        PublicationRow.run == row.run,
        PublicationRow.sink == row.sink,
        PublicationRow.version > row.version,
        PublicationRow.published_at.is_not(None),
    )
    row.published_at = now
    if session.scalar(newer.limit(1)) is None:
        tell_published(session, row, now)


def tell_published(session: Session, row: PublicationRow, now: datetime, *, is_rebuilt: bool = False) -> None:
    """Record that receivers are to be told of a published version."""
    of = Subject(dataflow_of(row.run), epoch_of_run(row.run), row.run)
    event = published_event(of, row.sink, row.version, row.attempt, row.pointer)
    tell(session, replace(event, is_rebuilt=is_rebuilt), now)


def published_versions(session: Session, run: str) -> dict[str, int]:
    """Return the newest published version of each sink of a run that has one."""
    query = (
        select(PublicationRow.sink, func.max(PublicationRow.version))
        .where(PublicationRow.run == run, PublicationRow.published_at.is_not(None))
        .group_by(PublicationRow.sink)
        .order_by(PublicationRow.sink)
    )
    return dict(session.execute(query).tuples().all())

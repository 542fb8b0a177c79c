"""Tell receivers of what a ledger has found in the store.

Invariant: an event whose notification may have been lost with the ledger is told again, in the order of the times that
the store has: a completed checkpoint by its manifest, a published version by its pointer, a given up checkpoint by the
row of its number. Of the others the store tells nothing: subsumed checkpoints are subsumed again, targets are asked
again what they have, and a failure for good is one of a task that Airflow shows.

What is older than a week is left out: a ledger that is rebuilt after years must not tell of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.checkpoints import CheckpointStatus, checkpoints_of, tell_aborted, tell_completed
from weir.ledger.database.tables import PublicationRow, RunRow
from weir.ledger.outbox import KEPT
from weir.ledger.publications import tell_published

Known = frozenset[tuple[str | int, ...]]
"""The checkpoints that are completed or given up, and the versions that are published, in the ledger."""


def known_events(session: Session, dataflow: str) -> Known:
    """Return what the ledger knows, before or after it enters what the store holds."""
    return frozenset(key for key, _, _ in _events(session, dataflow))


def tell_found(session: Session, dataflow: str, before: Known, now: datetime) -> None:
    """Record that receivers are to be told of what the ledger did not know `before`."""
    session.flush()
    new = [(at, tell) for key, at, tell in _events(session, dataflow) if key not in before and at > now - KEPT]
    for _, tell in sorted(new, key=lambda each: each[0]):
        tell(now)


def _events(
    session: Session, dataflow: str
) -> Iterator[tuple[tuple[str | int, ...], datetime, Callable[[datetime], None]]]:
    """Yield the events in a ledger: a key, the time, and what records the notification."""
    for row in checkpoints_of(session, dataflow):
        if row.status == CheckpointStatus.FAILED.value and row.run:
            at = row.completed_at or row.triggered_at
            yield ("given up", row.number), at, partial(tell_aborted, session, row, is_rebuilt=True)
        elif row.completed_at is not None:
            yield (
                ("complete", row.number),
                row.completed_at,
                partial(tell_completed, session, row, is_rebuilt=True),
            )
    query = select(PublicationRow).join(RunRow, RunRow.id == PublicationRow.run).where(RunRow.dataflow == dataflow)
    for published in session.scalars(query.order_by(PublicationRow.version)):
        if published.published_at is not None:
            key = (published.run, published.sink, published.version, published.attempt)
            yield key, published.published_at, partial(tell_published, session, published, is_rebuilt=True)

"""Read leases: a reader's claim on results.

Invariant: a lease is taken in the transaction that answers "available", and whoever releases looks at it in a
transaction of the same dataflow; both read the database's clock, never that of a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from weir.ledger.database.tables import LeaseRow, Table

LEASE = timedelta(hours=1)
"""How long a reader's claim lasts if it is not renewed; longer than any wait between two signs of life."""

_LEASES = Table.metadata.tables[LeaseRow.__tablename__]
_TAKE = insert(_LEASES)
_DROP = delete(_LEASES).where(_LEASES.c.holder == bindparam("of"))
_CLAIMS = (
    select(LeaseRow)
    .where(LeaseRow.result.in_(bindparam("of", expanding=True)), LeaseRow.expires_at > bindparam("at"))
    .order_by(LeaseRow.expires_at)
)


def clock(session: Session, now: datetime) -> datetime:
    """The time by the database's clock. SQLite has none but this machine's, which `now` was read from."""
    if session.get_bind().dialect.name == "sqlite":
        return now
    told: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return told.astimezone(UTC)


def take_leases(session: Session, results: Iterable[int], holder: str, now: datetime) -> None:
    """Claim results, by their numbers, for a reader; `now` is the machine's clock, used where the database has none."""
    numbers = list(results)
    if numbers:
        expires = clock(session, now) + LEASE
        session.execute(_TAKE, [{"result": each, "holder": holder, "expires_at": expires} for each in numbers])


def renew_leases(session: Session, holder: str, now: datetime) -> int:
    """Claim for longer what `holder` reads; answers how many leases there were."""
    expires = clock(session, now) + LEASE
    done = session.execute(update(LeaseRow).where(LeaseRow.holder == holder).values(expires_at=expires))
    return int(done.rowcount)  # type: ignore[attr-defined]  # an update's result has it


def drop_leases(session: Session, holder: str) -> None:
    """End the claims of `holder`."""
    session.flush()
    session.execute(_DROP, {"of": holder})


def drop_expired(session: Session, now: datetime) -> None:
    """Forget leases that have ended long ago."""
    session.execute(delete(LeaseRow).where(LeaseRow.expires_at < clock(session, now) - LEASE))


def leased(session: Session, results: Collection[int], now: datetime) -> dict[int, LeaseRow]:
    """The lease that ends last of each result that has one now."""
    at = clock(session, now)
    if not results:
        return {}
    return {row.result: row for row in session.scalars(_CLAIMS, {"of": list(results), "at": at})}

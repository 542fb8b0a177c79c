"""Stores read leases, which retain results for their readers.

Invariant: a lease is taken in the transaction that finds the results available, and a release checks the leases in a
transaction of the same dataflow; both use the database's clock, never that of a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from weir.ledger.database.tables import LeaseRow, Table

LEASE = timedelta(hours=1)
"""How long a lease lasts if it is not renewed; longer than any interval between two heartbeats."""

_LEASES = Table.metadata.tables[LeaseRow.__tablename__]
_TAKE = insert(_LEASES)
_DROP = delete(_LEASES).where(_LEASES.c.holder == bindparam("of"))
_CLAIMS = (
    select(LeaseRow)
    .where(LeaseRow.result.in_(bindparam("of", expanding=True)), LeaseRow.expires_at > bindparam("at"))
    .order_by(LeaseRow.expires_at)
)


def clock(session: Session, now: datetime) -> datetime:
    """Return the time of the database's clock; for SQLite this is `now`, the time of this machine."""
    if session.get_bind().dialect.name == "sqlite":
        return now
    at: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return at.astimezone(UTC)


def take_leases(session: Session, results: Iterable[int], holder: str, now: datetime) -> None:
    """Lease results, by number, to a reader; `now` is the machine's clock, used where the database has none."""
    numbers = list(results)
    if numbers:
        expires = clock(session, now) + LEASE
        session.execute(_TAKE, [{"result": each, "holder": holder, "expires_at": expires} for each in numbers])


def renew_leases(session: Session, holder: str, now: datetime) -> int:
    """Renew the leases of `holder` and return their number."""
    expires = clock(session, now) + LEASE
    done = session.execute(update(LeaseRow).where(LeaseRow.holder == holder).values(expires_at=expires))
    return int(done.rowcount)  # type: ignore[attr-defined]  # an update's result has it


def drop_leases(session: Session, holder: str) -> None:
    """Delete the leases of `holder`."""
    session.flush()
    session.execute(_DROP, {"of": holder})


def drop_expired(session: Session, now: datetime) -> None:
    """Delete leases that expired long ago."""
    session.execute(delete(LeaseRow).where(LeaseRow.expires_at < clock(session, now) - LEASE))


def leased(session: Session, results: Collection[int], now: datetime) -> dict[int, LeaseRow]:
    """Return the lease that ends last, for each result that has a lease now."""
    at = clock(session, now)
    if not results:
        return {}
    return {row.result: row for row in session.scalars(_CLAIMS, {"of": list(results), "at": at})}

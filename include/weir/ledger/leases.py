"""Stores read leases, which retain results for their readers.

Invariant: a lease is taken in the transaction that finds the results available, and a release checks the leases in a
transaction of the same dataflow; both use the database's clock, never that of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, ResultRow, Table

LEASE = timedelta(hours=1)
"""How long a lease lasts if it is not renewed; longer than any interval between two heartbeats."""

RENEWAL = timedelta(minutes=5)
"""The age at which a heartbeat renews a lease: heartbeats are more frequent, and an input is a row each."""

CLOCK: Final = "weir_clock"
"""Where a session has the clock of a simulated server that is not the machine's."""

_AT_ONCE = 500
"""How many results a query selects: databases limit the bound values."""

_LEASES = Table.metadata.tables[LeaseRow.__tablename__]
_TAKE = insert(_LEASES)
_DROP = delete(_LEASES).where(_LEASES.c.holder == bindparam("of"))
_DROP_EXPIRED = _DROP.where(_LEASES.c.expires_at <= bindparam("at"))
_RENEW = update(_LEASES).where(_LEASES.c.holder == bindparam("of")).values(expires_at=bindparam("until"))
_HELD = select(LeaseRow.result, LeaseRow.expires_at).where(
    LeaseRow.holder == bindparam("of"), LeaseRow.expires_at > bindparam("at")
)
_CLAIMS = (
    select(LeaseRow)
    .where(LeaseRow.result.in_(bindparam("of", expanding=True)), LeaseRow.expires_at > bindparam("at"))
    .order_by(LeaseRow.expires_at)
)


def clock(session: Session, now: datetime) -> datetime:
    """Return the time of the database's clock; SQLite has none, and uses `now`, the time of its only machine."""
    if session.get_bind().dialect.name == "sqlite":
        own: Callable[[], datetime] = session.info.get(CLOCK, lambda: now)
        return own()
    at: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return at.astimezone(UTC)


def take_leases(session: Session, results: Iterable[int], holder: str, now: datetime) -> None:
    """Lease results, by number, to a reader; `now` is the machine's clock, used where the database has none."""
    numbers = list(results)
    if numbers:
        expires = clock(session, now) + LEASE
        session.execute(_TAKE, [{"result": each, "holder": holder, "expires_at": expires} for each in numbers])


def hold_leases(
    session: Session, holder: str, results: Collection[int], states: Collection[PartitionState], now: datetime
) -> frozenset[int]:
    """Renew the leases of `holder` on `results`, and return the results that it has none on from now on.

    Leases that ran out, since the process was suspended, are taken again on results that have one of `states` still.
    """
    at = clock(session, now)
    rows = session.execute(_HELD, {"of": holder, "at": at})
    held = {result: until for result, until in rows}  # noqa: C416  # to `dict` it would be a mapping, by its keys()
    expired = set(results) - held.keys()
    if not expired and all(each > at + LEASE - RENEWAL for each in held.values()):
        return frozenset()
    again = stored(session, expired, states)
    session.execute(_DROP_EXPIRED, {"of": holder, "at": at})
    session.execute(_RENEW, {"of": holder, "until": at + LEASE})
    take_leases(session, sorted(again), holder, now)
    return frozenset(expired - again)


def stored(session: Session, results: Collection[int], states: Collection[PartitionState]) -> frozenset[int]:
    """Return those of `results`, given by number, that have one of `states`."""
    numbers, found = sorted(results), set[int]()
    for begin in range(0, len(numbers), _AT_ONCE):
        query = select(ResultRow.id).where(
            ResultRow.id.in_(numbers[begin : begin + _AT_ONCE]), ResultRow.state.in_([each.value for each in states])
        )
        found.update(session.scalars(query))
    return frozenset(found)


def is_holding(session: Session, holder: str, now: datetime) -> bool:
    """Report whether `holder` has a lease now: its process renews them while it works."""
    return session.execute(_HELD.limit(1), {"of": holder, "at": clock(session, now)}).first() is not None


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

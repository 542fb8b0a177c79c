"""Ledger queries for verification: the results to read again, and those that were verified.

Invariant: a query reads the ledger in one transaction, and never the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import FailoverRow, HousekeepingRow, ResultRow, RunRow
from weir.ledger.names import unknown_run
from weir.ledger.runs import run_if_known, runs_of

_SCRUBBED = "scrubbed until"
"""The housekeeping job whose timestamp says until when the share of bytes to read is used up."""

_MOST = 10_000
"""The largest number of results that one scrub considers."""

_AT_ONCE = 100
"""How many of them are fetched together: an hour's share is some of them."""


def runs_named(session: Session, name: str | None) -> list[str]:
    """Return the runs of a dataflow, of one run, or of all (None). Raises Misconfigured with similar names."""
    known = runs_of(session, name)
    if known or name is None:
        return [row.id for row in known]
    run = run_if_known(session, name)
    if run is None:
        raise unknown_run(session, name, or_dataflow=True)
    return [run.id]


def results_to_verify(session: Session, runs: Collection[str], states: Iterable[PartitionState]) -> list[ResultRow]:
    """Return the results of some runs that are in one of these states, oldest epoch first."""
    query = (
        select(ResultRow)
        .where(ResultRow.run.in_(runs), ResultRow.state.in_([each.value for each in states]))
        .order_by(ResultRow.run, ResultRow.id)
    )
    return list(session.scalars(query))


def results_by_number(session: Session, numbers: Collection[int]) -> dict[int, ResultRow]:
    """Return results as they are now, by number."""
    return {row.id: row for row in session.scalars(select(ResultRow).where(ResultRow.id.in_(numbers)))}


def bytes_at_rest(session: Session, dataflow: str) -> int:
    """Return the bytes of all finished results of a dataflow."""
    query = (
        select(func.coalesce(func.sum(ResultRow.bytes), 0))
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state == PartitionState.FINISHED.value)
    )
    return int(session.scalar(query) or 0)


def longest_unverified(session: Session, dataflow: str) -> Iterator[ResultRow]:
    """Yield the finished results as they are asked for, those first whose last comparison, or commit, is the oldest."""
    query = (
        select(ResultRow)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state == PartitionState.FINISHED.value)
        .order_by(func.coalesce(ResultRow.verified_at, ResultRow.state_at), ResultRow.id)
        .limit(_MOST)
        .execution_options(yield_per=_AT_ONCE)
    )
    return iter(session.scalars(query))


def undecided_losses(session: Session, dataflow: str, since: datetime) -> list[ResultRow]:
    """Return current results that were lost since then, and whose run has had no failover decision after that."""
    decided = select(FailoverRow.id).where(
        FailoverRow.run == ResultRow.run, FailoverRow.decided_at >= ResultRow.state_at
    )
    query = (
        select(ResultRow)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(
            RunRow.dataflow == dataflow,
            ResultRow.state == PartitionState.LOST.value,
            ResultRow.is_current,
            ResultRow.state_at >= since,
            ~decided.exists(),
        )
        .order_by(ResultRow.run, ResultRow.id)
    )
    return list(session.scalars(query))


def mark_verified(session: Session, results: Collection[int], now: datetime) -> None:
    """Record that all bytes of these results were compared, and are as they were written."""
    session.execute(update(ResultRow).where(ResultRow.id.in_(results)).values(verified_at=now))


def scrubbed_until(session: Session, dataflow: str) -> datetime | None:
    """Return until when the share of a dataflow's bytes is used up; None before the first scrub."""
    row = session.get(HousekeepingRow, (_SCRUBBED, dataflow))
    return None if row is None else row.done_at


def note_scrubbed_until(session: Session, dataflow: str, until: datetime) -> None:
    """Record until when the share is used up."""
    session.merge(HousekeepingRow(job=_SCRUBBED, scope=dataflow, done_at=until))

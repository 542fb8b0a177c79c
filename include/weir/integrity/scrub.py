"""Scrub: read a share of all stored bytes again each hour, the least recently verified first.

Invariant: no more than `scrub_share` of a dataflow's bytes is read in an hour; an unused share accumulates only for a
result that is larger than the share. So every byte is read in turn. Losses that a killed scrub has found are repaired
by the next scrub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.integrity.archives import scrubbed_archives
from weir.integrity.records import Inconsistency, published_inconsistencies
from weir.integrity.repair import repair_runs
from weir.integrity.source_copies import scrubbed_source_copies
from weir.integrity.tables import scrubbed_tables
from weir.integrity.verify import BAD, Pages, VerifiedResult, VerifyOutcome, known_lost, verify_results
from weir.ledger.database.tables import FailoverRow, ResultRow, RunRow
from weir.ledger.housekeeping import last_done, note_done
from weir.recovery.pending_clears import deliver
from weir.recovery.repair import Repair
from weir.units import format_size

_HOUR = timedelta(hours=1)

_FORGOTTEN = timedelta(days=1)
"""A loss that is older is not repaired in advance: the result may not be needed any more."""

_SCRUBBED = "scrubbed until"
"""The housekeeping job whose timestamp says until when the share of bytes to read is used up."""

_MOST = 10_000
"""The largest number of results that one scrub considers."""

_AT_ONCE = 100
"""How many of them are fetched together: an hour's share is some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowScrub:
    """The results of one dataflow that were read, those that are bad, and the repairs of their runs."""

    dataflow: str
    results: int
    bytes: int
    bad: tuple[VerifiedResult, ...] = ()
    inconsistencies: tuple[Inconsistency, ...] = ()
    repairs: tuple[Repair, ...] = ()
    is_settled: bool = True

    def __str__(self) -> str:
        """A few sentences."""
        parts = [f"{self.results} result(s) read again, {format_size(self.bytes)}, {len(self.bad)} bad"]
        parts += [f"{each.outcome.value}: {each}" for each in self.bad]
        parts += [str(each) for each in (*self.inconsistencies, *self.repairs)]
        if not self.is_settled:
            parts.append("the clears are pending, and any later process delivers them")
        return "; ".join(parts)


def scrub_dataflow(services: Services, clearer: Clearer, dataflow: str, now: datetime | None = None) -> DataflowScrub:
    """Scrub one dataflow; repair what is bad and needed, if `scrub_repair` is set. Raises Retryable."""
    wanted = _reserved(services, dataflow, now or services.now())
    found = list(verify_results(services, wanted, "weir scrub", pages=Pages.NEW))
    bad = tuple(each for each in found if each.outcome in BAD)
    inconsistencies = (
        *published_inconsistencies(services, {each.run for each in found}),
        *scrubbed_archives(services, dataflow, services.retention.scrub_share, now or services.now()),
        *scrubbed_source_copies(services, dataflow, services.retention.scrub_share, now or services.now()),
        *scrubbed_tables(services, dataflow, services.retention.scrub_share, now or services.now()),
    )
    repairs = (
        repair_runs(services, _undecided(services, dataflow), inconsistencies)
        if services.retention.scrub_repair
        else ()
    )
    read = [each for each in found if each.outcome is not VerifyOutcome.GONE]
    is_settled = not any(each.owed for each in repairs) or _is_settled(services, clearer, dataflow)
    return DataflowScrub(
        dataflow=dataflow,
        results=len(read),
        bytes=sum(each.bytes for each in read),
        bad=bad,
        inconsistencies=inconsistencies,
        repairs=repairs,
        is_settled=is_settled,
    )


def _reserved(services: Services, dataflow: str, now: datetime) -> Sequence[ResultRow]:
    """Return the results to read now; count their bytes as read, so that two scrubs at once share the limit."""
    services.store_id()  # an unmounted disk costs no share
    with services.ledger.transaction(dataflow) as session:
        an_hour = services.retention.scrub_share * _bytes_at_rest(session, dataflow)
        if an_hour <= 0:
            return ()
        oldest = _longest_unverified(session, dataflow)
        until = last_done(session, _SCRUBBED, dataflow) or now - _HOUR
        first = next(oldest)
        allowed = min(an_hour * ((now - until) / _HOUR), max(an_hour, _size(first)))
        wanted: list[ResultRow] = []
        for row in chain([first], oldest):
            if _size(row) > allowed:
                break
            wanted.append(row)
            allowed -= _size(row)
        note_done(session, _SCRUBBED, dataflow, now - _HOUR * (allowed / an_hour))
    return wanted


def _size(row: ResultRow) -> int:
    return max(row.bytes, 1)


def _undecided(services: Services, dataflow: str) -> list[VerifiedResult]:
    """Return the losses without a failover decision: those of this scrub, and those of scrubs that were killed."""
    with services.ledger.transaction() as session:
        rows = _undecided_losses(session, dataflow, services.now() - _FORGOTTEN)
    return [known_lost(row) for row in rows]


def _is_settled(services: Services, clearer: Clearer, dataflow: str) -> bool:
    try:
        return all(each.is_settled for each in deliver(services, clearer, dataflow))
    except WeirError:
        return False  # they stay pending, and upkeep's next task logs why


# What the ledger has


def _bytes_at_rest(session: Session, dataflow: str) -> int:
    """Return the bytes of all finished results of a dataflow."""
    query = (
        select(func.coalesce(func.sum(ResultRow.bytes), 0))
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state == PartitionState.FINISHED.value)
    )
    return int(session.scalar(query) or 0)


def _longest_unverified(session: Session, dataflow: str) -> Iterator[ResultRow]:
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


def _undecided_losses(session: Session, dataflow: str, since: datetime) -> list[ResultRow]:
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

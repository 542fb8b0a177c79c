"""Scrubbing: a share of all stored bytes is read again each hour, what was compared the longest time ago first.

Invariant: no more than `scrub_share` of a dataflow's bytes an hour is read; what one hour leaves is saved up only for a
result that is larger than that. So each byte has its turn. What a killed scrub had found, the next one repairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.errors import WeirError
from weir.integrity.ledger import (
    bytes_at_rest,
    longest_unverified,
    note_scrubbed_until,
    scrubbed_until,
    undecided_losses,
)
from weir.integrity.records import Misfit, published_misfits
from weir.integrity.repair import Repair, repaired
from weir.integrity.verify import BAD, Outcome, Pages, Verified, known_lost, verify_results
from weir.ledger.database.tables import DataflowRow, ResultRow
from weir.recovery.pending_clears import settle
from weir.units import format_size

_HOUR = timedelta(hours=1)

_FORGOTTEN = timedelta(days=1)
"""What was lost so long ago is no longer repaired before somebody misses it: it may be needed no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    """What was read of one dataflow, what was bad, and what follows for the runs that need it."""

    dataflow: str
    results: int
    bytes: int
    bad: tuple[Verified, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    repairs: tuple[Repair, ...] = ()
    is_settled: bool = True

    def __str__(self) -> str:
        """A few sentences."""
        said = [f"{self.results} result(s) read again, {format_size(self.bytes)}, {len(self.bad)} bad"]
        said += [f"{each.outcome.value}: {each}" for each in self.bad]
        said += [str(each) for each in (*self.misfits, *self.repairs)]
        if not self.is_settled:
            said.append("the clears are owed, and whoever comes by carries them out")
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """What was scrubbed, by dataflow."""

    dataflows: tuple[Scrubbed, ...]

    def __str__(self) -> str:
        """One line a dataflow."""
        return "\n".join(f"{each.dataflow}: {each}" for each in self.dataflows) or "no dataflow has anything to scrub"


def scrub(services: Services, clearer: Clearer, now: datetime | None = None) -> ScrubReport:
    """Scrub all dataflows, as far as their share of the time since the last scrub goes. Raises Retryable."""
    with services.ledger.transaction() as session:
        names = list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))
    return ScrubReport(tuple(scrub_dataflow(services, clearer, name, now) for name in names))


def scrub_dataflow(services: Services, clearer: Clearer, dataflow: str, now: datetime | None = None) -> Scrubbed:
    """Scrub one dataflow; what is bad and needed is made again, if `scrub_repair` says so. Raises Retryable."""
    wanted = _reserved(services, dataflow, now or services.now())
    found = list(verify_results(services, wanted, "weir scrub", pages=Pages.NEW))
    bad = tuple(each for each in found if each.outcome in BAD)
    misfits = published_misfits(services, {each.run for each in found})
    repairs = repaired(services, _undecided(services, dataflow), misfits) if services.retention.scrub_repair else ()
    read = [each for each in found if each.outcome is not Outcome.GONE]
    is_settled = not any(each.owed for each in repairs) or _is_settled(services, clearer, dataflow)
    return Scrubbed(
        dataflow=dataflow,
        results=len(read),
        bytes=sum(each.bytes for each in read),
        bad=bad,
        misfits=misfits,
        repairs=repairs,
        is_settled=is_settled,
    )


def _reserved(services: Services, dataflow: str, now: datetime) -> Sequence[ResultRow]:
    """What is to be read now; its bytes are counted as read, so that two at once do not read twice the share."""
    services.store_id()  # an unmounted disk costs no share
    with services.ledger.transaction(dataflow) as session:
        an_hour = services.retention.scrub_share * bytes_at_rest(session, dataflow)
        if an_hour <= 0:
            return ()
        oldest = longest_unverified(session, dataflow)
        until = scrubbed_until(session, dataflow) or now - _HOUR
        allowed = min(an_hour * ((now - until) / _HOUR), max(an_hour, _size(oldest[0])))
        wanted: list[ResultRow] = []
        for row in oldest:
            if _size(row) > allowed:
                break
            wanted.append(row)
            allowed -= _size(row)
        note_scrubbed_until(session, dataflow, now - _HOUR * (allowed / an_hour))
    return wanted


def _size(row: ResultRow) -> int:
    return max(row.bytes, 1)


def _undecided(services: Services, dataflow: str) -> list[Verified]:
    """What is lost and not decided: what was found just now, and what was when nobody came to repair it."""
    with services.ledger.transaction() as session:
        rows = undecided_losses(session, dataflow, services.now() - _FORGOTTEN)
    return [known_lost(row) for row in rows]


def _is_settled(services: Services, clearer: Clearer, dataflow: str) -> bool:
    try:
        return all(each.is_settled for each in settle(services, clearer, dataflow))
    except WeirError:
        return False  # they stay owed, and upkeep's next task tells why

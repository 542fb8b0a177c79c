"""Read stored results again and record what was found.

Invariant: results are under lease while they are read; only a result that the ledger calls finished or lost, before
and after, is reported whole or lost. A bad result that is not needed any more is released, not lost: no repair waits
for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import groupby

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.formats.manifest import Manifest
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.results import record_losses, reference, transition
from weir.ledger.runs import dataflow_of
from weir.retention.release import release
from weir.store.probe import PartitionRef
from weir.store.verification import Watch, compare_results

_RESULTS_AT_ONCE, _BYTES_AT_ONCE = 200, 2 * 2**30
"""How much is read under one lease and recorded in one transaction: a killed process loses no more than that."""


class Pages(Enum):
    """The results whose Parquet page checksums are compared; these find damage from before the commit."""

    ALL = "all"
    NEW = "those that have never been verified"


class VerifyOutcome(Enum):
    """The outcome of verifying a result."""

    WHOLE = "whole"
    BACK = "back"
    """It was lost, and all of its bytes are back, as they were written."""
    LOST = "lost"
    """Bytes are missing or damaged."""
    UNNEEDED = "released"
    """Bytes are missing or damaged, and the result is not needed any more."""
    OTHERWISE = "otherwise"
    """Its bytes are intact, but ledger and manifest differ."""
    QUARANTINED = "quarantined"
    """Its bytes are intact, but its rows have another digest than the committed one."""
    UNREADABLE = "unreadable"
    """Its bytes are intact, but its rows could not be digested."""
    GONE = "gone"
    """It was released or recomputed meanwhile."""


VERIFIED = (PartitionState.FINISHED, PartitionState.LOST)
"""The states of results that are verified; the bytes of a lost result may be back."""

BAD = frozenset(VerifyOutcome) - {VerifyOutcome.WHOLE, VerifyOutcome.BACK, VerifyOutcome.GONE}
"""The outcomes that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedResult:
    """One result and the outcome of verifying it; `detail` and `loss` say what is bad."""

    result: int
    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    folder: str
    bytes: int
    is_current: bool
    outcome: VerifyOutcome
    detail: str = ""
    loss: Loss | None = None

    def __str__(self) -> str:
        """As a part of a sentence."""
        return f"{self.stage}[{self.subtask}] ({self.layout}) of {self.attempt} in {self.run}: {self.detail}"


def verify_results(
    services: Services,
    rows: Sequence[ResultRow],
    what: str,
    watch: Watch = lambda _bytes: None,
    pages: Pages = Pages.ALL,
) -> Iterator[VerifiedResult]:
    """Compare all bytes of results that the ledger calls finished or lost, and record the outcomes batch by batch.

    `what` names the reader in the lease. Raises Retryable where the store does not answer.
    """
    store_id = services.store_id()
    for dataflow, of_dataflow in groupby(rows, key=lambda row: dataflow_of(row.run)):
        for batch in _batches(list(of_dataflow)):
            numbers = [row.id for row in batch]
            with leased_reading(services, dataflow, numbers, reader(what)) as lease:
                claimed = [row for row in batch if row.id in lease.results or row.state == PartitionState.LOST.value]
                paged = {reference(row) for row in claimed if pages is Pages.ALL or row.verified_at is None}
                found = compare_results(services.store, store_id, [reference(row) for row in claimed], watch, paged)
            yield from _recorded(services, dataflow, batch, found)


def _batches(rows: list[ResultRow]) -> Iterator[list[ResultRow]]:
    batch: list[ResultRow] = []
    for row in rows:
        if batch and (len(batch) == _RESULTS_AT_ONCE or sum(each.bytes for each in batch) + row.bytes > _BYTES_AT_ONCE):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _recorded(
    services: Services, dataflow: str, batch: Sequence[ResultRow], found: Mapping[PartitionRef, Manifest | Loss]
) -> list[VerifiedResult]:
    losses = [answer for answer in found.values() if isinstance(answer, Loss)]
    if losses:
        release(services, dataflow, sorted({loss.run for loss in losses}))
    with services.ledger.transaction(dataflow) as session:
        record_losses(session, losses, services.now())
        now = results_by_number(session, [row.id for row in batch])
        answers = [(row, now.get(row.id), found.get(reference(row))) for row in batch]
        verified = [_outcome(session, services, *each) for each in answers]
        whole = [each.result for each in verified if each.outcome in (VerifyOutcome.WHOLE, VerifyOutcome.BACK)]
        mark_verified(session, whole, services.now())
    return verified


def _outcome(
    session: Session, services: Services, row: ResultRow, now: ResultRow | None, answer: Manifest | Loss | None
) -> VerifiedResult:
    if now is None or answer is None:
        return _verified(row, VerifyOutcome.GONE)
    state = PartitionState(now.state)
    if isinstance(answer, Loss):
        outcomes = {PartitionState.LOST: VerifyOutcome.LOST, PartitionState.RELEASED: VerifyOutcome.UNNEEDED}
        return _verified(now, outcomes.get(state, VerifyOutcome.GONE), f"{answer.fault.value}, {answer.detail}", answer)
    if state not in (PartitionState.LOST, PartitionState.FINISHED):
        return _verified(now, VerifyOutcome.GONE)
    differences = _differences(now, answer)
    if differences:
        return _verified(now, VerifyOutcome.OTHERWISE, differences)
    if state is PartitionState.FINISHED:
        return _verified(now, VerifyOutcome.WHOLE)
    transition(session, now, PartitionState.FINISHED, "all of its bytes are back, as they were written", services.now())
    now.fault = None
    session.get_one(RunRow, now.run).released_at = None  # it may have to be released now
    return _verified(now, VerifyOutcome.BACK)


def known_lost(row: ResultRow) -> VerifiedResult:
    """Return a lost result as the ledger recorded it, without reading it."""
    fault = Fault(row.fault or Fault.MISSING.value)
    loss = Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, fault, row.state_reason)
    return _verified(row, VerifyOutcome.LOST, row.state_reason, loss)


def _differences(row: ResultRow, manifest: Manifest) -> str:
    """Describe where the ledger and the manifest, whose digest it knows, differ."""
    names = ("attempt", "stage", "subtask", "layout", "digest", "rows", "bytes")
    pairs = ((name, str(getattr(row, name)), str(getattr(manifest, name))) for name in names)
    differing = [f"{name} {ledger} and {stored}" for name, ledger, stored in pairs if ledger != stored]
    return f"ledger and manifest differ: {', '.join(differing)}" if differing else ""


def _verified(row: ResultRow, outcome: VerifyOutcome, detail: str = "", loss: Loss | None = None) -> VerifiedResult:
    return taken(VerifiedResult, row, result=row.id, outcome=outcome, detail=detail, loss=loss)


# What the ledger has


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


def mark_verified(session: Session, results: Collection[int], now: datetime) -> None:
    """Record that all bytes of these results were compared, and are as they were written."""
    session.execute(update(ResultRow).where(ResultRow.id.in_(results)).values(verified_at=now))

"""Results: which attempt's is current, and what is known of its bytes.

Invariant 2: a commit replaces all outputs of a region in one transaction, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.orm import Session

from weir.errors import Fault, Loss
from weir.ledger.models import LeaseRow, ResultRow, Table
from weir.recovery.run_state import CurrentResult
from weir.results.partition_state import PartitionState
from weir.topology.regions import PartitionId

LEASE = timedelta(hours=1)
"""How long a reader's claim lasts if it is not renewed; longer than any wait between two signs of life."""


# Built once: to build a statement costs more than to carry it out.
_CURRENT = select(ResultRow).where(
    ResultRow.run == bindparam("run"),
    ResultRow.stage == bindparam("stage"),
    ResultRow.subtask == bindparam("subtask"),
    ResultRow.layout == bindparam("layout"),
    ResultRow.is_current,
)
_DAMAGED = select(ResultRow.attempt).where(
    ResultRow.attempt.in_(bindparam("attempts", expanding=True)), ResultRow.fault == Fault.DAMAGED.value
)
_LEASES = Table.metadata.tables[LeaseRow.__tablename__]
_TAKE_LEASES = insert(_LEASES)
_NEW_RESULTS = insert(Table.metadata.tables[ResultRow.__tablename__])
_DROP_LEASES = delete(_LEASES).where(_LEASES.c.holder == bindparam("of"))


@dataclass(frozen=True, slots=True)
class NewResult:
    """A result partition that has been written, with its manifest."""

    partition: PartitionId
    folder: str
    manifest_sha256: str
    digest: str
    rows: int
    bytes: int
    made_from: str | None = None
    differs_from: str | None = None


def replace_results(session: Session, run: str, attempt: str, results: Iterable[NewResult], now: datetime) -> None:
    """Make the results of `attempt` the current ones."""
    new = [_columns(run, attempt, each, now) for each in results]
    for columns in new:
        old = session.scalar(_CURRENT, {name: columns[name] for name in ("run", "stage", "subtask", "layout")})
        if old is not None:
            _supersede(old, attempt, now)
    session.flush()
    if new:
        session.connection().execute(_NEW_RESULTS, new)


def _columns(run: str, attempt: str, new: NewResult, now: datetime) -> dict[str, Any]:
    return {
        "run": run,
        "stage": new.partition.stage,
        "subtask": new.partition.subtask,
        "layout": new.partition.layout,
        "attempt": attempt,
        "is_current": True,
        "state": PartitionState.FINISHED.value,
        "state_at": now,
        "folder": new.folder,
        "manifest_sha256": new.manifest_sha256,
        "digest": new.digest,
        "rows": new.rows,
        "bytes": new.bytes,
        "made_from": new.made_from,
        "differs_from": new.differs_from,
    }


def _supersede(old: ResultRow, attempt: str, now: datetime) -> None:
    old.is_current = False
    if old.state != PartitionState.FINISHED.value:
        old.state, old.state_at, old.state_reason = PartitionState.SUPERSEDED.value, now, f"made again by {attempt}"


def supersede_all(session: Session, run: str, reason: str, now: datetime) -> int:
    """Take all current results of `run` out of use; answers how many there were."""
    rows = list(session.scalars(select(ResultRow).where(ResultRow.run == run, ResultRow.is_current)))
    for row in rows:
        row.is_current, row.state, row.state_at, row.state_reason = False, PartitionState.SUPERSEDED.value, now, reason
    return len(rows)


def results_in(session: Session, run: str, folders: Iterable[str]) -> list[ResultRow]:
    """The results of `run` in these folders, current or not."""
    return list(session.scalars(select(ResultRow).where(ResultRow.run == run, ResultRow.folder.in_(set(folders)))))


def record_losses(session: Session, losses: Iterable[Loss], now: datetime) -> None:
    """Mark results lost, each for the attempt that was probed and no other."""
    for loss in losses:
        session.execute(
            update(ResultRow)
            .where(
                ResultRow.attempt == loss.attempt,
                ResultRow.stage == loss.stage,
                ResultRow.subtask == loss.subtask,
                ResultRow.layout == loss.layout,
                ResultRow.state == PartitionState.FINISHED.value,
            )
            .values(
                state=PartitionState.LOST.value,
                state_at=now,
                state_reason=f"{loss.fault.value}: {loss.detail}",
                fault=loss.fault.value,
            )
        )


def record_found(session: Session, results: Iterable[CurrentResult], now: datetime) -> None:
    """Mark results finished again whose files are back, as recorded."""
    for result in results:
        if result.state is PartitionState.LOST:
            row = session.get_one(ResultRow, result.result)
            row.state, row.state_at, row.state_reason = PartitionState.FINISHED.value, now, "the files are back"
            row.fault = None


def damaged_attempts(session: Session, attempts: Iterable[str]) -> frozenset[str]:
    """Those of `attempts` of whose results bytes were found damaged, whether they are current or not."""
    asked = set(attempts)
    return frozenset(session.scalars(_DAMAGED, {"attempts": list(asked)})) if asked else frozenset()


def take_leases(session: Session, results: Iterable[CurrentResult], holder: str, now: datetime) -> None:
    """Claim results for a reader."""
    leases = [{"result": result.result, "holder": holder, "expires_at": now + LEASE} for result in results]
    if leases:
        session.execute(_TAKE_LEASES, leases)


def renew_leases(session: Session, holder: str, now: datetime) -> None:
    """Claim for longer what `holder` reads."""
    session.execute(update(LeaseRow).where(LeaseRow.holder == holder).values(expires_at=now + LEASE))


def drop_leases(session: Session, holder: str) -> None:
    """End the claims of `holder`."""
    session.flush()
    session.execute(_DROP_LEASES, {"of": holder})

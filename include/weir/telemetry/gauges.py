"""How a dataflow stands, as gauges: what keeps its bytes, what is pending, how old its checkpoint is, who waits.

Invariant: this reads the ledger only, and changes nothing. What keeps a result is what its release would say. A gauge
that has stood once is told as 0 when nothing is left of it, as long as the dataflow declares what it is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.execution.metrics import (
    AT_REST,
    CHECKPOINT_AGE,
    CHECKPOINT_BYTES,
    CHECKPOINT_NEW_BYTES,
    CHECKPOINT_SECONDS,
    DELIVERY_LAG,
    LATE_FILES,
    NOTIFICATION_LAG,
    PENDING_CLEARS,
    SCRUB_AGE,
    SCRUB_RATIO,
    Measurement,
)
from weir.execution.partition_state import PartitionState
from weir.ledger.checkpoints import newest_checkpoint
from weir.ledger.clears import pending_clears
from weir.ledger.database.tables import DeliveryRow, PublicationRow, ResultRow, RunRow
from weir.ledger.outbox import declared_receivers, waiting_receivers
from weir.ledger.runs import newest_pinned, topology_of
from weir.ledger.sources import copied_bytes, late_counts
from weir.retention.deletion_rules import Keeper
from weir.retention.release import release
from weir.retention.sizes import archive_bytes, dataflows, published_bytes, shared_state, suspected_bytes
from weir.units import seconds_since

CODE: Final = "code"
SOURCE: Final = "source"
"""What keeps an archive of code, beside the values of Keeper."""

_OF_DATAFLOW = RunRow.dataflow == bindparam("dataflow")

_VERIFIED = (
    select(
        func.sum(ResultRow.bytes),
        func.sum(case((ResultRow.verified_at.is_not(None), ResultRow.bytes), else_=0)),
        func.min(func.coalesce(ResultRow.verified_at, ResultRow.state_at)),
    )
    .join(RunRow, RunRow.id == ResultRow.run)
    .where(_OF_DATAFLOW, ResultRow.state == PartitionState.FINISHED.value)
)

_UNDELIVERED = (
    select(DeliveryRow.sink, func.min(PublicationRow.published_at))
    .join(RunRow, RunRow.id == DeliveryRow.run)
    .join(
        PublicationRow,
        (PublicationRow.run == DeliveryRow.run)
        & (PublicationRow.sink == DeliveryRow.sink)
        & (PublicationRow.version == DeliveryRow.version),
    )
    .where(_OF_DATAFLOW, DeliveryRow.outcome.is_(None), PublicationRow.published_at.is_not(None))
    .group_by(DeliveryRow.sink)
)


def gauges_everywhere(services: Services) -> tuple[list[Measurement], Settled]:
    """Return the gauges of all dataflows, and where they could not be told."""
    gauges: list[Measurement] = []
    kept = Settled()
    names: list[str] = []
    with kept.trying("gauges"), services.ledger.transaction() as session:
        names = dataflows(session)
    for dataflow in names:
        with kept.trying(f"{dataflow}, gauges"):
            gauges += gauges_of(services, dataflow)
    return gauges, kept


def gauges_of(services: Services, dataflow: str) -> list[Measurement]:
    """Return the gauges of a dataflow. Raises Retryable, and Misconfigured for a run that cannot be read."""
    by_keeper = bytes_at_rest(services, dataflow)
    with services.ledger.transaction() as session:
        now = services.now()
        return [
            *(AT_REST.of(size, dataflow, keeper) for keeper, size in by_keeper.items()),
            PENDING_CLEARS.of(pending_clears(session, dataflow), dataflow),
            LATE_FILES.of(late_counts(session, dataflow).total(), dataflow),
            *_of_checkpoint(session, dataflow, now),
            *_of_scrub(session, dataflow, now),
            *_of_targets(session, dataflow, now),
            *_of_receivers(session, dataflow, now),
        ]


def bytes_at_rest(services: Services, dataflow: str) -> dict[str, int]:
    """Return the stored bytes of a dataflow by what keeps them: values of Keeper, CODE, and SOURCE for its copies."""
    sizes = dict.fromkeys([*(keeper.value for keeper in Keeper), CODE, SOURCE], 0)
    for result in release(services, dataflow, is_dry=True):
        sizes[result.keeper.value] += result.stored.bytes
    with services.ledger.transaction() as session:
        sizes[Keeper.VERSION.value] += published_bytes(session, [dataflow]).get(dataflow, 0)
        # What is released and not deleted: later checkpoints name its files.
        sizes[Keeper.CHECKPOINT.value] += shared_state(session, [dataflow]).get(dataflow, 0)
        sizes[Keeper.QUARANTINE.value] += suspected_bytes(session, dataflow)
        sizes[CODE] += archive_bytes(session, [dataflow]).get(dataflow, 0)
        sizes[SOURCE] += copied_bytes(session, [dataflow]).get(dataflow, 0)
    return sizes


def _of_checkpoint(session: Session, dataflow: str, now: datetime) -> Iterator[Measurement]:
    newest = newest_checkpoint(session, dataflow)
    if newest is not None and newest.completed_at is not None:
        yield CHECKPOINT_SECONDS.of((newest.completed_at - newest.triggered_at).total_seconds(), dataflow)
        yield CHECKPOINT_BYTES.of(newest.full_bytes, dataflow)
        yield CHECKPOINT_NEW_BYTES.of(newest.incremental_bytes, dataflow)
        yield CHECKPOINT_AGE.of(seconds_since(newest.completed_at, now), dataflow)


def _of_scrub(session: Session, dataflow: str, now: datetime) -> Iterator[Measurement]:
    stored, verified, oldest = session.execute(_VERIFIED, {"dataflow": dataflow}).one()
    if stored:
        yield SCRUB_RATIO.of(int(verified) / int(stored), dataflow)
        yield SCRUB_AGE.of(seconds_since(oldest, now), dataflow)


def _of_targets(session: Session, dataflow: str, now: datetime) -> Iterator[Measurement]:
    pinned = newest_pinned(session, dataflow)
    stages = () if pinned is None else topology_of(pinned).dataflow.stages
    lags = {stage.name: 0.0 for stage in stages if stage.targets}
    for sink, since in session.execute(_UNDELIVERED, {"dataflow": dataflow}).tuples():
        lags[sink] = 0.0 if since is None else seconds_since(since, now)
    return (DELIVERY_LAG.of(lag, dataflow, sink) for sink, lag in lags.items())


def _of_receivers(session: Session, dataflow: str, now: datetime) -> Iterator[Measurement]:
    lags = {receiver.name: 0.0 for receiver in declared_receivers(session, dataflow)}
    for waiting in waiting_receivers(session, dataflow, now):
        lags[waiting.receiver.name] = seconds_since(waiting.oldest, waiting.at)
    return (NOTIFICATION_LAG.of(lag, dataflow, name) for name, lag in lags.items())

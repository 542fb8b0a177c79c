"""What the release of results depends on, read in one transaction. Invariant: it changes nothing.

Invariant 4: whoever may need a result is seen here: leases, publications, and runs that read it over `previous`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.ledger.leases import leased
from weir.ledger.models import AttemptRow, PublicationRow, ResultRow, RunRow
from weir.ledger.runs import Run, run_by_id, topology_of
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.run_state import CLOSE, AttemptState
from weir.results.life_settings import LifeSettings
from weir.results.partition_state import PartitionState
from weir.results.release_rule import QUIET, Pin, RunLife, StoredResult
from weir.topology.regions import PartitionId


def run_life(session: Session, run: Run, settings: LifeSettings, now: datetime) -> RunLife:
    """What the release of the results of `run` depends on; `settings` are those of its dataflow."""
    row = session.get_one(RunRow, run.id)
    state = run_state(session, run)
    stored = stored_results(session, run.id)
    return RunLife(
        state,
        tuple(_stored(each) for each in stored),
        {**_read(session, stored, now), **_published(session, run.id, stored, now)},
        _needed_later(session, row, settings, now),
        row.closed_at,
        _closed_after(session, row),
        _is_last_word(session, run.id),
        last_event(session, row),
        row.deleted_at is not None and row.deleted_at + settings.orphan_age <= now,
    )


def runs_to_release(session: Session, dataflow: str) -> list[str]:
    """The runs in which something may have to be released, oldest epoch first."""
    query = select(RunRow.id).where(
        RunRow.dataflow == dataflow, RunRow.pinned.is_not(None), RunRow.released_at.is_(None)
    )
    return list(session.scalars(query.order_by(RunRow.epoch)))


def stored_results(session: Session, run: str) -> list[ResultRow]:
    """The results of `run` whose bytes are there, current or not."""
    query = select(ResultRow).where(ResultRow.run == run, ResultRow.state == PartitionState.FINISHED.value)
    return list(session.scalars(query.order_by(ResultRow.id)))


def last_event(session: Session, run: RunRow) -> datetime:
    """When something happened in a run last."""
    query = select(func.max(AttemptRow.began_at), func.max(AttemptRow.ended_at)).where(AttemptRow.run == run.id)
    began, ended = session.execute(query).one()
    return max(each for each in (run.created_at, began, ended) if each is not None)


def _stored(row: ResultRow) -> StoredResult:
    return StoredResult(row.id, PartitionId(row.stage, row.subtask, row.layout), row.attempt, row.is_current, row.bytes)


def _read(session: Session, stored: Collection[ResultRow], now: datetime) -> dict[int, Pin]:
    leases = leased(session, [row.id for row in stored], now)
    return {
        result: Pin(f"{row.holder} reads it, under lease until {row.expires_at:%Y-%m-%d %H:%M:%S}Z")
        for result, row in leases.items()
    }


def _published(session: Session, run: str, stored: Collection[ResultRow], now: datetime) -> dict[int, Pin]:
    """Results that published versions are made of; readers of a version that was replaced get an hour to leave."""
    query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.expired_at.is_(None))
    newest: dict[str, PublicationRow] = {}
    pins: dict[int, Pin] = {}
    for row in session.scalars(query.order_by(PublicationRow.version.desc())):
        newer = newest.get(row.sink)
        is_left = newer is not None and newer.published_at is not None and newer.published_at + QUIET <= now
        if is_left:
            continue
        if row.published_at is not None and newer is None:
            newest[row.sink] = row
        pin = Pin(f"it is version {row.version} of {row.sink}", is_lasting=newest.get(row.sink) is row)
        for each in _parts(row, stored):
            pins.setdefault(each.id, pin)
    return pins


def _parts(row: PublicationRow, stored: Collection[ResultRow]) -> list[ResultRow]:
    """The results that a version is made of; where that is not known, all of the sink."""
    if row.folders is None:
        return [each for each in stored if each.stage == row.sink]
    folders = set(row.folders)
    return [each for each in stored if each.folder in folders]


def _needed_later(session: Session, row: RunRow, settings: LifeSettings, now: datetime) -> Mapping[str, str]:
    """Which stages an epoch behind this one may read over `previous`, and which."""
    later = list(
        session.scalars(select(RunRow).where(RunRow.dataflow == row.dataflow, RunRow.predecessor == row.epoch))
    )
    readers = [each for each in later if each.pinned is not None]
    if readers:
        open_ones = [each for each in readers if not _is_over(session, each, settings, now)]
        return {stage: f"{each.id} may read it" for each in open_ones for stage in _read_over_previous(each)}
    if not later and _has_later(session, row):
        return {}  # the epochs behind it have another predecessor
    return dict.fromkeys(_read_over_previous(_newest_pinned(session, row)), "the next epoch reads it")


def _is_over(session: Session, row: RunRow, settings: LifeSettings, now: datetime) -> bool:
    if row.deleted_at is not None and row.deleted_at + settings.orphan_age <= now:
        return True
    if row.closed_at is not None:
        state = run_state(session, run_by_id(session, row.id))
        regions = [state.region(each) for each in state.region_ids()]
        if not any(each.at_work or each.newest_state is AttemptState.FAILED for each in regions):
            return True
    return settings.keep_failed is not None and last_event(session, row) + settings.keep_failed <= now


def _has_later(session: Session, row: RunRow) -> bool:
    query = select(RunRow.id).where(RunRow.dataflow == row.dataflow, RunRow.epoch > row.epoch).limit(1)
    return session.scalar(query) is not None


def _newest_pinned(session: Session, row: RunRow) -> RunRow:
    query = (
        select(RunRow)
        .where(RunRow.dataflow == row.dataflow, RunRow.pinned.is_not(None))
        .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
        .limit(1)
    )
    return session.scalar(query) or row


def _read_over_previous(row: RunRow) -> set[str]:
    if row.pinned is None:
        return set()
    topology = topology_of(row.pinned)
    return {read.producer for region in topology.region_ids() for read in topology.previous_inputs(region)}


def newest_dataflow_settings(session: Session, dataflow: str, deployed: LifeSettings) -> LifeSettings:
    """The life settings of a dataflow: what its newest run was pinned to says, whatever older ones did."""
    query = (
        select(RunRow.pinned)
        .where(RunRow.dataflow == dataflow, RunRow.pinned.is_not(None))
        .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
        .limit(1)
    )
    pinned = session.scalar(query)
    return deployed if pinned is None else deployed.of(topology_of(pinned).dataflow)


def _closed_after(session: Session, row: RunRow) -> int | None:
    if row.closed_at is None:
        return None
    query = select(func.count()).where(
        RunRow.dataflow == row.dataflow, RunRow.id != row.id, RunRow.closed_at > row.closed_at
    )
    return session.scalar(query) or 0


def _is_last_word(session: Session, run: str) -> bool:
    """Whether the closing task has committed after all results that are current."""
    closing = committed_attempt(session, run, CLOSE)
    if closing is None or closing.ended_at is None:
        return False
    query = select(func.max(AttemptRow.ended_at)).join(ResultRow, ResultRow.attempt == AttemptRow.id)
    newest = session.scalar(query.where(ResultRow.run == run, ResultRow.is_current))
    return newest is None or newest <= closing.ended_at

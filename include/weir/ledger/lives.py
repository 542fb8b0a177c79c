"""What the release of results depends on, read in one transaction. Invariant: it changes nothing.

Invariant 4: whoever may need a result is seen here: leases, publications, and runs that read it over `previous`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from weir.dataflow.keep import KeepUntil
from weir.ledger.checkpoint_pins import checkpoint_pins, why_subsumed
from weir.ledger.leases import leased
from weir.ledger.models import AttemptRow, PublicationRow, ResultRow, RunRow
from weir.ledger.runs import Run, run_by_id, topology_of
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.run_state import CLOSE, AttemptState
from weir.results.life_settings import LifeSettings
from weir.results.partition_state import PartitionState
from weir.results.release_rule import Pin, RunLife, StoredResult, Verdict
from weir.topology.regions import PartitionId, Topology

# Built once: every commit asks, and to build a statement costs more than to carry it out.
_OF_RUN, _OF_DATAFLOW = ResultRow.run == bindparam("run"), RunRow.dataflow == bindparam("dataflow")
_IN_QUARANTINE = (ResultRow.state == PartitionState.QUARANTINED.value) & ResultRow.is_current.is_(False)
_STORED = (
    select(ResultRow)
    .where(_OF_RUN, (ResultRow.state == PartitionState.FINISHED.value) | _IN_QUARANTINE)
    .order_by(ResultRow.id)
)
_OLD = (
    select(ResultRow.id)
    .where(_OF_RUN, ResultRow.state == PartitionState.FINISHED.value, ResultRow.is_current.is_(False))
    .limit(1)
)
_EVENTS = select(func.max(AttemptRow.began_at), func.max(AttemptRow.heard_at), func.max(AttemptRow.ended_at)).where(
    AttemptRow.run == bindparam("run")
)
_PUBLISHED = (
    select(PublicationRow)
    .where(PublicationRow.run == bindparam("run"), PublicationRow.expired_at.is_(None))
    .order_by(PublicationRow.version.desc())
)
_NEXT = select(RunRow).where(_OF_DATAFLOW, RunRow.predecessor == bindparam("epoch"))
_MADE_LATER = (
    select(ResultRow.id)
    .join(RunRow, RunRow.id == ResultRow.run)
    .where(
        _OF_DATAFLOW,
        RunRow.epoch > bindparam("epoch"),
        ResultRow.stage == bindparam("stage"),
        ResultRow.is_current,
        ResultRow.state.in_((PartitionState.FINISHED.value, PartitionState.RELEASED.value)),
    )
    .limit(1)
)
_NEWEST_PINNED = (
    select(RunRow.pinned)
    .where(RunRow.dataflow == bindparam("dataflow"), RunRow.pinned.is_not(None))
    .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
    .limit(1)
)
_CLOSED_AFTER = select(func.count()).where(
    _OF_DATAFLOW, RunRow.id != bindparam("run"), RunRow.closed_at > bindparam("closed_at")
)
_NEWEST_CURRENT = (
    select(func.max(AttemptRow.ended_at))
    .join(ResultRow, ResultRow.attempt == AttemptRow.id)
    .where(_OF_RUN, ResultRow.is_current)
)


def run_life(session: Session, run: Run, settings: LifeSettings, now: datetime) -> RunLife:
    """What the release of the results of `run` depends on; `settings` are those of its dataflow."""
    row = session.get_one(RunRow, run.id)
    state = run_state(session, run)
    stored = stored_results(session, run.id)
    return RunLife(
        state,
        tuple(_stored(each, run.topology) for each in stored),
        {
            **_read(session, stored, now),
            **checkpoint_pins(session, row, run.topology, stored),
            **_published(session, run.id, stored),
        },
        _needed_later(session, row, settings, now),
        row.closed_at,
        _closed_after(session, row),
        _is_last_word(session, run.id),
        last_event(session, row),
        row.deleted_at is not None and row.deleted_at + settings.orphan_age <= now,
        frozenset(run.topology.states),
        why_subsumed(session, row, run.topology, settings.retained_checkpoints),
    )


def runs_to_release(session: Session, dataflow: str) -> list[str]:
    """The runs in which something may have to be released, oldest epoch first."""
    query = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.released_at.is_(None))
    return list(session.scalars(query.order_by(RunRow.epoch)))


def unpinned_verdicts(session: Session, run: str, now: datetime) -> tuple[Verdict, ...]:
    """What becomes of the results of a run that is to be pinned anew: none counts any more."""
    stored = stored_results(session, run)
    pins = {**_read(session, stored, now), **_checkpointed(session, run, stored), **_published(session, run, stored)}
    return tuple(
        Verdict(_stored(each), is_released=False, reason=pins[each.id].reason)
        if each.id in pins
        else Verdict(_stored(each), is_released=True, reason="its run is to be pinned anew, and nobody reads it")
        for each in stored
        if not each.is_current
    )


def _checkpointed(session: Session, run: str, stored: Collection[ResultRow]) -> dict[int, Pin]:
    """What retained checkpoints name of a run that is to be pinned anew."""
    row = session.get_one(RunRow, run)
    pinned = _newest_pinned(session, row.dataflow)
    return checkpoint_pins(session, row, None if pinned is None else topology_of(pinned), stored)


def stored_results(session: Session, run: str) -> list[ResultRow]:
    """The results of `run` whose bytes are there, current or not; of those in quarantine only what nobody misses."""
    return list(session.scalars(_STORED, {"run": run}))


def is_all_kept(session: Session, row: RunRow, settings: LifeSettings, now: datetime) -> bool:
    """Whether a policy keeps all that an open run has, whoever needs it: then nothing else has to be looked at."""
    is_open = row.closed_at is None and row.deleted_at is None
    if not is_open or settings.keep.until is KeepUntil.CONSUMED or session.scalar(_OLD, {"run": row.id}) is not None:
        return False
    return settings.keep_failed is None or last_event(session, row) + settings.keep_failed > now


def last_event(session: Session, run: RunRow) -> datetime:
    """When something happened in a run last."""
    events = session.execute(_EVENTS, {"run": run.id}).one()
    return max(each for each in (run.created_at, *events) if each is not None)


def _stored(row: ResultRow, topology: Topology | None = None) -> StoredResult:
    # A run may have been moved to a form that has no such stage.
    is_declared = topology is not None and row.stage in _chancy(topology)
    is_chancy = is_declared or row.differs_from is not None
    partition = PartitionId(row.stage, row.subtask, row.layout)
    is_quarantined = row.state == PartitionState.QUARANTINED.value
    return StoredResult(row.id, partition, row.attempt, row.is_current, row.bytes, is_chancy, is_quarantined)


def _chancy(topology: Topology) -> set[str]:
    return {stage.name for stage in topology.dataflow.stages if not stage.deterministic}


def _read(session: Session, stored: Collection[ResultRow], now: datetime) -> dict[int, Pin]:
    leases = leased(session, [row.id for row in stored], now)
    return {
        result: Pin(f"{row.holder} reads it, under lease until {row.expires_at:%Y-%m-%d %H:%M:%S}Z")
        for result, row in leases.items()
    }


def _published(session: Session, run: str, stored: Collection[ResultRow]) -> dict[int, Pin]:
    """Results that versions are made of whose pointers may be there: these go first, and then the ledger says so."""
    newest: set[str] = set()
    pins: dict[int, Pin] = {}
    for row in session.scalars(_PUBLISHED, {"run": run}):
        is_newest = row.published_at is not None and row.sink not in newest
        if is_newest:
            newest.add(row.sink)
        for each in _parts(row, stored):
            pins.setdefault(each.id, Pin(f"it is version {row.version} of {row.sink}", is_lasting=is_newest))
    return pins


def _parts(row: PublicationRow, stored: Collection[ResultRow]) -> list[ResultRow]:
    """The results that a version is made of; where that is not known, all of the sink."""
    if row.folders is None:
        return [each for each in stored if each.stage == row.sink]
    folders = set(row.folders)
    return [each for each in stored if each.folder in folders]


def _needed_later(session: Session, row: RunRow, settings: LifeSettings, now: datetime) -> Mapping[str, str]:
    """Which stages an epoch behind this one may read over `previous`, and which."""
    later = list(session.scalars(_NEXT, {"dataflow": row.dataflow, "epoch": row.epoch}))
    readers = [each for each in later if each.pinned is not None]
    open_ones = [each for each in readers if not _is_over(session, each, settings, now)]
    needed = {stage: f"{each.id} may read it" for each in open_ones for stage in _read_over_previous(each.pinned)}
    read = _read_over_previous(_newest_pinned(session, row.dataflow))
    if read and later and not readers:
        return dict.fromkeys(read, "the next epoch reads it")
    # A reader that was given up before it had made its own does not free what is the last of its kind.
    last = {stage: "the next epoch reads it" for stage in read if not _is_made_later(session, row, stage)}
    return {**last, **needed}


def _is_over(session: Session, row: RunRow, settings: LifeSettings, now: datetime) -> bool:
    if row.deleted_at is not None and row.deleted_at + settings.orphan_age <= now:
        return True
    if row.closed_at is not None:
        state = run_state(session, run_by_id(session, row.id))
        regions = [state.region(each) for each in state.region_ids()]
        if not any(each.at_work or each.newest_state is AttemptState.FAILED for each in regions):
            return True
    return settings.keep_failed is not None and last_event(session, row) + settings.keep_failed <= now


def _is_made_later(session: Session, row: RunRow, stage: str) -> bool:
    """Whether an epoch behind this one has a result of a stage, or has had one as long as it was needed."""
    wanted = {"dataflow": row.dataflow, "epoch": row.epoch, "stage": stage}
    return session.scalar(_MADE_LATER, wanted) is not None


def _newest_pinned(session: Session, dataflow: str) -> Mapping[str, Any] | None:
    pinned: Mapping[str, Any] | None = session.scalar(_NEWEST_PINNED, {"dataflow": dataflow})
    return pinned


def _read_over_previous(pinned: Mapping[str, Any] | None) -> set[str]:
    topology = None if pinned is None else topology_of(pinned)
    if topology is None or not topology.reads_previous:
        return set()
    return {read.producer for region in topology.region_ids() for read in topology.previous_inputs(region)}


def newest_dataflow_settings(session: Session, dataflow: str, deployed: LifeSettings) -> LifeSettings:
    """The life settings of a dataflow: what its newest run was pinned to says, whatever older ones did."""
    pinned = _newest_pinned(session, dataflow)
    return deployed if pinned is None else deployed.of(topology_of(pinned).dataflow)


def _closed_after(session: Session, row: RunRow) -> int | None:
    if row.closed_at is None:
        return None
    return session.scalar(_CLOSED_AFTER, {"dataflow": row.dataflow, "run": row.id, "closed_at": row.closed_at}) or 0


def _is_last_word(session: Session, run: str) -> bool:
    """Whether the closing task has committed after all results that are current."""
    closing = committed_attempt(session, run, CLOSE)
    if closing is None or closing.ended_at is None:
        return False
    newest = session.scalar(_NEWEST_CURRENT, {"run": run})
    return newest is None or newest <= closing.ended_at

"""Ledger queries for deletion: everything that may need a result, an attempt's folder or a run, in one transaction.

Invariant 4: leases, publications, checkpoints that are retained or being completed, and runs that read over `previous`
are all included. A query changes nothing; deletions are recorded only for results that are out of use. Invariant 9:
what came first is told by the ledger's numbers and by epochs, never by the times of two workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Integer, bindparam, case, func, select, union
from sqlalchemy.orm import Session, defer

from weir.dataflow.retention import RetainUntil
from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.formats.checkpoint import SnapshotKind
from weir.formats.paths import COPY
from weir.ledger.attempts import LIVE
from weir.ledger.checkpoints import is_needed, is_retained, runs_of_lost_checkpoints, runs_with_checkpoints
from weir.ledger.database.tables import (
    AttemptRow,
    CheckpointRow,
    LeaseRow,
    PublicationRow,
    RestoreRow,
    ResultRow,
    RunRow,
)
from weir.ledger.leases import clock, leased
from weir.ledger.runs import Run, newest_pinned, run_by_id, topology_of
from weir.ledger.snapshot import run_state
from weir.ledger.sources import copy_ids
from weir.recovery.inputs import checkpointed
from weir.retention.deletion_rules import (
    Keeper,
    KnownAttempt,
    KnownResult,
    Pin,
    ReleaseDecision,
    RunKnowledge,
    RunRetention,
    StoredResult,
    is_given_up,
    is_gone,
    is_kept,
    is_silent,
    release_decisions,
)
from weir.retention.folder_rules import Place, RunFolder
from weir.topology.ids import AttemptId
from weir.topology.regions import PartitionId, Topology

# Built once: every commit uses them, and building a statement costs more than executing it.
_OF_RUN, _OF_DATAFLOW = ResultRow.run == bindparam("run"), RunRow.dataflow == bindparam("dataflow")

_IN_QUARANTINE = (ResultRow.state == PartitionState.QUARANTINED.value) & ResultRow.is_current.is_(False)

_STORED = (
    select(ResultRow)
    .where(_OF_RUN, (ResultRow.state == PartitionState.FINISHED.value) | _IN_QUARANTINE)
    .order_by(ResultRow.id)
)

_BRIEFLY = select(RunRow).options(defer(RunRow.pinned), defer(RunRow.parameters), defer(RunRow.abandoned))

_PINNED = _BRIEFLY.where(
    RunRow.id.in_(bindparam("runs", expanding=True)), RunRow.is_pinned, RunRow.deleted_at.is_(None)
)

_OLDEST_CLOSED = (
    select(RunRow.epoch)
    .where(_OF_DATAFLOW, RunRow.closed_at.is_not(None))
    .order_by(RunRow.epoch.desc())
    .offset(bindparam("newer", type_=Integer))
    .limit(1)
)

_FINISHED = ResultRow.run.in_(bindparam("runs", expanding=True)) & (ResultRow.state == PartitionState.FINISHED.value)

_WITH_OLD = select(ResultRow.run).where(_FINISHED, ResultRow.is_current.is_(False)).distinct()

_RUNS_WITH_OLD = select(ResultRow.run).where(
    ResultRow.state == PartitionState.FINISHED.value, ResultRow.is_current.is_(False)
)

_UNRELEASED = select(RunRow.id).where(_OF_DATAFLOW, RunRow.released_at.is_(None)).order_by(RunRow.epoch)

_CURRENT_STAGES = select(ResultRow.run, ResultRow.stage).where(_FINISHED, ResultRow.is_current).distinct()

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

_CLOSED_LATER = select(func.count()).where(
    _OF_DATAFLOW, RunRow.epoch > bindparam("epoch"), RunRow.closed_at.is_not(None)
)

_NEWEST_CURRENT = select(func.max(ResultRow.id)).where(_OF_RUN, ResultRow.is_current)

_OWN = CheckpointRow.kind == SnapshotKind.CHECKPOINT.value

_NEEDED_BY = (
    select(CheckpointRow.number, CheckpointRow.results)
    .where(CheckpointRow.run == bindparam("run"), is_needed())
    .order_by(CheckpointRow.number)
)


def runs_to_release(session: Session, dataflow: str) -> list[str]:
    """Return the runs that may have results to release, oldest epoch first."""
    return list(session.scalars(_UNRELEASED, {"dataflow": dataflow}))


def runs_not_kept(
    session: Session, dataflow: str, settings: RetentionSettings, now: datetime, runs: Collection[str] | None = None
) -> list[str]:
    """Return the runs of which a policy does not keep all stored results, of `runs` or of those that may have any.

    Nothing else has to be read of the others.
    """
    if settings.keep.until is RetainUntil.CONSUMED:
        return runs_to_release(session, dataflow) if runs is None else list(runs)
    oldest, retained = _oldest_kept(session, dataflow, settings), runs_with_checkpoints(session, dataflow)
    if runs is not None:
        found = list(runs)
    else:
        query = _UNRELEASED
        if not retained:  # as for each of them below, but for the most of them without a look at each
            closed_after = case((RunRow.epoch >= oldest, 0), else_=settings.keep.runs)
            kept = RunRow.closed_at.is_not(None) & is_kept(settings.keep, RunRow.closed_at, closed_after, now)
            kept &= RunRow.deleted_at.is_(None) & RunRow.is_pinned
            query = query.where(~kept | RunRow.id.in_(_RUNS_WITH_OLD))
        found = list(session.scalars(query, {"dataflow": dataflow}))
    old = set(session.scalars(_WITH_OLD, {"runs": found}))
    rows = [row for row in session.scalars(_PINNED, {"runs": found}) if row.id not in old]
    rows = [row for row in rows if _is_all_kept(session, row, settings, oldest, now)]
    doubtful = [row.id for row in rows if row.closed_at is not None and retained and row.id not in retained]
    without = {row.id for row in rows} - (_with_states(session, doubtful) if doubtful else set())
    return [run for run in found if run not in without]


def _oldest_kept(session: Session, dataflow: str, settings: RetentionSettings) -> str:
    """Return the oldest closed epoch that a number of retained runs keeps; empty if it keeps all."""
    if settings.keep.until is not RetainUntil.RUNS:
        return ""
    return session.scalar(_OLDEST_CLOSED, {"dataflow": dataflow, "newer": settings.keep.runs - 1}) or ""


def _is_all_kept(session: Session, row: RunRow, settings: RetentionSettings, oldest: str, now: datetime) -> bool:
    """Report whether a policy keeps a run's current results that are no state; `oldest` is `_oldest_kept`."""
    if row.closed_at is not None:
        closed_after = 0 if row.epoch >= oldest else settings.keep.runs
        return bool(is_kept(settings.keep, row.closed_at, closed_after, now))
    limit = settings.keep_failed
    return not (is_silent(row.created_at, limit, now) and is_silent(last_event(session, row), limit, now))


def _with_states(session: Session, runs: Collection[str]) -> set[str]:
    """Return those pinned runs that have results of states."""
    stages = session.execute(_CURRENT_STAGES, {"runs": runs}).all()
    pinned = session.execute(select(RunRow.id, RunRow.pinned).where(RunRow.id.in_(runs)))
    states = {run: topology_of(content).states for run, content in pinned}
    return {run for run, stage in stages if stage in states[run]}


def run_retention(session: Session, run: Run, settings: RetentionSettings, now: datetime) -> RunRetention:
    """Return the facts that the release of `run` depends on; `settings` are those of its dataflow."""
    row = session.get_one(RunRow, run.id)
    state = run_state(session, run)
    stored = stored_results(session, run.id)
    checkpoints = _checkpointed(session, run.id)
    of_run = {"dataflow": row.dataflow, "epoch": row.epoch}
    is_deleted = is_gone(row.deleted_at, settings, now)
    is_due = not is_deleted and (row.closed_at is None or bool(checkpoints))
    return RunRetention(
        state=state,
        stored=tuple(_stored(each, run.topology) for each in stored),
        pins={
            **_read(session, stored, now),
            **checkpoints,
            **_published(session, run.id, stored),
        },
        needed_later=_needed_later(session, row, settings, now),
        closed_at=row.closed_at,
        closed_after=0 if row.closed_at is None else session.scalar(_CLOSED_LATER, of_run) or 0,
        is_close_newest=_is_close_newest(session, row),
        last_event=last_event(session, row),
        is_deleted=is_deleted,
        to_checkpoint=checkpointed(run.topology) if is_due else frozenset(),
        states=frozenset(run.topology.states),
        subsumed=why_subsumed(session, row, run.topology, settings.retained_checkpoints),
    )


def decide(
    session: Session, row: RunRow, settings: RetentionSettings, now: datetime, *, is_reclaiming: bool
) -> tuple[ReleaseDecision, ...]:
    """Decide about the stored results of a run; if it is to be pinned anew, none is current any more."""
    if row.pinned is not None:
        facts = run_retention(session, run_by_id(session, row.id), settings, now)
        return release_decisions(facts, settings, now, is_reclaiming=is_reclaiming)
    stored = stored_results(session, row.id)
    pins = {**_read(session, stored, now), **_checkpointed(session, row.id), **_published(session, row.id, stored)}
    gone = Pin(Keeper.NONE, "its run is to be pinned anew, and it is not read")
    found = ((_stored(each), pins.get(each.id, gone)) for each in stored if not each.is_current)
    return tuple(ReleaseDecision(each, pin.keeper, pin.reason) for each, pin in found)


def stored_results(session: Session, run: str) -> list[ResultRow]:
    """Return the stored results of `run`, current or not; of quarantined ones those that are not current."""
    return list(session.scalars(_STORED, {"run": run}))


def last_event(session: Session, run: RunRow) -> datetime:
    """Return the time of the last event in a run."""
    events = session.execute(_EVENTS, {"run": run.id}).one()
    return max(each for each in (run.created_at, *events) if each is not None)


def _stored(row: ResultRow, topology: Topology | None = None) -> StoredResult:
    # The run may have been moved to a topology without this stage.
    is_declared = topology is not None and row.stage in _nondeterministic(topology)
    is_nondeterministic = is_declared or row.differs_from is not None
    partition = PartitionId(row.stage, row.subtask, row.layout)
    is_quarantined = row.state == PartitionState.QUARANTINED.value
    return StoredResult(
        run=row.run,
        result=row.id,
        partition=partition,
        attempt=row.attempt,
        is_current=row.is_current,
        bytes=row.bytes,
        is_nondeterministic=is_nondeterministic,
        is_quarantined=is_quarantined,
    )


def _nondeterministic(topology: Topology) -> set[str]:
    return {stage.name for stage in topology.dataflow.stages if not stage.deterministic}


def readers(session: Session, results: Iterable[ResultRow], now: datetime) -> dict[int, str]:
    """Return who reads results under a lease, by the number of the result."""
    leases = leased(session, [row.id for row in results], now)
    return {
        result: f"{row.holder} reads it, under lease until {row.expires_at:%Y-%m-%d %H:%M:%S}Z"
        for result, row in leases.items()
    }


def published_folders(session: Session, run: str) -> frozenset[str]:
    """Return the folders of versions whose pointers may exist: a pointer is deleted before the ledger records it."""
    return frozenset(folder for row in session.scalars(_PUBLISHED, {"run": run}) for folder in row.folders)


def _read(session: Session, stored: Collection[ResultRow], now: datetime) -> dict[int, Pin]:
    return {result: Pin(Keeper.READER, reader) for result, reader in readers(session, stored, now).items()}


def _checkpointed(session: Session, run: str) -> dict[int, Pin]:
    """Return the results of a run that its checkpoints name, retained ones and those that are being completed."""
    pins: dict[int, Pin] = {}
    for number, results in session.execute(_NEEDED_BY, {"run": run}):
        pins |= dict.fromkeys(results, Pin(Keeper.CHECKPOINT, f"checkpoint {number} names it"))
    return pins


def _published(session: Session, run: str, stored: Collection[ResultRow]) -> dict[int, Pin]:
    """Return results of versions whose pointers may exist."""
    newest: set[str] = set()
    pins: dict[int, Pin] = {}
    for row in session.scalars(_PUBLISHED, {"run": run}):
        is_newest = row.published_at is not None and row.sink not in newest
        if is_newest:
            newest.add(row.sink)
        parts = [each for each in stored if each.folder in row.folders]
        for each in parts:
            what = "version" if row.lacks is None else "provisional rows"
            reason = f"it is {what} {row.version} of {row.sink}"
            pins.setdefault(each.id, Pin(Keeper.VERSION, reason, is_newest))
        if is_newest:  # or the next version of which another part has changed would have these parts recomputed
            for each in _equal_to(parts, stored):
                reason = f"it has the content of version {row.version} of {row.sink}"
                pins.setdefault(each.id, Pin(Keeper.VERSION, reason, is_lasting=True))
    return pins


def _equal_to(parts: Collection[ResultRow], stored: Collection[ResultRow]) -> list[ResultRow]:
    """Return current results whose equals, of earlier attempts, are published."""
    published = {(each.subtask, each.digest) for each in parts}
    stages = {each.stage for each in parts}
    return [
        each for each in stored if each.is_current and each.stage in stages and (each.subtask, each.digest) in published
    ]


def _needed_later(session: Session, row: RunRow, settings: RetentionSettings, now: datetime) -> Mapping[str, str]:
    """Return the stages that a later epoch may read over `previous`, and which epoch that is."""
    later = list(session.scalars(_NEXT, {"dataflow": row.dataflow, "epoch": row.epoch}))
    readers = [each for each in later if each.pinned is not None]
    open_ones = [each for each in readers if not _is_over(session, each, settings, now)]
    needed = {stage: f"{each.id} may read it" for each in open_ones for stage in _read_over_previous(each.pinned)}
    read = _read_over_previous(newest_pinned(session, row.dataflow))
    if read and later and not readers:
        return dict.fromkeys(read, "the next epoch reads it")
    # A reader that was given up before it wrote its own result does not free the last one of the stage.
    last = {stage: "the next epoch reads it" for stage in read if not _is_made_later(session, row, stage)}
    return {**last, **needed}


def _is_over(session: Session, row: RunRow, settings: RetentionSettings, now: datetime) -> bool:
    if is_gone(row.deleted_at, settings, now):
        return True
    if row.closed_at is not None:
        state = run_state(session, run_by_id(session, row.id))
        regions = [state.region(each) for each in state.region_ids()]
        if not any(each.is_running or each.newest_state is AttemptState.FAILED for each in regions):
            return True
    return is_silent(last_event(session, row), settings.keep_failed, now)


def _is_made_later(session: Session, row: RunRow, stage: str) -> bool:
    """Report whether a later epoch has a result of a stage, or has had one and released it."""
    wanted = {"dataflow": row.dataflow, "epoch": row.epoch, "stage": stage}
    return session.scalar(_MADE_LATER, wanted) is not None


def _read_over_previous(pinned: Mapping[str, Any] | None) -> set[str]:
    topology = None if pinned is None else topology_of(pinned)
    if topology is None or not topology.reads_previous:
        return set()
    return {read.producer for region in topology.region_ids() for read in topology.previous_inputs(region)}


def _is_close_newest(session: Session, row: RunRow) -> bool:
    """Report whether the closing task has committed after all current results."""
    if row.closed_result is None:
        return False
    newest = session.scalar(_NEWEST_CURRENT, {"run": row.id})
    return newest is None or newest <= row.closed_result


def why_subsumed(session: Session, run: RunRow, topology: Topology, most: int) -> str | None:
    """Return why no run continues from the states of a closed run any more; None if one may.

    Its own checkpoint is not retained any more, and that of a later epoch is. None also if a fork still pins the
    states, or if its own checkpoint was lost and belongs to the `most` that are retained: it is completed once more.
    """
    if not topology.dataflow.keeps_state or run.closed_at is None:
        return None
    retained = select(CheckpointRow.number, CheckpointRow.epoch).where(
        CheckpointRow.dataflow == run.dataflow, _OWN, is_retained(), CheckpointRow.epoch >= run.epoch
    )
    found = session.execute(retained.order_by(CheckpointRow.epoch)).all()
    if not found or any(epoch == run.epoch for _, epoch in found):
        return None
    if run.id in runs_of_lost_checkpoints(session, run.dataflow, most):
        return None
    restored = select(RestoreRow.id).where(
        RestoreRow.dataflow == run.dataflow, RestoreRow.epoch == run.epoch, RestoreRow.unpinned_at.is_(None)
    )
    if session.scalar(restored.limit(1)) is not None:
        return None
    number, epoch = found[0]
    return f"its checkpoint was subsumed: the oldest that is retained is {number}, of epoch {epoch}"


# Sweeps


def runs_to_sweep(session: Session, dataflow: str, since: datetime | None) -> list[str]:
    """Return the runs whose folders may hold garbage, oldest epoch first: all, or those with an event since then."""
    return list(session.scalars(select(RunRow.id).where(_is_swept(dataflow, since)).order_by(RunRow.epoch)))


def unexpired_dag_runs(session: Session, dataflow: str, since: datetime | None) -> list[RunRow]:
    """Return those of these runs that are not expired and have a DagRun, or had one."""
    query = select(RunRow).where(_is_swept(dataflow, since), RunRow.has_dag_run, RunRow.expired_at.is_(None))
    brief = query.options(defer(RunRow.pinned), defer(RunRow.parameters), defer(RunRow.abandoned))
    return list(session.scalars(brief.order_by(RunRow.epoch)))


def _is_swept(dataflow: str, since: datetime | None) -> ColumnElement[bool]:
    is_of_dataflow = RunRow.dataflow == dataflow
    if since is None:
        return is_of_dataflow
    # Two queries, each of an index: with OR, PostgreSQL may read all attempts.
    touched = [select(AttemptRow.run).where(at >= since) for at in (AttemptRow.began_at, AttemptRow.ended_at)]
    recent = RunRow.id.in_(union(*touched)) | (RunRow.deleted_at >= since) | (RunRow.expired_at >= since)
    return is_of_dataflow & recent


def knowledge_of(
    session: Session,
    run: str,
    settings: RetentionSettings,
    now: datetime,
    found: RunFolder,
    pointed: Mapping[str, Collection[str]],
    *,
    is_reclaiming: bool = False,
) -> RunKnowledge:
    """Return the ledger's record of a run, as far as what is `found` in its folder depends on it.

    `pointed` are the pointers in the store, by path, and the folders that they name. The splits of sources, which may
    be large, are read only if there are copies of sources.
    """
    row = session.get_one(RunRow, run)
    expired = row.expired_at is not None  # a begin ends that
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run)))
    given_up = _given_up(session, row, settings, attempts, now)
    live = _pointers(session, run)
    kept = {} if expired else _copies(session, row, settings, now, found, is_reclaiming=is_reclaiming)
    has_source_copies = any(each.place is Place.SOURCE_COPY for each in found.folders)
    return RunKnowledge(
        results=_results(session, run, now),
        attempts={each.id: _attempt(each, is_given_up=each.id in given_up) for each in attempts},
        published=published_folders(session, run)
        | {each for path, folders in pointed.items() if live.get(path, True) for each in folders},
        copies=kept,
        pointers=live,
        is_expired=expired,
        has_readers=not expired or _has_readers(session, row),
        source_copies=copy_ids(session, run) if has_source_copies else frozenset(),
    )


def _results(session: Session, run: str, now: datetime) -> dict[str, KnownResult]:
    rows = list(session.scalars(select(ResultRow).where(ResultRow.run == run)))
    readers_of = readers(session, rows, now)
    return {
        row.folder: KnownResult(
            state=PartitionState(row.state),
            bytes=row.bytes,
            reason=row.state_reason,
            reader=readers_of.get(row.id),
            is_deleted=row.deleted_at is not None,
        )
        for row in rows
    }


def _attempt(row: AttemptRow, *, is_given_up: bool) -> KnownAttempt:
    is_running = row.state in LIVE and not is_given_up
    ended = row.ended_at or row.began_at
    return KnownAttempt(
        region=row.region,
        subtask=row.subtask,
        try_number=row.try_number,
        is_running=is_running,
        state=row.state,
        ended_at=None if is_running else ended,
    )


def _given_up(
    session: Session, run: RunRow, settings: RetentionSettings, attempts: Iterable[AttemptRow], now: datetime
) -> set[AttemptId]:
    """Return those attempts that are recorded as running, and are given up."""
    live = [row for row in attempts if row.state in LIVE]
    silent = {row.id for row in live if is_given_up(row.heard_at or row.began_at, run.deleted_at, settings, now)}
    if not silent:
        return set()
    at = clock(session, now)
    reading = session.scalars(select(LeaseRow.holder).where(LeaseRow.holder.in_(silent), LeaseRow.expires_at > at))
    return silent - set(reading)


def running_attempts(
    session: Session, run: str, settings: RetentionSettings, now: datetime
) -> tuple[list[AttemptRow], list[AttemptRow]]:
    """Return the attempts of a run that are running, or may be; and those that were given up."""
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run, AttemptRow.state.in_(LIVE))))
    gone = _given_up(session, session.get_one(RunRow, run), settings, attempts, now) if attempts else set()
    return [each for each in attempts if each.id not in gone], [each for each in attempts if each.id in gone]


def _has_readers(session: Session, run: RunRow) -> bool:
    """Report whether other epochs read this one, or it reads another: then their records are one chain."""
    of_dataflow = select(RunRow.pinned).where(RunRow.dataflow == run.dataflow, RunRow.is_pinned)
    after = session.scalars(of_dataflow.where(RunRow.predecessor == run.epoch))
    newest = session.scalars(of_dataflow.order_by(RunRow.epoch.desc()).limit(1))
    pinned = [run.pinned, *after, *newest]
    return run.pinned is None or any(topology_of(each).follows_previous for each in pinned if each is not None)


def _pointers(session: Session, run: str) -> dict[str, bool]:
    query = select(PublicationRow.pointer, PublicationRow.expired_at).where(PublicationRow.run == run)
    return {pointer: expired_at is None for pointer, expired_at in session.execute(query)}


def _copies(
    session: Session,
    row: RunRow,
    settings: RetentionSettings,
    now: datetime,
    found: RunFolder,
    *,
    is_reclaiming: bool,
) -> Mapping[tuple[str, str], str]:
    """Return why cached output is kept: like a result without consumers, until its run is over."""
    named = {(each.name, each.subtask) for each in found.folders if each.place is Place.COPY}
    if not named or row.pinned is None:
        return {}
    facts = run_retention(session, run_by_id(session, row.id), settings, now)
    sizes = {each.name: each.parallelism for each in facts.state.topology.dataflow.stages}
    known = (each for each in named if each[1].isdigit() and int(each[1]) < sizes.get(each[0], 0))
    partitions = (PartitionId(stage, int(subtask), COPY) for stage, subtask in known)
    stored = tuple(
        StoredResult(result=-1, partition=partition, attempt="", is_current=True, bytes=0) for partition in partitions
    )
    decisions = release_decisions(
        replace(facts, stored=stored, pins={}, needed_later={}), settings, now, is_reclaiming=is_reclaiming
    )
    kept = ((each.stored.partition, each.reason) for each in decisions if not each.is_released)
    return {(of.stage, str(of.subtask)): reason for of, reason in kept}


def note_deleted(session: Session, run: str, folders: Collection[str], now: datetime) -> None:
    """Record that the data of unused results are deleted."""
    query = select(ResultRow).where(
        ResultRow.run == run,
        ResultRow.folder.in_(set(folders)),
        ResultRow.state != PartitionState.FINISHED.value,
        ResultRow.deleted_at.is_(None),
    )
    for row in session.scalars(query):
        row.deleted_at = now


def still_finished(session: Session, run: str, folders: Collection[str]) -> set[str]:
    """Return those of `folders` whose results are finished, by the ledger."""
    query = select(ResultRow.folder).where(
        ResultRow.run == run, ResultRow.folder.in_(set(folders)), ResultRow.state == PartitionState.FINISHED.value
    )
    return set(session.scalars(query)) if folders else set()

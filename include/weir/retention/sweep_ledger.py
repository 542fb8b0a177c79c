"""What a sweep of the store has to know, read in one transaction. Invariant: it changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.partition_state import PartitionState
from weir.formats.paths import COPY
from weir.ledger.attempts import LIVE
from weir.ledger.database.tables import AttemptRow, LeaseRow, PublicationRow, ResultRow, RunRow
from weir.ledger.leases import clock, leased
from weir.ledger.runs import newest_dataflow_settings, run_by_id, topology_of
from weir.retention.ledger import run_life
from weir.retention.orphan_rules import KnownAttempt, KnownResult, RunKnowledge
from weir.retention.release_rules import StoredResult, release_verdicts
from weir.topology.ids import AttemptId
from weir.topology.regions import PartitionId, Topology


def runs_to_sweep(session: Session, dataflow: str, since: datetime | None) -> list[str]:
    """The runs whose folders may hold garbage, oldest epoch first: all, or those in which something happened since."""
    query = select(RunRow.id).where(RunRow.dataflow == dataflow).order_by(RunRow.epoch)
    if since is None:
        return list(session.scalars(query))
    touched = (
        select(AttemptRow.run)
        .group_by(AttemptRow.run)
        .having((func.max(AttemptRow.began_at) >= since) | (func.max(AttemptRow.ended_at) >= since))
    )
    recent = RunRow.id.in_(touched) | (RunRow.deleted_at >= since) | (RunRow.expired_at >= since)
    return list(session.scalars(query.where(recent)))


def is_expired(session: Session, run: RunRow) -> bool:
    """Whether a run was expired, and nothing has happened in it since."""
    if run.expired_at is None:
        return False
    query = select(func.max(AttemptRow.began_at)).where(AttemptRow.run == run.id)
    newest = session.scalar(query)
    return newest is None or newest <= run.expired_at


def knowledge_of(
    session: Session,
    run: str,
    settings: RetentionSettings,
    now: datetime,
    copies: Iterable[tuple[str, str]],
    pointed: Mapping[str, Collection[str]],
    *,
    is_pressed: bool = False,
) -> RunKnowledge:
    """What the ledger knows of a run.

    `copies` are stages and subtasks of which copies were found; `pointed` are the pointers that were found, by path,
    and the folders that they name.
    """
    row = session.get_one(RunRow, run)
    expired = is_expired(session, row)
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run)))
    given_up = _given_up(session, row, settings, attempts, now)
    live = _pointers(session, run)
    kept = {} if expired else _copies(session, row, settings, now, set(copies), is_pressed=is_pressed)
    return RunKnowledge(
        results=_results(session, run, now),
        attempts={each.id: _attempt(each, is_given_up=each.id in given_up) for each in attempts},
        published=_published(session, run)
        | {each for path, folders in pointed.items() if live.get(path, True) for each in folders},
        copies=kept,
        pointers=live,
        is_expired=expired,
        has_readers=not expired or _has_readers(session, row),
    )


def _results(session: Session, run: str, now: datetime) -> dict[str, KnownResult]:
    rows = list(session.scalars(select(ResultRow).where(ResultRow.run == run)))
    leases = leased(session, [row.id for row in rows], now)
    readers = {
        result: f"{row.holder} reads it, under lease until {row.expires_at:%Y-%m-%d %H:%M:%S}Z"
        for result, row in leases.items()
    }
    return {
        row.folder: KnownResult(
            state=PartitionState(row.state),
            is_current=row.is_current,
            bytes=row.bytes,
            reason=row.state_reason,
            reader=readers.get(row.id),
            is_deleted=row.deleted_at is not None,
        )
        for row in rows
    }


def _attempt(row: AttemptRow, *, is_given_up: bool) -> KnownAttempt:
    is_at_work = row.state in LIVE and not is_given_up
    ended = row.ended_at or row.began_at
    return KnownAttempt(
        region=row.region,
        subtask=row.subtask,
        try_number=row.try_number,
        is_at_work=is_at_work,
        state=row.state,
        ended_at=None if is_at_work else ended,
    )


def _given_up(
    session: Session, run: RunRow, settings: RetentionSettings, attempts: Collection[AttemptRow], now: datetime
) -> set[AttemptId]:
    """Attempts that are said to be at work, and nobody has heard of for as long as a failed run is kept."""
    limit = settings.orphan_age if run.deleted_at is not None else settings.keep_failed
    if limit is None:
        return set()
    since = run.deleted_at or datetime.min.replace(tzinfo=now.tzinfo)
    silent = {
        row.id for row in attempts if row.state in LIVE and max(row.heard_at or row.began_at, since) + limit <= now
    }
    if not silent:
        return set()
    at = clock(session, now)
    reading = session.scalars(select(LeaseRow.holder).where(LeaseRow.holder.in_(silent), LeaseRow.expires_at > at))
    return silent - set(reading)


def silent_attempts(session: Session, run: str, settings: RetentionSettings, now: datetime) -> list[AttemptRow]:
    """The attempts of a run that are said to be at work, and are given up: nobody has heard of them for so long."""
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run, AttemptRow.state.in_(LIVE))))
    given_up = _given_up(session, session.get_one(RunRow, run), settings, attempts, now) if attempts else set()
    return [each for each in attempts if each.id in given_up]


def attempts_at_work(session: Session, run: RunRow, settings: RetentionSettings, now: datetime) -> set[AttemptId]:
    """The attempts of a run that are at work, or may be."""
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run.id)))
    at_work = {each.id for each in attempts if each.state in LIVE}
    return at_work - _given_up(session, run, settings, attempts, now)


def _published(session: Session, run: str) -> frozenset[str]:
    query = select(PublicationRow.folders).where(PublicationRow.run == run, PublicationRow.expired_at.is_(None))
    return frozenset(str(folder) for folders in session.scalars(query) for folder in folders or ())


def _has_readers(session: Session, run: RunRow) -> bool:
    """Whether other epochs read this one, or it reads another: then their records are one chain."""
    of_dataflow = select(RunRow.pinned).where(RunRow.dataflow == run.dataflow, RunRow.pinned.is_not(None))
    behind = session.scalars(of_dataflow.where(RunRow.predecessor == run.epoch))
    newest = session.scalars(of_dataflow.order_by(RunRow.epoch.desc()).limit(1))
    pinned = [run.pinned, *behind, *newest]
    return run.pinned is None or any(topology_of(each).reads_previous for each in pinned if each is not None)


def _pointers(session: Session, run: str) -> dict[str, bool]:
    query = select(PublicationRow.pointer, PublicationRow.expired_at).where(PublicationRow.run == run)
    return {pointer: expired_at is None for pointer, expired_at in session.execute(query)}


def _copies(
    session: Session,
    row: RunRow,
    settings: RetentionSettings,
    now: datetime,
    found: Collection[tuple[str, str]],
    *,
    is_pressed: bool,
) -> Mapping[tuple[str, str], str | None]:
    """Why copies are kept: as a result would be that only the run as a whole needs."""
    if not found or row.pinned is None:
        return {}
    life = run_life(session, run_by_id(session, row.id), settings, now)
    topology = life.state.topology
    known = {each: _partition(topology, each) for each in found}
    asked = {each: partition for each, partition in known.items() if partition is not None}
    stored = tuple(
        StoredResult(result=-1, partition=partition, attempt="", is_current=True, bytes=0)
        for partition in asked.values()
    )
    verdicts = release_verdicts(
        replace(life, stored=stored, pins={}, needed_later={}), settings, now, is_pressed=is_pressed
    )
    kept = {
        each: None if verdict.is_released else verdict.reason for each, verdict in zip(asked, verdicts, strict=True)
    }
    return {each: kept.get(each) for each in found}


def _partition(topology: Topology, found: tuple[str, str]) -> PartitionId | None:
    """A copy as if it were a result; None if this topology has no such stage or subtask."""
    stage, subtask = found
    sizes = {each.name: each.parallelism for each in topology.dataflow.stages}
    if not subtask.isdigit() or int(subtask) >= sizes.get(stage, 0):
        return None
    return PartitionId(stage, int(subtask), COPY)


def settings_of(session: Session, dataflow: str, deployed: RetentionSettings) -> RetentionSettings:
    """The life settings of a dataflow."""
    return newest_dataflow_settings(session, dataflow, deployed)


def note_deleted(session: Session, run: str, folders: Collection[str], now: datetime) -> None:
    """Write down that the data of results are gone that are out of use."""
    query = select(ResultRow).where(
        ResultRow.run == run,
        ResultRow.folder.in_(set(folders)),
        ResultRow.state != PartitionState.FINISHED.value,
        ResultRow.deleted_at.is_(None),
    )
    for row in session.scalars(query):
        row.deleted_at = now


def still_finished(session: Session, run: str, folders: Collection[str]) -> set[AttemptId]:
    """Those of `folders` whose results are finished, by the ledger."""
    query = select(ResultRow.folder).where(
        ResultRow.run == run, ResultRow.folder.in_(set(folders)), ResultRow.state == PartitionState.FINISHED.value
    )
    return set(session.scalars(query)) if folders else set()

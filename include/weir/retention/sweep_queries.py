"""Ledger queries for a sweep of the store.

Invariant: all that the rules need of a run is read in one transaction. A query changes nothing; deletions are recorded
only for results that are out of use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import ColumnElement, select, union
from sqlalchemy.orm import Session, defer

from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.partition_state import PartitionState
from weir.formats.paths import COPY
from weir.ledger.attempts import LIVE
from weir.ledger.database.tables import AttemptRow, LeaseRow, PublicationRow, ResultRow, RunRow
from weir.ledger.leases import clock
from weir.ledger.runs import run_by_id, topology_of
from weir.ledger.sources import copy_ids
from weir.retention.deletion_rules import (
    KnownAttempt,
    KnownResult,
    RunKnowledge,
    StoredResult,
    is_given_up,
    release_decisions,
)
from weir.retention.folder_rules import Place, RunFolder
from weir.retention.release_queries import published_folders, readers, run_retention
from weir.topology.ids import AttemptId
from weir.topology.regions import PartitionId


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

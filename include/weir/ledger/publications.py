"""Stores publications, and tells readers in other dataflows what these are.

Invariant: a version number is assigned once, in a transaction.

A version that was assigned and is not recorded as complete may still become visible, if its process was suspended.
The transaction that records it as complete records that its receivers are to be told.

An epoch is late once its deadline has passed and nothing of it was published; by the ledger's clock. Whoever finds that
first records it once: upkeep, or the transaction that publishes it. A run that began after its deadline never is: it is
one of a backfill, or of a catch-up, and somebody knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from sqlalchemy import and_, bindparam, delete, func, select
from sqlalchemy.orm import Session, defer

from weir.dataflow.notifications import EventKind
from weir.errors import Conflict
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CurrentResult, coming_result
from weir.formats.notification import Subject, deadline_event, published_event
from weir.formats.paths import attempt_of_folder, layout_of_folder, pointer_path
from weir.formats.pointer import Pointer
from weir.ledger.database.dataset_tables import DatasetEpochRow, DatasetInputRow, UntoldVersionRow
from weir.ledger.database.outbox_tables import IncidentRow
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.leases import clock
from weir.ledger.outbox import declared_publish_by, tell, tell_incident
from weir.ledger.reads import readers_of
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.topology.ids import Digest, Epoch, RunId, RunRef
from weir.topology.partitions import PartitionId

READABLE = and_(
    PublicationRow.published_at.is_not(None), PublicationRow.expiring_at.is_(None), PublicationRow.expired_at.is_(None)
)
"""Whether readers get a version: its pointer is there, and is not about to be deleted."""

SHOWN_EARLY = and_(
    PublicationRow.lacks.is_not(None), PublicationRow.expiring_at.is_(None), PublicationRow.expired_at.is_(None)
)
"""Whether these are provisional rows that are shown, and are not about to be taken back."""

_PUBLISHED = select(PublicationRow.id).where(PublicationRow.published_at.is_not(None))

_LAST = (
    select(PublicationRow)
    .where(PublicationRow.run == bindparam("run"), PublicationRow.sink == bindparam("sink"))
    .where(PublicationRow.lacks.is_(None))
    .order_by(PublicationRow.version.desc())
    .limit(1)
)


def last_publication(session: Session, run: str, sink: str) -> PublicationRow | None:
    """Return the newest version of `sink`, complete or not."""
    return session.scalar(_LAST, {"run": run, "sink": sink})


def newest_published(session: Session, run: str, sink: str) -> PublicationRow | None:
    """Return the newest version of `sink` that was published, even if it is about to be deleted, or is."""
    return next(iter(published_rows(session, run, sink)), None)


def published_rows(session: Session, run: str, sink: str) -> list[PublicationRow]:
    """Return the versions of `sink` that were published, newest first."""
    query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.sink == sink)
    query = query.where(PublicationRow.published_at.is_not(None)).order_by(PublicationRow.version.desc())
    return list(session.scalars(query))


def is_expiring(row: PublicationRow) -> bool:
    """Report whether the pointer of a version is deleted, or may be at any moment."""
    return row.expiring_at is not None or row.expired_at is not None


def next_version(session: Session, run: str, sink: str) -> int:
    """Return the next number, of a version or of provisional rows.

    The number after that of provisional rows is kept for what takes their place when they are withdrawn.
    """
    query = select(PublicationRow.version, PublicationRow.lacks).where(
        PublicationRow.run == run, PublicationRow.sink == sink
    )
    highest = session.execute(query.order_by(PublicationRow.version.desc()).limit(1)).one_or_none()
    return 1 if highest is None else highest.version + (1 if highest.lacks is None else 2)


def begin_publication(
    session: Session, run: str, sink: str, version: int, attempt: str, digest: str, pointer: Pointer
) -> None:
    """Record that a version is about to be published, or provisional rows are, with its folders."""
    path = pointer_path(pointer.dataflow, sink, pointer.epoch, version, is_provisional=bool(pointer.lacks))
    folders, lacks = [each.folder for each in pointer.partitions], pointer.lacks or None
    row = PublicationRow(
        run=run, sink=sink, version=version, attempt=attempt, digest=digest, pointer=path, folders=folders, lacks=lacks
    )
    session.add(row)
    session.get_one(RunRow, run).released_at = None


def provisional_rows(session: Session, run: str, sink: str | None = None) -> list[PublicationRow]:
    """Return the provisional rows of a run that are shown, or were and are not taken back everywhere, oldest first."""
    query = select(PublicationRow).where(
        PublicationRow.run == run, PublicationRow.lacks.is_not(None), PublicationRow.expired_at.is_(None)
    )
    query = query if sink is None else query.where(PublicationRow.sink == sink)
    return list(session.scalars(query.order_by(PublicationRow.version)))


def runs_with_provisional_rows(session: Session, dataflow: str) -> list[RunId]:
    """Return the runs of a dataflow that have such rows."""
    query = select(PublicationRow.run).join(RunRow, RunRow.id == PublicationRow.run)
    live = (RunRow.dataflow == dataflow, PublicationRow.lacks.is_not(None), PublicationRow.expired_at.is_(None))
    return list(session.scalars(query.where(*live).distinct().order_by(PublicationRow.run)))


def complete_publications(session: Session, run: str, attempt: str, now: datetime) -> None:
    """Record that the pointers of `attempt` exist. Raises Conflict if one has expired."""
    query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.attempt == attempt)
    was_published = session.scalar(_PUBLISHED.where(PublicationRow.run == run).limit(1)) is not None
    for row in session.scalars(query):
        if is_expiring(row):
            raise Conflict.of("ledger.version_expired", version=row.version, sink=row.sink)
        note_published(session, row, now)
    if not was_published:
        _note_late(session, session.get_one(RunRow, run), now, is_published=True)


def note_published(session: Session, row: PublicationRow, now: datetime) -> None:
    """Record that the pointer of a version exists; nothing is told of one that a newer version has replaced already."""
    if row.published_at is not None:
        return
    newer = select(PublicationRow.id).where(
        PublicationRow.run == row.run,
        PublicationRow.sink == row.sink,
        PublicationRow.version > row.version,
        PublicationRow.published_at.is_not(None),
    )
    row.published_at = now
    if session.scalar(newer.limit(1)) is None:
        tell_published(session, row, now)
        note_untold(session, row)


def note_untold(session: Session, row: PublicationRow) -> None:
    """Record that a version is new to readers in other dataflows; who has resolved nothing yet will read it anyway."""
    dataflow = dataflow_of(row.run)
    if readers_of(session, row.run, f"{dataflow}.{row.sink}"):
        session.merge(UntoldVersionRow(run=row.run, sink=row.sink, version=row.version, dataflow=dataflow))


def reader_to_come(session: Session, run: RunRow, sink: str) -> str | None:
    """Return a reader in another dataflow that has yet to read an epoch of a data set; None where none is known.

    That is an open run that reads it, or a dataflow that reads the data set and has not come to this epoch.
    """
    dataset = f"{run.dataflow}.{sink}"
    is_there = RunRow.deleted_at.is_(None) & RunRow.expired_at.is_(None)
    reading = (
        select(RunRow.id)
        .join(DatasetEpochRow, DatasetEpochRow.run == RunRow.id)
        .where(
            DatasetEpochRow.of_run == run.id, DatasetEpochRow.dataset == dataset, RunRow.closed_at.is_(None), is_there
        )
    )
    found = session.scalar(reading.order_by(RunRow.id).limit(1))
    if found is not None:
        return found
    newest = (
        select(RunRow.dataflow)
        .join(DatasetInputRow, DatasetInputRow.run == RunRow.id)
        .where(DatasetInputRow.dataset == dataset, is_there)
        .group_by(RunRow.dataflow)
        .having(func.max(RunRow.interval_end) < run.interval_end)
    )
    return session.scalar(newest.order_by(RunRow.dataflow).limit(1))


def untold_versions(session: Session, dataflow: str) -> list[UntoldVersionRow]:
    """Return the new versions of a dataflow's data sets whose readers have yet to be compared with them."""
    query = select(UntoldVersionRow).where(UntoldVersionRow.dataflow == dataflow)
    return list(session.scalars(query.order_by(UntoldVersionRow.run, UntoldVersionRow.sink)))


def note_told(session: Session, told: Iterable[UntoldVersionRow]) -> None:
    """Record that the readers of versions were compared with them, but of one that was published since."""
    for each in told:
        is_it = (UntoldVersionRow.run == each.run) & (UntoldVersionRow.sink == each.sink)
        session.execute(delete(UntoldVersionRow).where(is_it, UntoldVersionRow.version <= each.version))


def tell_published(session: Session, row: PublicationRow, now: datetime, *, is_rebuilt: bool = False) -> None:
    """Record that receivers are to be told of a published version."""
    of = Subject(dataflow_of(row.run), epoch_of_run(row.run), row.run)
    event = published_event(of, row.sink, row.version, row.attempt, row.pointer)
    tell(session, replace(event, is_rebuilt=is_rebuilt), now)


def published_versions(session: Session, run: str) -> dict[str, int]:
    """Return the newest published version of each sink of a run that has one."""
    query = (
        select(PublicationRow.sink, func.max(PublicationRow.version))
        .where(PublicationRow.run == run, PublicationRow.published_at.is_not(None))
        .group_by(PublicationRow.sink)
        .order_by(PublicationRow.sink)
    )
    return dict(session.execute(query).tuples().all())


def first_published(
    session: Session, dataflow: str, sinks: Collection[str], since: Epoch, until: Epoch | None
) -> PublicationRow | None:
    """Return a published version of one of these sinks in the earliest of some epochs; None where there is none."""
    query = (
        select(PublicationRow)
        .join(RunRow, RunRow.id == PublicationRow.run)
        .where(RunRow.dataflow == dataflow, RunRow.epoch >= since, PublicationRow.sink.in_(sinks))
        .where(PublicationRow.published_at.is_not(None))
        .order_by(RunRow.epoch, PublicationRow.sink)
        .limit(1)
    )
    return session.scalar(query if until is None else query.where(RunRow.epoch <= until))


# For readers of other dataflows

DataSet = tuple[str, str]
"""A run and the name of one of its sinks."""


def readable_versions(session: Session, wanted: Iterable[DataSet]) -> dict[DataSet, PublicationRow]:
    """Return the newest published version of each of these data sets that is not about to be deleted."""
    known = set(wanted)
    if not known:
        return {}
    query = (
        select(PublicationRow)
        .where(PublicationRow.run.in_({run for run, _ in known}), PublicationRow.sink.in_({sink for _, sink in known}))
        .where(READABLE)
        .order_by(PublicationRow.version)
    )
    return {(row.run, row.sink): row for row in session.scalars(query) if (row.run, row.sink) in known}


def published_results(session: Session, wanted: Iterable[DataSet]) -> dict[PartitionId, CurrentResult]:
    """Return the results that the newest published versions have, whether or not their bytes are there.

    They are current to readers, whatever their run has computed since. One of which a rebuilt ledger has found no
    manifest is lost: a version is never read in part.
    """
    versions = readable_versions(session, wanted)
    if not versions:
        return {}
    folders: dict[str, DataSet] = {folder: key for key, row in versions.items() for folder in row.folders}
    query = select(ResultRow).where(
        ResultRow.run.in_({run for run, _ in versions}), ResultRow.stage.in_({sink for _, sink in versions})
    )
    found = {}
    for row in session.scalars(query):
        if folders.get(row.folder) == (row.run, row.stage):
            partition = PartitionId(row.stage, row.subtask, row.layout, RunRef(row.run))
            found[partition] = _as_published(row, partition)
    unknown = folders.keys() - {each.folder for each in found.values()}
    return found | {each.partition: each for row in versions.values() for each in _named(row) if each.folder in unknown}


def _named(row: PublicationRow) -> Iterator[CurrentResult]:
    """Yield the results that a version names, as if the ledger knew no more of them."""
    for subtask, (folder, digest) in enumerate(zip(row.folders, row.digest.split("|"), strict=True)):
        partition = PartitionId(row.sink, subtask, layout_of_folder(folder), RunRef(row.run))
        named = coming_result(partition, attempt_of_folder(folder), Digest(digest), folder=folder)
        yield replace(named, state=PartitionState.LOST)


def _as_published(row: ResultRow, partition: PartitionId) -> CurrentResult:
    return CurrentResult(
        partition=partition,
        result=row.id,
        attempt=row.attempt,
        try_number=0,
        state=PartitionState(row.state),
        folder=row.folder,
        manifest_sha256=row.manifest_sha256,
        digest=row.digest,
        rows=row.rows,
        bytes=row.bytes,
        reads=(),
        versions=frozenset(row.versions),
        fault=row.fault,
    )


# Deadlines


def has_late_runs(session: Session, dataflow: str, now: datetime) -> bool:
    """Report whether `note_late_runs` would find any."""
    return bool(_late_runs(session, dataflow, now))


def note_late_runs(session: Session, dataflow: str, now: datetime) -> None:
    """Record that receivers are to be told of the open runs that have missed their deadline."""
    for row in _late_runs(session, dataflow, now):
        _note_late(session, row, now, is_published=False)


def _late_runs(session: Session, dataflow: str, now: datetime) -> list[RunRow]:
    """Return the open runs that are late, and of which nobody was told; a dataflow has few open ones."""
    publish_by = declared_publish_by(session, dataflow)
    if publish_by is None:
        return []
    is_open = (RunRow.dataflow == dataflow) & RunRow.closed_at.is_(None) & RunRow.has_dag_run
    is_there = RunRow.deleted_at.is_(None) & RunRow.expired_at.is_(None)
    is_due = RunRow.interval_end < clock(session, now) - publish_by
    is_known = select(IncidentRow.id).where(
        IncidentRow.run == RunRow.id, IncidentRow.kind == EventKind.DEADLINE_MISSED.value
    )
    is_published = _PUBLISHED.where(PublicationRow.run == RunRow.id)
    query = select(RunRow).where(is_open, is_there, is_due, ~is_known.exists(), ~is_published.exists())
    rows = session.scalars(query.order_by(RunRow.epoch).options(defer(RunRow.pinned)))
    return [row for row in rows if row.created_at <= row.interval_end + publish_by]


def _note_late(session: Session, row: RunRow, now: datetime, *, is_published: bool) -> None:
    publish_by, at = declared_publish_by(session, row.dataflow), clock(session, now)
    deadline = None if publish_by is None else row.interval_end + publish_by
    if deadline is None or at <= deadline or row.created_at > deadline:
        return
    text = f"{row.id} was to be published by {deadline:%Y-%m-%d %H:%M:%S}Z, and is not: `weir plan {row.id}` says why"
    if is_published:
        text = f"{row.id} was to be published by {deadline:%Y-%m-%d %H:%M:%S}Z, and was at {at:%Y-%m-%d %H:%M:%S}Z"
    event = deadline_event(
        Subject(row.dataflow, row.epoch, row.id),
        text,
        deadline=deadline.isoformat(),
        published_at=at.isoformat() if is_published else None,
        dag_id=row.dag_id,
        run_id=row.run_id,
    )
    tell_incident(session, row.id, event, now)

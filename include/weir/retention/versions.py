"""Expire published versions: those that were replaced, and those older than `keep_published`.

Invariant 6: the ledger records first that a version is expiring: no closing task relies on it any more. Then its
pointer is deleted, then the ledger records that, and only then may the results be released that it named. If a process
is killed in between, the next one deletes the pointer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.retention_settings import RetentionSettings
from weir.ledger.database.tables import UNSETTLED, PublicationRow, RunRow
from weir.ledger.deliveries import is_pending
from weir.ledger.publications import note_published, provisional_rows, reader_to_come
from weir.ledger.runs import dataflow_of, newest_dataflow_settings
from weir.retention.deletion_queries import last_event
from weir.retention.deletion_rules import expired_versions, is_gone
from weir.retention.sweep_report import Garbage, Swept
from weir.store.errors import NotFound

_BEGUN = "its deletion had begun"

_Expiring = list[tuple[PublicationRow, str]]
"""Versions and why they expire."""


def expire_versions(services: Services, dataflow: str, *, is_dry: bool = False) -> list[Swept]:
    """Delete the pointers to expired versions; return them. Raises Retryable."""
    with services.ledger.transaction() as session:
        found = _expired(session, services, dataflow)
    if is_dry:
        sizes = _sizes(services, found)
        return _swept([each for each in found if _is_complete(each[0])], sizes)
    by_run = {run: list(group) for run, group in groupby(found, key=lambda each: each[0].run)}
    return [each for run in sorted(by_run) for each in _expire_of(services, dataflow, run, by_run[run])]


def _expire_of(services: Services, dataflow: str, run: str, found: _Expiring) -> list[Swept]:
    """Delete the pointers of a run."""
    services.store_id()  # on an unmounted disk all pointers seem deleted
    sizes, going = _sizes(services, found), _Expiring()
    with services.ledger.transaction(dataflow) as session:
        for row, reason in _expired(session, services, dataflow, run):
            if row.id not in sizes:
                continue
            if sizes[row.id] is not None and not _is_complete(row):
                # Readers see a pointer that exists without a record: its publication is recorded now.
                note_published(session, row, services.now())
                continue
            row.expiring_at = row.expiring_at or services.now()
            going.append((row, reason))
    for row, _ in going:
        services.store.delete(row.pointer)
    services.store_id()  # or it was unmounted meanwhile
    with services.ledger.transaction(dataflow) as session:
        for row, _ in going:
            gone = session.get_one(PublicationRow, row.id)
            gone.expired_at = gone.expired_at or services.now()
            session.get_one(RunRow, row.run).released_at = None
    return _swept(going, sizes)


def _is_complete(row: PublicationRow) -> bool:
    return row.published_at is not None or row.expiring_at is not None


def _sizes(services: Services, found: _Expiring) -> dict[int, int | None]:
    """Return the sizes of pointers, by the version's number in the ledger; None for one that is not there."""
    sizes: dict[int, int | None] = {}
    for row, _ in found:
        sizes[row.id] = None
        with suppress(NotFound):
            sizes[row.id] = services.store.size(row.pointer)
    return sizes


def _swept(going: _Expiring, sizes: Mapping[int, int | None]) -> list[Swept]:
    found = ((row.pointer, sizes[row.id], reason) for row, reason in going)
    return [Swept(Garbage.POINTER, pointer, size, reason) for pointer, size, reason in found if size is not None]


def _expired(session: Session, services: Services, dataflow: str, run: str | None = None) -> _Expiring:
    settings = newest_dataflow_settings(session, dataflow, services.retention)
    rows = [row for row in _candidates(session, services, dataflow, settings) if run in (None, row.run)]
    return [
        each
        for (of_run, _), group in groupby(rows, key=lambda row: (row.run, row.sink))
        for each in _of_sink(session, services, session.get_one(RunRow, of_run), list(group), settings)
    ]


def _candidates(
    session: Session, services: Services, dataflow: str, settings: RetentionSettings
) -> list[PublicationRow]:
    """Return all versions of the runs with a version that may expire: most runs have a single lasting version."""
    live = PublicationRow.expired_at.is_(None)
    runs = set(session.scalars(select(PublicationRow.run).where(text(UNSETTLED))))
    before = None if settings.keep_published is None else services.now() - settings.keep_published
    if before is not None:
        runs |= set(session.scalars(select(PublicationRow.run).where(live, PublicationRow.published_at <= before)))
    own = [run for run in runs if dataflow_of(run) == dataflow]
    if not own:
        return []
    query = select(PublicationRow).where(live, PublicationRow.run.in_(own), PublicationRow.lacks.is_(None))
    rows = session.scalars(query.order_by(PublicationRow.run, PublicationRow.sink, PublicationRow.version))
    of_runs = (list(group) for _, group in groupby(rows, key=lambda row: row.run))
    return [row for group in of_runs if _may_expire(group, before) for row in group]


def _may_expire(rows: Sequence[PublicationRow], before: datetime | None) -> bool:
    """Report whether a version of a run is replaced, not complete, about to go, or was published before a time."""
    if len({row.sink for row in rows}) < len(rows):
        return True
    return any(
        row.published_at is None or row.expiring_at is not None or (before is not None and row.published_at <= before)
        for row in rows
    )


def _of_sink(
    session: Session, services: Services, run: RunRow, rows: list[PublicationRow], settings: RetentionSettings
) -> _Expiring:
    now, versions = services.now(), {row.version: row.published_at for row in rows}
    is_deleted = is_gone(run.deleted_at, settings, now)
    why = expired_versions(versions, last_event(session, run), now, settings, is_deleted=is_deleted)
    why |= {row.version: why.get(row.version, _BEGUN) for row in rows if row.expiring_at is not None}
    newest = max((row.version for row in rows if row.published_at is not None), default=0)
    if why.get(newest, _BEGUN) is not _BEGUN and is_pending(session, run.id, rows[0].sink, newest):
        del why[newest]  # its target has still to get it
    if why.get(newest, _BEGUN) is not _BEGUN and reader_to_come(session, run, rows[0].sink) is not None:
        del why[newest]
    if why.get(newest, _BEGUN) is not _BEGUN and provisional_rows(session, run.id, rows[0].sink):
        del why[newest]  # it is put back where they are withdrawn
    return [(row, why[row.version]) for row in rows if row.version in why]

"""Expire published versions: those that were replaced, and those older than `keep_published`.

Invariant 6: the ledger records first that a version is expiring: no closing task relies on it any more. Then its
pointer is deleted, then the ledger records that, and only then may the results be released that it named. If a process
is killed in between, the next one deletes the pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.retention_settings import RetentionSettings
from weir.ledger.database.tables import UNSETTLED, PublicationRow, RunRow
from weir.ledger.deliveries import is_pending
from weir.ledger.publications import note_published
from weir.ledger.runs import dataflow_of, newest_dataflow_settings
from weir.retention.deletion_rules import Version, expired, is_gone
from weir.retention.release_queries import last_event
from weir.retention.sweep_report import Garbage, Swept
from weir.store.errors import NotFound

_BEGUN = "its deletion had begun"


@dataclass(frozen=True, slots=True)
class _Expired:
    publication: int
    run: str
    pointer: str
    is_complete: bool
    reason: str


def expire_versions(
    services: Services, dataflow: str, runs: Iterable[str] | None = None, *, is_dry: bool = False
) -> list[Swept]:
    """Delete the pointers to expired versions, of `runs` or of all; return them. Raises Retryable."""
    wanted = None if runs is None else set(runs)
    with services.ledger.transaction() as session:
        found = _expired(session, services, dataflow, wanted)
    if is_dry or not found:
        return _swept([each for each in found if each.is_complete], _sizes(services, found))
    gone: list[Swept] = []
    for run in sorted({each.run for each in found}):
        gone += _expire_of(services, dataflow, run, [each for each in found if each.run == run])
    return gone


def _expire_of(services: Services, dataflow: str, run: str, found: Sequence[_Expired]) -> list[Swept]:
    """Delete the pointers of a run."""
    services.store_id()  # on an unmounted disk all pointers seem deleted
    sizes = _sizes(services, found)
    with services.ledger.transaction(dataflow) as session:
        present = [each for each in _expired(session, services, dataflow, {run}) if each.publication in sizes]
        # Readers see a pointer that exists without a record: its publication is recorded now.
        published = [each for each in present if not each.is_complete and sizes[each.publication] is not None]
        going = [each for each in present if each not in published]
        _note(session, services.now(), going, published)
    for each in going:
        services.store.delete(each.pointer)
    services.store_id()  # or it was unmounted meanwhile
    with services.ledger.transaction(dataflow) as session:
        _note_deleted(session, services.now(), going)
    return _swept(going, sizes)


def _sizes(services: Services, found: Iterable[_Expired]) -> dict[int, int | None]:
    return {each.publication: _size(services, each) for each in found}


def _swept(going: Iterable[_Expired], sizes: Mapping[int, int | None]) -> list[Swept]:
    return [
        Swept(Garbage.POINTER, each.pointer, size, each.reason)
        for each in going
        if (size := sizes[each.publication]) is not None
    ]


def _expired(session: Session, services: Services, dataflow: str, runs: set[str] | None) -> list[_Expired]:
    settings = newest_dataflow_settings(session, dataflow, services.retention)
    rows = [row for row in _candidates(session, services, dataflow, settings) if runs is None or row.run in runs]
    return [
        each
        for (run, _), group in groupby(rows, key=lambda row: (row.run, row.sink))
        for each in _of_sink(session, services, session.get_one(RunRow, run), list(group), settings)
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
    query = select(PublicationRow).where(live, PublicationRow.run.in_(own))
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
) -> list[_Expired]:
    now = services.now()
    why = expired(
        [Version(row.version, row.published_at) for row in rows],
        last_event(session, run),
        now,
        settings,
        is_deleted=is_gone(run.deleted_at, settings, now),
    )
    why |= {row.version: why.get(row.version, _BEGUN) for row in rows if row.expiring_at is not None}
    newest = max((row.version for row in rows if row.published_at is not None), default=0)
    if why.get(newest, _BEGUN) is not _BEGUN and is_pending(session, run.id, rows[0].sink, newest):
        del why[newest]  # its target has still to get it
    return [
        _Expired(row.id, row.run, row.pointer, row.published_at is not None or row.expiring_at is not None, reason)
        for row in rows
        if (reason := why.get(row.version)) is not None
    ]


def _size(services: Services, expired: _Expired) -> int | None:
    try:
        return services.store.size(expired.pointer)
    except NotFound:
        return None


def _note(session: Session, now: datetime, going: Iterable[_Expired], published: Iterable[_Expired]) -> None:
    for each in going:
        row = session.get_one(PublicationRow, each.publication)
        row.expiring_at = row.expiring_at or now
    for each in published:
        note_published(session, session.get_one(PublicationRow, each.publication), now)


def _note_deleted(session: Session, now: datetime, gone: Iterable[_Expired]) -> None:
    for each in gone:
        row = session.get_one(PublicationRow, each.publication)
        row.expired_at = row.expired_at or now
        session.get_one(RunRow, each.run).released_at = None

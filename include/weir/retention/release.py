"""Release results that are not needed any more, and delete their bytes.

Invariant 4: a result is marked released in one transaction that reads its leases, publications and consumers; only then
are its bytes deleted. Invariant 7: deletion may stop at any step, and any later process continues it.

Only the data files of a released result are deleted. Its manifest stays, with a note that it was released, so that a
rebuilt ledger does not take it for lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Integer, and_, bindparam, select, update
from sqlalchemy.orm import Session

from weir.coordination.evidence import require_known_checkpoints, require_known_publications
from weir.coordination.services import Services
from weir.errors import DiskFull
from weir.execution.partition_state import PartitionState
from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import MANIFEST, folder_of
from weir.ledger.database.tables import ResultRow, RunRow, Table
from weir.ledger.results import transition
from weir.ledger.runs import dataflow_of, newest_dataflow_settings, topology_of
from weir.recovery.inputs import checkpointed
from weir.retention.deletion_queries import decide, runs_not_kept, runs_to_release, stored_results
from weir.retention.deletion_rules import ReleaseDecision
from weir.state.files_in_use import has_kept_state, keyed_state_among, live_state_files
from weir.store.errors import AlreadyExists, NotFound
from weir.store.worker_threads import in_parallel

_KEY = ("attempt", "stage", "subtask", "layout", "run", "folder")
_RESULT = Table.metadata.tables[ResultRow.__tablename__]
_IS_RELEASED = and_(
    *(_RESULT.c[name] == bindparam(f"of_{name}") for name in _KEY), _RESULT.c.state == PartitionState.RELEASED.value
)
_RELEASED = select(_RESULT.c.id).where(_IS_RELEASED)
_NOTE_DELETED = update(_RESULT).where(_IS_RELEASED).values(deleted_at=bindparam("now"))

_PENDING = (
    select(ResultRow)
    .join(RunRow, RunRow.id == ResultRow.run)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        ResultRow.state == PartitionState.RELEASED.value,
        ResultRow.deleted_at.is_(None),
        ResultRow.id > bindparam("after"),
    )
    .order_by(ResultRow.id)
    .limit(bindparam("most", type_=Integer))
)
_PENDING_OF = _PENDING.where(ResultRow.run.in_(bindparam("runs", expanding=True)))

AT_ONCE = 500
"""How many released results are deleted, and recorded as deleted, together."""

_RECENT = timedelta(days=1)
"""How long after its release a result whose files are still in use gets its note, if it has none."""

_KEPT_FILES = frozenset({MANIFEST, RELEASED_NOTE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A released result whose data files were deleted; `bytes` is their size by the ledger."""

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    folder: str
    bytes: int
    reason: str


def release(
    services: Services,
    dataflow: str,
    runs: Iterable[str] | None = None,
    *,
    is_reclaiming: bool = False,
    is_dry: bool = False,
) -> tuple[ReleaseDecision, ...]:
    """Release the results that are not needed, in `runs` or in all that may have any; return the decisions.

    With `is_reclaiming`, space is needed: retention policies keep nothing. A dry release marks nothing. In all others,
    runs of which a policy keeps everything are left out. Raises Retryable, and LedgerBehind for a published version or
    a checkpoint that the ledger does not know.
    """
    with services.ledger.transaction() as session:
        wanted = _wanted(session, services, dataflow, runs, is_all=is_reclaiming or is_dry)
    found = (_release_run(services, run, is_reclaiming=is_reclaiming, is_dry=is_dry) for run in wanted)
    return tuple(each for decisions in found for each in decisions)


def _wanted(
    session: Session, services: Services, dataflow: str, runs: Iterable[str] | None, *, is_all: bool
) -> list[str]:
    if is_all:
        return runs_to_release(session, dataflow) if runs is None else list(runs)
    settings = newest_dataflow_settings(session, dataflow, services.retention)
    return runs_not_kept(session, dataflow, settings, services.now(), None if runs is None else list(runs))


def _release_run(
    services: Services, run: str, *, is_reclaiming: bool, is_dry: bool, has_looked: bool = False
) -> tuple[ReleaseDecision, ...]:
    """Release the results of a run; look into the store before, for versions and checkpoints that may consist of them.

    The ledger may have lost these.
    """
    now, sinks, is_named = services.now(), frozenset[str](), False
    with services.ledger.transaction(None if is_dry else dataflow_of(run)) as session:
        row = session.get(RunRow, run)
        if row is None:
            return ()
        settings = newest_dataflow_settings(session, row.dataflow, services.retention)
        decisions = decide(session, row, settings, now, is_reclaiming=is_reclaiming)
        if not (has_looked or is_dry):
            sinks, is_named = _users_of(row, decisions)
        if not (is_dry or sinks or is_named):
            _mark(session, services, row, decisions)
    if sinks:
        require_known_publications(services, run, sinks)
    if is_named:
        require_known_checkpoints(services, dataflow_of(run))
    if sinks or is_named:
        return _release_run(services, run, is_reclaiming=is_reclaiming, is_dry=is_dry, has_looked=True)
    return decisions


def _users_of(row: RunRow, decisions: Iterable[ReleaseDecision]) -> tuple[frozenset[str], bool]:
    """Return the sinks whose versions may have results that are to be released, and whether checkpoints may.

    Of a run that is to be pinned anew, any stage may be one.
    """
    stages = frozenset(each.stored.partition.stage for each in decisions if each.is_released)
    if row.pinned is None:
        return stages, bool(stages)
    topology = topology_of(row.pinned)
    named = {each.stage for each in checkpointed(topology)}
    return stages.intersection(topology.sinks), not stages.isdisjoint(named)


def _mark(session: Session, services: Services, row: RunRow, decisions: Iterable[ReleaseDecision]) -> None:
    is_all = row.closed_at is not None
    results = {each.id: each for each in stored_results(session, row.id)}
    for decision in decisions:
        if decision.is_released:
            result = results[decision.stored.result]
            transition(session, result, PartitionState.RELEASED, decision.reason, services.now())
        else:
            is_all = is_all and decision.is_lasting
    if is_all:
        row.released_at = services.now()


def delete_released(services: Services, dataflow: str, runs: Iterable[str] | None = None) -> tuple[Deleted, ...]:
    """Delete the data files of results that are marked released and not deleted yet. Raises Retryable.

    Keyed state stays while any of its files is in use: manifests of later epochs name it. Results are deleted, and
    recorded as deleted, page by page, so that a process that is killed leaves a page at most to do again.
    """
    wanted = None if runs is None else list(runs)
    deleted: list[Deleted] = []
    after = 0
    while (page := _page(services, dataflow, wanted, after)).pending:
        after = page.last
        deleted += _delete_page(services, dataflow, page)
    return tuple(deleted)


@dataclass(frozen=True, slots=True)
class _Page:
    """Released results, up to number `last`, and the folders of those that were released recently.

    `may_be_in_use`: the files of some may be keyed state.
    """

    pending: tuple[Deleted, ...]
    last: int
    may_be_in_use: bool
    recent: frozenset[str]


def _page(services: Services, dataflow: str, runs: Sequence[str] | None, after: int) -> _Page:
    wanted = {"dataflow": dataflow, "after": after, "most": AT_ONCE}
    with services.ledger.transaction() as session:
        query, more = (_PENDING, {}) if runs is None else (_PENDING_OF, {"runs": runs})
        rows = list(session.scalars(query, wanted | more))
        has_state = bool(keyed_state_among(session, rows)) and has_kept_state(session, dataflow)
    recent = frozenset(row.folder for row in rows if row.state_at >= services.now() - _RECENT)
    return _Page(tuple(_deleted(row) for row in rows), rows[-1].id if rows else after, has_state, recent)


def _delete_page(services: Services, dataflow: str, page: _Page) -> list[Deleted]:
    services.store_id()  # an unmounted disk looks as if all were deleted already
    pending = list(page.pending)
    if page.may_be_in_use:
        # Read after the release: a file that is not in use now is never used again.
        in_use = {folder_of(path) for path in live_state_files(services, dataflow)}
        noted = [each for each in pending if each.folder in in_use & page.recent]
        in_parallel(lambda each: _is_noted(services, each), noted, services.store.workers)
        pending = [each for each in pending if each.folder not in in_use]
    in_parallel(lambda each: _delete_data(services, each), pending, services.store.workers)
    if pending:  # without those in use
        services.store_id()  # or it was unmounted meanwhile
        with services.ledger.transaction(dataflow) as session:
            session.connection().execute(_NOTE_DELETED, [{**_key(each), "now": services.now()} for each in pending])
    return pending


def _deleted(row: ResultRow) -> Deleted:
    return Deleted(
        **{name: getattr(row, name) for name in ("run", "stage", "subtask", "layout", "attempt", "folder", "bytes")},
        reason=row.state_reason,
    )


def _delete_data(services: Services, deleted: Deleted) -> None:
    """Delete the files beside the manifest; the note is written first.

    If the disk has no space for the note, it is written after the deletion, which frees space. If the process is killed
    in between and the ledger is lost as well, the rebuilt ledger calls the result lost, not released.
    """
    if not _is_released(services, deleted):
        return  # the ledger was rebuilt meanwhile
    try:
        names = [name for name, _ in services.store.list(deleted.folder) if name not in _KEPT_FILES]
    except NotFound:
        return
    is_noted = _is_noted(services, deleted)
    for name in names:
        services.store.delete(f"{deleted.folder}/{name}")
    if not is_noted:
        _write_note(services, deleted)


def _key(deleted: Deleted) -> dict[str, Any]:
    return {f"of_{name}": getattr(deleted, name) for name in _KEY}


def _is_released(services: Services, deleted: Deleted) -> bool:
    with services.ledger.transaction() as session:
        return bool(session.scalar(_RELEASED, _key(deleted)))


def _is_noted(services: Services, deleted: Deleted) -> bool:
    try:
        _write_note(services, deleted)
    except DiskFull:
        return False
    return True


def _write_note(services: Services, deleted: Deleted) -> None:
    note = {"released_at": services.now().isoformat(), **asdict(deleted)}
    with suppress(AlreadyExists):
        services.store.create(f"{deleted.folder}/{RELEASED_NOTE}", json.dumps(note, indent=1, sort_keys=True).encode())

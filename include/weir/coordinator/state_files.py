"""Which files of keyed state are in use: those may not be deleted, whoever wrote them (DESIGN 8).

Invariant 4: a file is in use while a retained checkpoint, a result whose bytes count or that somebody reads, a
compaction of such a result, or the pin of a restore names it. What is not in use by then can never be again: new users
go on from those before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_content import keyed_states
from weir.coordinator.checkpoint_files import files_retained
from weir.coordinator.restore_pins import pinned_files
from weir.coordinator.services import Services
from weir.errors import Misconfigured
from weir.ledger.leases import leased
from weir.ledger.models import ResultRow, RunRow
from weir.ledger.runs import topology_of
from weir.ledger.state_models import CompactionRow, RestoreRow
from weir.results.codec import manifest_from_json
from weir.results.layout import PLAIN
from weir.results.partition_state import PartitionState
from weir.store.errors import NotFound
from weir.store.hands import in_parallel
from weir.store.probe import MANIFEST

_COUNTING = (PartitionState.FINISHED.value, PartitionState.LOST.value, PartitionState.QUARANTINED.value)
"""Released and superseded results name nothing any more. The bytes of lost ones may come back."""


def live_state_files(services: Services, dataflow: str) -> frozenset[str]:
    """The files of keyed state that are in use, of this dataflow and below its folder by those restored from it.

    Raises Retryable.
    """
    with services.ledger.transaction() as session:
        users = [dataflow, *_forks(session, dataflow)]
        folders = [row.folder for user in users for row in state_results(session, user, _COUNTING)]
        folders += [row.folder for user in users for row in _read(session, user, services.now())]
        compacted = [path for user in users for path in _compacted(session, user)]
        pinned = pinned_files(services, session, dataflow)
    named = in_parallel(lambda folder: _named(services, folder), folders, services.store.workers)
    checkpointed = (path for user in users for path in files_retained(services, user))
    return frozenset([*compacted, *pinned, *checkpointed, *(path for paths in named for path in paths)])


def _read(session: Session, dataflow: str, now: datetime) -> list[ResultRow]:
    """Results of keyed states that were made again while somebody reads them, and will name their files."""
    rows = state_results(session, dataflow, (PartitionState.RELEASED.value, PartitionState.SUPERSEDED.value))
    claimed = leased(session, [row.id for row in rows], now)
    return [row for row in rows if row.id in claimed]


def state_results(session: Session, dataflow: str, states: Iterable[str]) -> list[ResultRow]:
    """The results of keyed states of a dataflow that are in one of these states of life, current or not."""
    query = (
        select(ResultRow, RunRow.pinned)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state.in_(list(states)), ResultRow.layout != PLAIN.id)
        .order_by(ResultRow.id)
    )
    usual = _newest_pinned(session, dataflow)
    return [row for row, pinned in session.execute(query) if _is_keyed(row.stage, pinned or usual)]


def is_keyed_state(session: Session, run: str, stage: str) -> bool:
    """Whether a stage is a keyed state in the dataflow that a run is pinned to, or was before it was freed of it."""
    row = session.get_one(RunRow, run)
    return _is_keyed(stage, row.pinned or _newest_pinned(session, row.dataflow))


def _is_keyed(stage: str, pinned: Mapping[str, Any] | None) -> bool:
    return pinned is not None and stage in keyed_states(topology_of(pinned))


def _newest_pinned(session: Session, dataflow: str) -> Mapping[str, Any] | None:
    query = select(RunRow.pinned).where(RunRow.dataflow == dataflow, RunRow.pinned.is_not(None))
    return session.scalar(query.order_by(RunRow.created_at.desc(), RunRow.epoch.desc()).limit(1))


def _forks(session: Session, origin: str) -> list[str]:
    query = select(RestoreRow.dataflow).where(RestoreRow.origin == origin, RestoreRow.dataflow != origin)
    return sorted(set(session.scalars(query)))


def _compacted(session: Session, dataflow: str) -> Iterator[str]:
    counting = {row.attempt for row in state_results(session, dataflow, _COUNTING)}
    for row in session.scalars(select(CompactionRow).where(CompactionRow.dataflow == dataflow)):
        if row.of_attempt in counting:
            yield from paths_of(row)


def paths_of(compaction: CompactionRow) -> list[str]:
    """The files that a compaction names."""
    return [f"{each['folder']}/{each['file']['name']}" for each in compaction.files]


def _named(services: Services, folder: str) -> tuple[str, ...]:
    try:
        return _files_in(services.store.read(f"{folder}/{MANIFEST}"))
    except (NotFound, Misconfigured):
        return ()  # it is lost, and will be made again with files of its own


@lru_cache(maxsize=512)
def _files_in(data: bytes) -> tuple[str, ...]:
    """A manifest is read each time something is deleted, and what it says follows from its bytes."""
    manifest = manifest_from_json(data)
    return () if manifest.state is None else tuple(file.path for file in manifest.state.files)

"""Which files of keyed state are in use: those may not be deleted, whoever wrote them (DESIGN 8).

Invariant 4: a file is in use while a retained checkpoint, a result whose bytes count or that somebody reads, a
compaction of such a result, or the pin of a restore names it. What is not in use by then can never be again: new users
go on from those before them. Where somebody reads a result whose manifest has come to harm since, nobody can tell which
files that are: all that may be among them are in use.

What dataflows need that they were restored from, and for how long.

Invariant 4: what was restored stays until a checkpoint behind it is complete; what a fork began with, of files of its
origin, until that checkpoint names files of its own only. From then on nothing of the fork needs a file of the origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, literal, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import manifest_from_json
from weir.formats.manifest import StateFile
from weir.formats.paths import MANIFEST, is_below_dataflow, stage_folder
from weir.ledger.database.tables import CheckpointRow, CompactionRow, LeaseRow, RestoreRow, ResultRow, RunRow
from weir.ledger.leases import leased
from weir.ledger.restores import end_pin, pins_of, pins_on
from weir.ledger.results import move
from weir.ledger.runs import epoch_of_run, run_key, topology_of
from weir.state.assigned import needs_others
from weir.state.checkpoint_content import files_retained, keyed_states
from weir.store.catalogue import restored
from weir.store.errors import NotFound
from weir.store.walk import files_below
from weir.store.worker_threads import in_parallel
from weir.topology.partitions import PLAIN

COUNTING = (PartitionState.FINISHED.value, PartitionState.LOST.value, PartitionState.QUARANTINED.value)
"""Released and superseded results name nothing any more. The bytes of lost ones may come back."""


def live_state_files(services: Services, dataflow: str) -> frozenset[str]:
    """The files of keyed state that are in use, of this dataflow and below its folder by those restored from it.

    Checkpoints are asked first and last: what goes on from one (a restore, a reader) sees it retained, and then names
    its files as a result does; what becomes one is named by results before. So neither is missed in between.
    Raises Retryable.
    """
    checkpointed = _checkpointed(services, dataflow)
    with services.ledger.transaction() as session:
        users = [dataflow, *_forks(session, dataflow)]
        users_of = [row for user in users for row in state_results(session, user, COUNTING)]
        users_of += [row for user in users for row in _read(session, user, services.now())]
        compacted = [path for user in users for path in _compacted(session, user)]
        pinned = pinned_files(services, session, dataflow)
    named = in_parallel(lambda row: _named(services, row.folder), users_of, services.store.workers)
    checkpointed |= _checkpointed(services, dataflow)
    harmed = [row for row, paths in zip(users_of, named, strict=True) if paths is None]
    untold = _read_untold(services, dataflow, harmed) if harmed else []
    return frozenset([*compacted, *pinned, *checkpointed, *untold, *(path for paths in named for path in paths or ())])


def _read_untold(services: Services, dataflow: str, harmed: list[ResultRow]) -> list[str]:
    """The files of a dataflow that may be of results whose manifests are harmed, and that somebody reads."""
    with services.ledger.transaction() as session:
        claimed = leased(session, [row.id for row in harmed], services.now())
    states = {(row.stage, epoch_of_run(row.run)) for row in harmed if row.id in claimed}
    epochs = services.store.folders(dataflow) if states else []
    folders = {stage_folder(dataflow, epoch, stage) for stage, last in states for epoch in epochs if epoch <= last}
    return [each.path for each in files_below(services.store, folders)]


def _checkpointed(services: Services, dataflow: str) -> set[str]:
    """The files that retained checkpoints name, of this dataflow and of those restored from it."""
    with services.ledger.transaction() as session:
        users = [dataflow, *_forks(session, dataflow)]
    return {path for user in users for path in files_retained(services, user)}


def _read(session: Session, dataflow: str, now: datetime) -> list[ResultRow]:
    """Results of keyed states that were made again while somebody reads them, and will name their files."""
    states = (PartitionState.RELEASED.value, PartitionState.SUPERSEDED.value)
    rows = state_results(session, dataflow, states, ResultRow.id.in_(select(LeaseRow.result)))
    claimed = leased(session, [row.id for row in rows], now)
    return [row for row in rows if row.id in claimed]


def state_results(
    session: Session, dataflow: str, states: Iterable[str], *more: ColumnElement[bool]
) -> list[ResultRow]:
    """The results of a dataflow in one of these states of life that may be of keyed states, current or not."""
    query = (
        select(ResultRow, RunRow.pinned)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state.in_(list(states)), ResultRow.layout != PLAIN.id, *more)
        .order_by(ResultRow.id)
    )
    return [row for row, pinned in session.execute(query) if may_be_keyed_state(row, pinned)]


def may_be_keyed_state(row: ResultRow, pinned: Mapping[str, Any] | None) -> bool:
    """Whether a result may be of a keyed state; `pinned` is the form that its run has now.

    What counts is of that form. What does not may be of an earlier one, that had other states: its manifest tells.
    """
    return row.layout != PLAIN.id and (not row.is_current or _is_keyed(row.stage, pinned))


def has_kept_state(session: Session, dataflow: str) -> bool:
    """Whether there may be keyed state of a dataflow that others use, whatever it keeps now.

    A run that keeps state has a checkpoint once it is closed; only of open ones their form has to be looked at.
    """
    used = (
        select(literal(1)).where(CheckpointRow.dataflow == dataflow),
        select(literal(1)).where(CompactionRow.dataflow == dataflow),
        select(literal(1)).where((RestoreRow.dataflow == dataflow) | (RestoreRow.origin == dataflow)),
    )
    if any(session.scalar(each.limit(1)) is not None for each in used):
        return True
    forms = session.scalars(select(RunRow.pinned).where(RunRow.dataflow == dataflow, RunRow.closed_at.is_(None)))
    return any(each is not None and keyed_states(topology_of(each)) for each in forms)


def _is_keyed(stage: str, pinned: Mapping[str, Any] | None) -> bool:
    return pinned is not None and stage in keyed_states(topology_of(pinned))


def _forks(session: Session, origin: str) -> list[str]:
    query = select(RestoreRow.dataflow).where(RestoreRow.origin == origin, RestoreRow.dataflow != origin)
    return sorted(set(session.scalars(query)))


def _compacted(session: Session, dataflow: str) -> Iterator[str]:
    counting = {row.attempt for row in state_results(session, dataflow, COUNTING)}
    for row in session.scalars(select(CompactionRow).where(CompactionRow.dataflow == dataflow)):
        if row.of_attempt in counting:
            yield from paths_of(row)


def paths_of(compaction: CompactionRow) -> list[str]:
    """The files that a compaction names."""
    return [f"{each['folder']}/{each['file']['name']}" for each in compaction.files]


def _named(services: Services, folder: str) -> tuple[str, ...] | None:
    """None where nobody can tell: such a result is lost, and will be made again with files of its own."""
    try:
        return _files_in(services.store.read(f"{folder}/{MANIFEST}"))
    except (NotFound, Misconfigured):
        return None


@lru_cache(maxsize=512)
def _files_in(data: bytes) -> tuple[str, ...]:
    """A manifest is read each time something is deleted, and what it says follows from its bytes."""
    manifest = manifest_from_json(data)
    return () if manifest.state is None else tuple(file.path for file in manifest.state.files)


_REASON = "the dataflow has a checkpoint of files that are all its own"


def pinned_files(services: Services, session: Session, origin: str) -> set[str]:
    """The files of a dataflow that forks of it still need, by path. Raises Retryable."""
    found: set[str] = set()
    for pin in pins_on(session, origin):
        query = select(ResultRow).where(ResultRow.run == run_key(pin.dataflow, pin.epoch))
        rows = list(session.scalars(query))
        folders = [row.folder for row in rows if row.state != PartitionState.RELEASED.value]
        if not rows:  # the ledger was lost, and the fork has not been built again yet
            unreleased = (each for each in restored(services.store, pin.dataflow, pin.epoch) if each.released is None)
            folders = [each.folder for each in unreleased]
        found |= {file.path for folder in folders for file in _state_files_named(services, folder)}
    return {path for path in found if is_below_dataflow(path, origin)}


def _state_files_named(services: Services, folder: str) -> tuple[StateFile, ...]:
    """The files of keyed state that the result in a folder consists of."""
    try:
        manifest = manifest_from_json(services.store.read(f"{folder}/{MANIFEST}"))
    except NotFound:
        return ()
    return () if manifest.state is None else manifest.state.files


def unpin(services: Services, session: Session, checkpoint: Checkpoint) -> bool:
    """Let go of what was restored, if a checkpoint that is complete now can do without; answers whether it does.

    What a fork began with is released, so that nobody takes it for lost when the origin has deleted it.
    """
    pins = [pin for pin in pins_of(session, checkpoint.dataflow) if pin.epoch < checkpoint.epoch]
    if not pins or needs_others(checkpoint.dataflow, checkpoint.files.values()):
        return False
    for pin in pins:
        end_pin(pin, services.now())
        _release_others(services, session, pin)
    return True


def _release_others(services: Services, session: Session, pin: RestoreRow) -> None:
    finished = select(ResultRow).where(
        ResultRow.run == run_key(pin.dataflow, pin.epoch), ResultRow.state == PartitionState.FINISHED.value
    )
    for row in session.scalars(finished):
        if needs_others(pin.dataflow, _state_files_named(services, row.folder)):
            move(session, row, PartitionState.RELEASED, _REASON, services.now())

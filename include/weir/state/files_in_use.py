"""Find the files of keyed state that are in use: they may not be deleted, whichever dataflow wrote them.

Invariant 4: a file is in use while a retained checkpoint names it, or a result that counts or has a lease, a compaction
of such a result, or the pin of a restore. A file that is not in use can never be used again: new users resume from
those before them. Where a result that is read has a damaged manifest, its files are not known: all files that may be
among them are in use.

What was restored stays pinned until a checkpoint of a later epoch is complete; the files of its origin that a fork
began with, until that checkpoint names files of its own only. From then on the fork needs no file of the origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from sqlalchemy import ColumnElement, literal, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest, StateFile
from weir.formats.paths import is_below_dataflow, manifest_path, stage_folder
from weir.ledger.database.tables import CheckpointRow, CompactionRow, LeaseRow, RestoreRow, ResultRow, RunRow
from weir.ledger.leases import leased
from weir.ledger.restores import end_pin, pins_of, pins_on
from weir.ledger.results import transition
from weir.ledger.runs import epoch_of_run, run_key, topology_of
from weir.state.assigned import needs_others
from weir.state.checkpoint_content import files_retained, keyed_states
from weir.store.catalogue import restored
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.store.walk import files_below
from weir.store.worker_threads import in_parallel
from weir.topology.ids import Epoch
from weir.topology.partitions import PLAIN

COUNTING = (PartitionState.FINISHED.value, PartitionState.LOST.value, PartitionState.QUARANTINED.value)
"""States of results that count: released and superseded ones use no file, and the bytes of lost ones may come back."""


def live_state_files(services: Services, dataflow: str) -> frozenset[str]:
    """Return the files of keyed state in use, by this dataflow and by those that were restored from it.

    Checkpoints are read first and last: a restore or a reader that resumes from one sees it retained, and then its
    results name the files; what becomes a checkpoint was named by results before. So neither is missed in between.
    Raises Retryable.
    """
    checkpointed = _checkpointed(services, dataflow)
    with services.ledger.transaction() as session:
        users = [dataflow, *_forks(session, dataflow)]
        users_of = [row for user in users for row in state_results(session, user, COUNTING)]
        users_of += [row for user in users for row in _leased_results(session, user, services.now())]
        compacted = [path for user in users for path in _compacted(session, user)]
        pins = _pinned_folders(session, dataflow)
    pinned = _pinned_files(services, dataflow, pins)
    named = in_parallel(lambda row: _named(services, row.folder), users_of, services.store.workers)
    checkpointed |= _checkpointed(services, dataflow)
    damaged = [row for row, paths in zip(users_of, named, strict=True) if paths is None]
    possible = _possible_files(services, dataflow, damaged) if damaged else []
    return frozenset(
        [*compacted, *pinned, *checkpointed, *possible, *(path for paths in named for path in paths or ())]
    )


def _possible_files(services: Services, dataflow: str, damaged: list[ResultRow]) -> list[str]:
    """Return the files that may be of results with a damaged manifest and a lease."""
    with services.ledger.transaction() as session:
        read = leased(session, [row.id for row in damaged], services.now())
    states = {(row.stage, epoch_of_run(row.run)) for row in damaged if row.id in read}
    epochs = services.store.folders(dataflow) if states else []
    folders = {stage_folder(dataflow, epoch, stage) for stage, last in states for epoch in epochs if epoch <= last}
    return [each.path for each in files_below(services.store, folders)]


def _checkpointed(services: Services, dataflow: str) -> set[str]:
    """Return the files that retained checkpoints name, of this dataflow and of those restored from it."""
    with services.ledger.transaction() as session:
        users = [dataflow, *_forks(session, dataflow)]
    return {path for user in users for path in files_retained(services, user)}


def _leased_results(session: Session, dataflow: str, now: datetime) -> list[ResultRow]:
    """Return results of keyed states that do not count any more and have a lease: their readers will use the files."""
    states = (PartitionState.RELEASED.value, PartitionState.SUPERSEDED.value)
    rows = state_results(session, dataflow, states, ResultRow.id.in_(select(LeaseRow.result)))
    claimed = leased(session, [row.id for row in rows], now)
    return [row for row in rows if row.id in claimed]


def _forks(session: Session, origin: str) -> list[str]:
    query = select(RestoreRow.dataflow).where(RestoreRow.origin == origin, RestoreRow.dataflow != origin)
    return sorted(set(session.scalars(query)))


def _compacted(session: Session, dataflow: str) -> Iterator[str]:
    counting = {row.attempt for row in state_results(session, dataflow, COUNTING)}
    for row in session.scalars(select(CompactionRow).where(CompactionRow.dataflow == dataflow)):
        if row.of_attempt in counting:
            yield from paths_of(row)


def paths_of(compaction: CompactionRow) -> list[str]:
    """Return the paths of the files that a compaction names."""
    return [f"{each['folder']}/{each['file']['name']}" for each in compaction.files]


def _named(services: Services, folder: str) -> tuple[str, ...] | None:
    """Return None where the manifest is missing or damaged: the result is lost, and is recomputed to other files."""
    try:
        return _files_in(services.store.read(manifest_path(folder)))
    except (NotFound, Misconfigured):
        return None


@lru_cache(maxsize=512)
def _files_in(data: bytes) -> tuple[str, ...]:
    """Return the files that a manifest names; cached, since it is read before each deletion."""
    manifest = from_json(Manifest, data)
    return () if manifest.state is None else tuple(file.path for file in manifest.state.files)


# Results that may be of keyed state


def state_results(
    session: Session, dataflow: str, states: Iterable[str], *more: ColumnElement[bool]
) -> list[ResultRow]:
    """Return the results of a dataflow, in one of these states, that may be of keyed states, current or not."""
    query = (
        select(ResultRow)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.state.in_(list(states)), ResultRow.layout != PLAIN.id, *more)
        .order_by(ResultRow.id)
    )
    return keyed_state_among(session, list(session.scalars(query)))


def keyed_state_among(session: Session, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return those of some results that may be of a keyed state.

    A current result is of the dataflow that its run is pinned to. Another may be of an earlier one, with other states:
    its manifest shows it.
    """
    keyed = [row for row in rows if row.layout != PLAIN.id]
    runs = {row.run for row in keyed if row.is_current}
    pinned = session.execute(select(RunRow.id, RunRow.pinned).where(RunRow.id.in_(runs))) if runs else ()
    states = {run: keyed_states(topology_of(content)) for run, content in pinned if content is not None}
    return [row for row in keyed if not row.is_current or row.stage in states.get(row.run, ())]


def has_kept_state(session: Session, dataflow: str) -> bool:
    """Report whether there may be keyed state of a dataflow that is in use, whatever the dataflow declares now.

    A closed run that keeps state has a checkpoint; of open runs the pinned dataflow is examined.
    """
    used = (
        select(literal(1)).where(CheckpointRow.dataflow == dataflow),
        select(literal(1)).where(CompactionRow.dataflow == dataflow),
        select(literal(1)).where((RestoreRow.dataflow == dataflow) | (RestoreRow.origin == dataflow)),
    )
    if any(session.scalar(each.limit(1)) is not None for each in used):
        return True
    pinned = session.scalars(select(RunRow.pinned).where(RunRow.dataflow == dataflow, RunRow.closed_at.is_(None)))
    return any(each is not None and keyed_states(topology_of(each)) for each in pinned)


# Pins of restored results


_REASON = "the dataflow has a checkpoint of files that are all its own"


_Pins = Mapping[tuple[str, Epoch], list[str] | None]
"""By dataflow and epoch, the folders of restored results; None where the ledger was lost, and knows none."""


def _pinned_folders(session: Session, origin: str) -> _Pins:
    found: dict[tuple[str, Epoch], list[str] | None] = {}
    for pin in pins_on(session, origin):
        rows = list(session.scalars(select(ResultRow).where(ResultRow.run == run_key(pin.dataflow, pin.epoch))))
        folders = [row.folder for row in rows if row.state != PartitionState.RELEASED.value]
        found[pin.dataflow, pin.epoch] = folders if rows else None
    return found


def _pinned_files(services: Services, origin: str, pins: _Pins) -> set[str]:
    found: set[str] = set()
    for (dataflow, epoch), known in pins.items():
        folders = known
        if folders is None:  # the fork is not rebuilt yet
            unreleased = (each for each in restored(services.store, dataflow, epoch) if each.released is None)
            folders = [each.folder for each in unreleased]
        found |= {file.path for folder in folders for file in _state_files_named(services, folder)}
    return {path for path in found if is_below_dataflow(path, origin)}


def ending_pins(services: Services, checkpoint: Checkpoint) -> Mapping[int, frozenset[int]]:
    """Return the pins of restored results that a checkpoint, once it is complete, has no need of.

    Each has the results, by number, that consist of files of others. Raises Retryable.
    """
    with services.ledger.transaction() as session:
        pins = [pin for pin in pins_of(session, checkpoint.dataflow) if pin.epoch < checkpoint.epoch]
        held = {pin.id: _finished(session, pin) for pin in pins}
    if needs_others(checkpoint.dataflow, checkpoint.files.values()):
        return {}
    name = checkpoint.dataflow
    return {
        pin: frozenset(row.id for row in rows if needs_others(name, _state_files_named(services, row.folder)))
        for pin, rows in held.items()
    }


def unpin(session: Session, pins: Mapping[int, frozenset[int]], now: datetime) -> None:
    """End pins. Their results that consist of files of others are released, so that they do not count as lost."""
    for number, foreign in pins.items():
        pin = session.get_one(RestoreRow, number)
        end_pin(pin, now)
        for row in _finished(session, pin):
            if row.id in foreign:
                transition(session, row, PartitionState.RELEASED, _REASON, now)


def _finished(session: Session, pin: RestoreRow) -> list[ResultRow]:
    query = select(ResultRow).where(
        ResultRow.run == run_key(pin.dataflow, pin.epoch), ResultRow.state == PartitionState.FINISHED.value
    )
    return list(session.scalars(query))


def _state_files_named(services: Services, folder: str) -> tuple[StateFile, ...]:
    """Return the files of keyed state that the result in a folder consists of; none where its manifest is lost."""
    try:
        manifest = read_manifest(services.store, folder)
    except (NotFound, Misconfigured):
        return ()
    return () if manifest.state is None else manifest.state.files

"""Verify keyed state beside its manifests: retained checkpoints, and the rows of compactions and checkpoints.

Invariant: checking that checkpoint files exist changes nothing. A compaction with other rows than were committed is
dropped in one transaction with the checkpoints that name it; from then on readers use the manifest, and upkeep
checkpoints the run once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint, SnapshotKind, fingerprint
from weir.formats.codec import from_json, from_plain
from weir.formats.manifest import DataFile, StateFile, is_chain
from weir.formats.paths import checkpoint_path
from weir.formats.programs import ContentAnswer, ResultToCheck
from weir.integrity.records import Inconsistency, confirmed
from weir.integrity.verify import VerifiedResult
from weir.ledger.checkpoints import abandon, is_retained
from weir.ledger.database.tables import CheckpointRow, CompactionRow
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.state.assigned import state_as_of
from weir.state.checkpoint_content import read_checkpoint
from weir.state.compactions import Compacted, compactions_in
from weir.store.errors import NotFound
from weir.store.probe import size_differs
from weir.store.store import Store

_DROPPED = "It is not used any more: readers use the committed state, and upkeep checkpoints the run once more"

_ANOTHER = "Nothing was changed. `weir checkpoints` and `weir savepoint list` show what else can be restored"

_LOOK = "Nothing was changed: look at the message, and verify again"

_ANEW = "Upkeep gives it up, and checkpoints its run once more under a new number"

_REPAIR = "`weir verify --repair` has the lost state recomputed; then its run is checkpointed once more"

_REBUILD = "Nothing was changed: `weir ledger rebuild` follows the store"


def checkpoint_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Return what is wrong with the retained checkpoints of some runs. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = retained_of_runs(session, runs)
    of_manifests = confirmed(services, rows, partial(_of_manifest, services.store))
    bad = {each.path for each in of_manifests}
    whole = [row for row in rows if checkpoint_path(row.dataflow, row.number) not in bad]
    files = [each for row in whole for each in _files_of_checkpoint(services.store, row)]
    return (*of_manifests, *confirmed(services, files, partial(_of_file, services.store)))


def retained_of_runs(session: Session, runs: Collection[str]) -> list[CheckpointRow]:
    """Return the retained checkpoints of some runs, by number."""
    query = select(CheckpointRow).where(
        CheckpointRow.run.in_(runs), CheckpointRow.kind == SnapshotKind.CHECKPOINT.value, is_retained()
    )
    return list(session.scalars(query.order_by(CheckpointRow.dataflow, CheckpointRow.number)))


def _of_manifest(store: Store, row: CheckpointRow) -> Inconsistency | None:
    path = checkpoint_path(row.dataflow, row.number)
    try:
        found = from_json(Checkpoint, store.read(path))
    except NotFound:
        return Inconsistency(row.run, path, f"the manifest of checkpoint {row.number}, found no such file", _ANEW)
    except Misconfigured as error:
        return Inconsistency(row.run, path, f"the manifest of checkpoint {row.number}: {error}", _ANEW)
    if (found.number, found.run, fingerprint(found)) == (row.number, row.run, row.content):
        return None
    detail = f"ledger and manifest differ about checkpoint {row.number}"
    return Inconsistency(row.run, path, detail, _REBUILD)


def _files_of_checkpoint(store: Store, row: CheckpointRow) -> Iterator[tuple[CheckpointRow, str, DataFile]]:
    checkpoint: Checkpoint = from_json(Checkpoint, store.read(checkpoint_path(row.dataflow, row.number)))
    for path, file in checkpoint.files.items():
        yield row, path, file.file
    for result in checkpoint.results:
        for each in result.files:
            yield row, f"{result.folder}/{each.name}", each


def _of_file(store: Store, named: tuple[CheckpointRow, str, DataFile]) -> Inconsistency | None:
    row, path, file = named
    found = size_differs(store, path, file)
    return (
        None
        if found is None
        else Inconsistency(row.run, path, f"checkpoint {row.number} names it: {found.detail}", _REPAIR)
    )


@dataclass(frozen=True, slots=True)
class StateCopy:
    """Files with the rows of a partition of keyed state, named by a compaction, by checkpoints, or by both."""

    asked: ResultToCheck
    run: str
    path: str
    compaction: int | None
    checkpoints: tuple[int, ...] = ()


def state_copies(
    services: Services, runs: Sequence[str], found: Iterable[VerifiedResult], asked: Sequence[ResultToCheck]
) -> tuple[StateCopy, ...]:
    """Return the digests to compute for compactions of the results in `asked`, and for retained checkpoints.

    Files that are a result's own are in `asked` already and are left out. Raises Retryable.
    """
    known = {_files(each) for each in asked}
    number = max((each.number for each in asked), default=0)
    copies: dict[object, StateCopy] = {}
    for each in (*_compacted(services, runs, found, asked), *_checkpointed(services, runs)):
        files = _files(each.asked)
        if (before := copies.get(files)) is not None:
            copies[files] = replace(before, checkpoints=(*before.checkpoints, *each.checkpoints))
        elif files not in known:
            number += 1
            copies[files] = replace(each, asked=replace(each.asked, number=number))
    return tuple(copies.values())


def _files(asked: ResultToCheck) -> object:
    """Return what is the same of two copies: their files, and the expected digest."""
    return asked.state and (asked.state.files, asked.expected)


def _compacted(
    services: Services, runs: Sequence[str], found: Iterable[VerifiedResult], asked: Iterable[ResultToCheck]
) -> Iterator[StateCopy]:
    of_states = {each.number: each for each in asked if each.state is not None}
    with services.ledger.transaction() as session:
        rows = compactions_in(session, runs)
    for each in found:
        row, committed = rows.get(Compacted(each.attempt, each.stage, each.subtask)), of_states.get(each.result)
        if row is not None and committed is not None and committed.state is not None:
            state = state_as_of(
                services.store,
                committed.state.state,
                epoch_of_run(row.run),
                from_plain("state files", tuple[StateFile, ...], row.files),
            )
            name = f"what {committed.name} was compacted to"
            path = f"{each.folder.rpartition('/')[0]}/{row.attempt}"
            yield StateCopy(replace(committed, name=name, state=state), row.run, path, row.id)


def _checkpointed(services: Services, runs: Sequence[str]) -> Iterator[StateCopy]:
    with services.ledger.transaction() as session:
        rows = retained_of_runs(session, runs)
    for row in rows:
        checkpoint = read_checkpoint(services.store, row.dataflow, row.number)
        for state in () if checkpoint is None else _states_of(services, checkpoint):
            yield StateCopy(state, row.run, checkpoint_path(row.dataflow, row.number), None, (row.id,))


def _states_of(services: Services, checkpoint: Checkpoint) -> Iterator[ResultToCheck]:
    for each in checkpoint.states:
        for part in each.partitions:
            if is_chain(part.digest):
                continue  # which is not the digest of any rows
            name = f"{each.state.name}[{part.subtask}] in checkpoint {checkpoint.number} of {checkpoint.dataflow}"
            state = state_as_of(services.store, each.state, checkpoint.epoch, part.files)
            yield ResultToCheck(
                number=0,
                name=name,
                files=(),
                spark_schema=each.spark_schema,
                is_keyed=True,
                expected=part.digest,
                state=state,
            )


def state_inconsistencies(
    services: Services, copies: Iterable[StateCopy], answers: Iterable[ContentAnswer]
) -> tuple[Inconsistency, ...]:
    """Report copies with other rows than were committed, and drop them from the ledger. Raises Retryable."""
    answered = {each.number: each for each in answers}
    found = []
    for each in copies:
        answer = answered.get(each.asked.number)
        if answer is not None and answer.digest != each.asked.expected:
            with services.ledger.transaction(dataflow_of(each.run)) as session:
                found.append(_dropped(session, each, answer, services.now()))
    return tuple(each for each in found if each is not None)


def _dropped(session: Session, copy: StateCopy, answer: ContentAnswer, now: datetime) -> Inconsistency | None:
    """Drop a copy with other rows; return None if nothing names its files any more: they may be deleted."""
    compaction = None if copy.compaction is None else session.get(CompactionRow, copy.compaction)
    query = select(CheckpointRow).where(CheckpointRow.id.in_(copy.checkpoints), is_retained())
    checkpoints = list(session.scalars(query))
    if compaction is None and not checkpoints:
        return None
    name = copy.asked.name
    if answer.digest is None:
        return Inconsistency(copy.run, copy.path, f"{name} could not be digested: {answer.error}", _LOOK)
    detail = f"the digest of the rows of {name} is {answer.digest}, expected {copy.asked.expected}"
    if compaction is None:
        return Inconsistency(copy.run, copy.path, detail, _ANOTHER)
    session.delete(compaction)
    for row in checkpoints:
        abandon(session, row, now)
    return Inconsistency(copy.run, copy.path, detail, _DROPPED)

"""Complete the checkpoint of a run (number, manifest, ledger), and mark older ones subsumed.

Invariant 7: the process may be killed after any step. A number that was taken is completed by any later process that
is to checkpoint the same content, and else given up; a manifest is created exclusively, so that a number never has two
contents.

Invariant 4: the transaction that takes the number requires that each result it names is valid and present, and records
them: from then on they are not released, until the checkpoint is given up or subsumed. It can only be completed while
it is not given up. So a complete checkpoint never names a file that was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sqlalchemy.orm import Session

from weir.coordination.registered import Gathered, Registered, require_newest
from weir.coordination.services import Services
from weir.errors import Conflict, Message
from weir.execution.run_state import CLOSE, CurrentResult, RunState
from weir.formats.checkpoint import Checkpoint, SnapshotKind, fingerprint
from weir.formats.codec import to_json
from weir.formats.manifest import Manifest
from weir.formats.paths import checkpoint_path, number_path
from weir.ledger.checkpoints import (
    abandon,
    add_results,
    checkpoint_row,
    complete,
    enter_checkpoint,
    is_whole,
    next_number,
    pending_checkpoints,
    retained_of_run,
    retained_snapshots,
    subsume,
)
from weir.ledger.database.tables import CheckpointRow
from weir.ledger.runs import Run
from weir.ledger.snapshot import run_state
from weir.ledger.sources import all_splits_of, ranges_of
from weir.recovery.inputs import checkpointed
from weir.state.checkpoint_content import checkpoint_of, files_retained, read_checkpoint
from weir.state.checkpoint_order import is_complete
from weir.state.compactions import compacted_files, present_compactions
from weir.state.files_in_use import ending_pins, unpin
from weir.state.retention_rules import CompletedSnapshot, subsumed
from weir.store.errors import AlreadyExists, NotFound
from weir.topology.ids import AttemptId
from weir.topology.regions import PartitionId

Guard = Callable[[Session], None]
"""Raises where the process that completes the checkpoint may not do so any more."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a checkpoint to be completed: current results and their manifests, by partition."""

    run: Run
    attempt: AttemptId
    results: Mapping[PartitionId, CurrentResult]
    manifests: Mapping[PartitionId, Manifest]


def checkpoint_run(services: Services, registered: Registered, gathered: Gathered) -> int | None:
    """Complete the checkpoint of the run that is being closed, and return its number.

    None if the run keeps no state, or a retained checkpoint has the same content. Raises Conflict if the content has
    changed meanwhile, Fenced, or Retryable.
    """
    run, attempt = registered.run, registered.attempt.id

    def guard(session: Session) -> None:
        require_newest(session, run, CLOSE, attempt)

    draft = draft_of(run, attempt, gathered.state, gathered.manifests)
    return None if draft is None else complete_checkpoint(services, draft, guard)


def draft_of(run: Run, attempt: AttemptId, state: RunState, manifests: Mapping[PartitionId, Manifest]) -> Draft | None:
    """Return the content to be checkpointed of a run; None where it keeps no state, or its state is released."""
    named = checkpointed(run.topology)
    if not named or not named <= manifests.keys():
        return None
    return Draft(run, attempt, {each: state.results[each] for each in named}, manifests)


def complete_checkpoint(services: Services, draft: Draft, guard: Guard) -> int | None:
    """Take a number, write the manifest, and mark it complete in the ledger."""
    now = services.now()
    before = files_retained(services, draft.run.dataflow.name).keys()
    compactions = present_compactions(services, {each.attempt for each in draft.manifests.values() if each.state})
    files_of = partial(compacted_files, compactions=compactions)
    with services.ledger.transaction() as session:
        sources = all_splits_of(session, draft.run.id)
        positions = {source: found.position for source, found in ranges_of(session, draft.run.id).items()}
    checkpoint = checkpoint_of(draft.run, draft.attempt, draft.results, draft.manifests, files_of, before, now, sources)
    checkpoint = replace(checkpoint, positions=positions)
    number = _take_number(services, draft, checkpoint, guard)
    if number is None:
        return None
    checkpoint = replace(checkpoint, number=number, revision=services.ledger.seen(draft.run.dataflow.name))
    _create(services, checkpoint)
    services.store_id()  # else it was written below a mount point whose disk is gone
    pins = ending_pins(services, checkpoint)
    with services.ledger.transaction(checkpoint.dataflow) as session:
        guard(session)
        _require_same(session, draft)
        complete(session, checkpoint.dataflow, number, checkpoint.attempt, fingerprint(checkpoint), services.now())
        unpin(session, pins, services.now())
    return number


def _take_number(services: Services, draft: Draft, checkpoint: Checkpoint, guard: Guard) -> int | None:
    content, run = fingerprint(checkpoint), draft.run
    with services.ledger.transaction(run.dataflow.name) as session:
        guard(session)
        _require_same(session, draft)
        _require_order(session, run)
        retained = retained_of_run(session, run.id)
        if retained is not None and retained.content == content:
            add_results(session, retained, checkpoint)
            return None
        pending = _pending(session, run, content, services.now())
        if pending is not None:
            pending.attempt = draft.attempt
            add_results(session, pending, checkpoint)
            return pending.number
        number = next_number(session, run.dataflow.name)
        enter_checkpoint(session, replace(checkpoint, number=number), content, services.now())
        return number


def _require_order(session: Session, run: Run) -> None:
    if run.predecessor_run is not None and not is_complete(session, run.predecessor_run):
        raise Conflict.of("state.predecessor_open", predecessor_run=run.predecessor_run, run_id=run.id)


def _pending(session: Session, run: Run, content: str, now: datetime) -> CheckpointRow | None:
    """Return the row of a number that was taken for the same content; numbers of other contents are given up."""
    found = None
    for row in pending_checkpoints(session, run.dataflow.name):
        if row.run == run.id and row.content == content:
            found = row
        elif row.run == run.id:
            abandon(session, row, now)
    return found


def _require_same(session: Session, draft: Draft) -> None:
    """Require that the results to be checkpointed are still current, valid and present. Raises Conflict."""
    present = run_state(session, draft.run, draft.run.topology)
    for partition, result in draft.results.items():
        why = next((each.value for each in present.obstacles(partition)), "")
        if not why and present.results[partition].attempt != result.attempt:
            why = f"replaced by {present.results[partition].attempt}"
        if why:
            raise Conflict.of("state.result_changed", partition=partition, why=why)


def _create(services: Services, checkpoint: Checkpoint) -> None:
    _require_free(services, checkpoint.dataflow, checkpoint.number)
    path = checkpoint_path(checkpoint.dataflow, checkpoint.number)
    with suppress(AlreadyExists):
        services.store.create(path, to_json(checkpoint))
        return
    # This write may have succeeded before its answer was lost, or that of an earlier try before it was killed.
    found = read_checkpoint(services.store, checkpoint.dataflow, checkpoint.number)
    if found is not None and fingerprint(found) == fingerprint(checkpoint):
        return
    if found is not None:  # a number is of one content: the ledger has lost this one, and gave its number again
        services.ledger.saw(found.dataflow, found.revision)
        raise services.ledger.behind(
            checkpoint.dataflow,
            Message("coordination.checkpoint_of_attempt_unknown", number=found.number, attempt=found.attempt),
        )
    with services.ledger.transaction(checkpoint.dataflow) as session:
        row = checkpoint_row(session, checkpoint.dataflow, checkpoint.number)
        if row is not None:
            abandon(session, row, services.now())
    raise Conflict.of("state.manifest_in_the_way", path=path, number=checkpoint.number)


def _require_free(services: Services, dataflow: str, number: int) -> None:
    """Raise LedgerBehind for the number of a savepoint, which the store keeps: the ledger has lost it."""
    try:
        services.store.size(number_path(dataflow, number))
    except NotFound:
        return
    raise services.ledger.behind(dataflow, Message("coordination.savepoint_unknown", number=number))


def subsume_checkpoints(session: Session, dataflow: str, retained: int, now: datetime) -> list[CheckpointRow]:
    """Mark checkpoints subsumed so that `retained` checkpoints and savepoints stay; return those marked."""
    rows, gone = to_subsume(session, dataflow, retained)
    for number, by in gone.items():
        subsume(session, rows[number], by, now)
    return [rows[number] for number in sorted(gone)]


def to_subsume(session: Session, dataflow: str, retained: int) -> tuple[dict[int, CheckpointRow], dict[int, int]]:
    """Return what is retained, by number, and what of it is subsumed so that `retained` stay, each with the newer."""
    rows = {row.number: row for row in retained_snapshots(session, dataflow)}
    listed = [
        CompletedSnapshot(row.number, SnapshotKind(row.kind), row.epoch, is_whole=is_whole(session, row))
        for row in rows.values()
    ]
    return rows, subsumed(listed, retained)

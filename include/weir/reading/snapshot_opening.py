"""Which state a reader means, by a checkpoint or a savepoint.

Invariant: what is given is what the manifest names, which is as it was written. What a checkpoint shares with others is
claimed in the transaction that answers that it is retained; a savepoint is its owner's to delete.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.cli.savepoint_commands import open_store
from weir.coordinator.checkpoint_files import read_checkpoint
from weir.coordinator.reading import ReadLease, claimed, reader
from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import Folder, find_source
from weir.errors import Misconfigured
from weir.ledger.checkpoints import checkpoint_row
from weir.ledger.models import ResultRow
from weir.ledger.state_models import CheckpointRow
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.reading.state_opening import advice_on, kept_checkpoints, told
from weir.results.checkpoint import Checkpoint, KeyedSnapshot, checkpoint_path
from weir.results.manifest import StateFile
from weir.state.files import expired_until


def open_snapshot(services: Services, dataflow: str, which: str, name: str, closing: ExitStack) -> OpenedState:
    """Open the state of a checkpoint or savepoint: by its number, a savepoint also by its name or folder.

    Raises Misconfigured, Unreadable, Retryable.
    """
    if which.isdigit():
        with services.ledger.transaction() as session:
            row = checkpoint_row(session, dataflow, int(which))
            is_own = row is None or not row.folder
        if is_own:
            return _open_checkpoint(services, dataflow, int(which), name, closing)
    source = find_source(services, dataflow, which, open_store)
    with services.ledger.transaction(dataflow) as session:
        lease = ReadLease(claimed(session, services, dataflow, [], reader("weir.open")))
    closing.callback(lease.close)
    advice = f"The savepoint in {source.folder.url} is not whole any more: `weir savepoint list` tells of others"
    at = _of_checkpoint(source.checkpoint, _snapshot(source.checkpoint, name), advice, source.folder)
    return OpenedState(source.folder.store, at, lease, closing.pop_all())


def _open_checkpoint(services: Services, dataflow: str, number: int, name: str, closing: ExitStack) -> OpenedState:
    with services.ledger.transaction(dataflow) as session:
        row = _retained(session, dataflow, number)
        results = list(session.scalars(select(ResultRow.id).where(ResultRow.run == row.run, ResultRow.stage == name)))
        claim = claimed(session, services, dataflow, results, reader("weir.open"))
        retained = told(kept_checkpoints(session, dataflow))
    lease = ReadLease(claim)
    closing.callback(lease.close)
    checkpoint = read_checkpoint(services.store, dataflow, number)
    if checkpoint is None:
        raise Misconfigured(
            f"{services.store.url}/{checkpoint_path(dataflow, number)} is gone or damaged, though checkpoint {number} "
            f"of {dataflow} is kept: `weir verify` tells what else is. Kept are {retained}"
        )
    at = _of_checkpoint(
        checkpoint, _snapshot(checkpoint, name), advice_on(checkpoint.run, retained), Folder(services.store, "")
    )
    return OpenedState(services.store, at, lease, closing.pop_all())


def _retained(session: Session, dataflow: str, number: int) -> CheckpointRow:
    kept = {row.number: row for row in kept_checkpoints(session, dataflow)}
    if number in kept:
        return kept[number]
    known = checkpoint_row(session, dataflow, number)
    if known is not None and known.subsumed_by is not None:
        found = f"was subsumed by checkpoint {known.subsumed_by}"
    else:
        found = "is not known" if known is None else f"is {known.status}"
    raise Misconfigured(f"checkpoint {number} of {dataflow} {found}; kept are {told(list(kept.values()))}")


def _of_checkpoint(checkpoint: Checkpoint, found: KeyedSnapshot, advice: str, folder: Folder) -> StateAt:
    layout = found.layout.id
    parts = tuple(
        OpenStatePartition(
            part.subtask, layout, part.attempt, part.key_groups, part.rows, part.digest, _below(folder, part.files)
        )
        for part in found.partitions
    )
    return StateAt(
        state=found.state,
        stage=found.stage,
        run=checkpoint.run,
        epoch=checkpoint.epoch,
        checkpoint=checkpoint.number,
        spark_schema=found.spark_schema,
        max_parallelism=found.max_parallelism,
        expired_until=expired_until(found.state, checkpoint.epoch),
        partitions=parts,
        advice=advice,
    )


def _snapshot(checkpoint: Checkpoint, name: str) -> KeyedSnapshot:
    for each in checkpoint.states:
        if each.state.name == name:
            return each
    known = ", ".join(each.state.name for each in checkpoint.states) or "none"
    raise Misconfigured(
        f"checkpoint {checkpoint.number} of {checkpoint.dataflow} has no keyed state {name!r}; it has {known}"
    )


def _below(folder: Folder, files: tuple[StateFile, ...]) -> tuple[StateFile, ...]:
    """Files by their paths from the root of the store."""
    return tuple(replace(each, folder=folder.at(each.folder)) for each in files)
